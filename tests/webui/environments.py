"""Virtual environments with the real Open WebUI, made once from pinned lists and kept in a cache.

Open WebUI has ninety requirements, torch among them; the parts that are tested need far fewer.
`requirements-loader.txt` is what its loader of functions imports (30 s, 0.4 GB),
`requirements-server.txt` what its server imports (70 s, 1 GB). The package itself is installed
without its own requirements.

An environment lies in `$XDG_CACHE_HOME/pannier-tests`, keyed by its list and the Python. A marker
tells a whole one from one whose making was interrupted; a lock lets two runs share it.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

HERE = Path(__file__).parent
PACKAGE = "open-webui=="
LONGEST_INSTALL_S = 1500
TELL_S = 15

Kind = Literal["loader", "server"]


def pinned(kind: Kind) -> tuple[str, list[str]]:
    """The package and its requirements, as the list of this kind pins them."""
    lines = (HERE / f"requirements-{kind}.txt").read_text().splitlines()
    pins = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    (package,) = [pin for pin in pins if pin.startswith(PACKAGE)]
    return package, [pin for pin in pins if pin != package]


def environment(kind: Kind, say: Callable[[str], None]) -> Path:
    """The folder of an environment that is whole; makes it when it is not there."""
    package, requirements = pinned(kind)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256("\n".join([version, package, *requirements]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pannier-tests"
    folder = cache / f"open-webui-{kind}-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "whole").exists():
            return folder
        say(f"making an environment for {package} ({kind}) in {folder}, once; some minutes")
        began = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        _program([sys.executable, "-m", "venv", str(folder)], say)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _program([*install, "--no-deps", package], say)
        _program([*install, *requirements], say)
        (folder / "whole").touch()
        say(f"made in {time.monotonic() - began:.0f} s")
    return folder


def _program(command: list[str], say: Callable[[str], None]) -> None:
    """Runs a program to its end, and says now and then that it still does."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        while True:
            try:
                said, _ = process.communicate(timeout=TELL_S)
                break
            except subprocess.TimeoutExpired:
                elapsed = time.monotonic() - began
                say(f"  still installing, {elapsed:.0f} s")
                if elapsed > LONGEST_INSTALL_S:
                    raise
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:5])} …\n{said}")

"""`learned.toml` in the state folder: what loads took, kept from one run to the next.

The file is ours alone and can be lost without harm: the next load is measured again. So nothing
about it is an error. A damaged one is set aside, for whoever wants to know what happened, one of
another version is passed over, and what cannot be written is only remembered until the end.

Must not: be held by two; it lives in the locked state folder, and the service's learner owns it.
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from pannier.devices.inventory import Device
from pannier.fleet.store import atomic_write
from pannier.gguf.arguments import arguments_of
from pannier.gguf.footprint.values import Footprint
from pannier.gguf.learned import Key, Learned, decode, device_identity, digest, encode
from pannier.gguf.measured import Measurement
from pannier.gguf.model_files import ModelFiles
from pannier.render.argv import Launch

log = logging.getLogger("pannier.fleet")

FILE = "learned.toml"

_LARGEST = 16 * 1024 * 1024
"""Far beyond the bound of `Learned`; a larger file is not ours."""

_HEAD = 256 * 1024
"""Bytes of each part that its identity reads: the metadata, and of most models all tensor names."""


class LearnedStore:
    """The learned loads of one state folder: a value in memory, and the file behind it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.notes: tuple[str, ...] = ()
        self.learned = self._read()

    def remember(
        self,
        key: Key,
        took: Measurement,
        *,
        architecture: str = "",
        estimate: Footprint | None = None,
    ) -> bool:
        """One load more, written at once; false when only memory has it. Blocks: not for a loop."""
        self.learned = self.learned.remember(
            key, took, architecture=architecture, estimate=estimate
        )
        try:
            atomic_write(self.path, encode(self.learned))
        except OSError as error:
            log.warning("%s cannot be written: %s", self.path, error.strerror or error)
            return False
        return True

    def _read(self) -> Learned:
        try:
            with self.path.open("rb") as file:
                content = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return Learned()
        except OSError as error:
            self._note(f"{self.path} cannot be read ({error.strerror or error}): loads are learned")
            return Learned()
        try:
            if len(content) > _LARGEST:
                raise ValueError(f"larger than {_LARGEST} bytes")
            found = decode(content)
        except ValueError as error:
            self._set_aside(error)
            return Learned()
        if found is None:
            self._note(f"{self.path} was written by another version of Pannier: begun anew")
            return Learned()
        return found

    def _set_aside(self, error: ValueError) -> None:
        aside = self.path.with_name(f"{FILE}.damaged")
        with contextlib.suppress(OSError):
            self.path.replace(aside)
        self._note(f"{self.path} was damaged and is now {aside.name}; begun anew: {error}")

    def _note(self, words: str) -> None:
        self.notes = (*self.notes, words)
        log.warning("%s", words)


def key_of(launch: Launch, files: ModelFiles, devices: Sequence[Device], build: str) -> Key:
    """The key of a launch: the same for whoever measures and for whoever asks.

    `devices` are those of the launch in the order of its split, `build` is the version that the
    engine tells. Reads the head of every file: not for a loop. Raises OSError for one that is gone.
    """
    return Key(
        build=build,
        files=files_identity(files),
        arguments=arguments_of(launch.argv, launch.env),
        devices=tuple(
            device_identity(uuid=each.uuid, label=each.label, name=each.name, total=each.total)
            for each in devices
        ),
    )


def parts_of(files: ModelFiles) -> tuple[str, ...]:
    """Every file that a load of this model reads."""
    draft = files.draft_shards or ((files.draft,) if files.draft else ())
    projector = (files.projector,) if files.projector else ()
    return (*(files.shards or (files.path,)), *projector, *draft)


def files_identity(files: ModelFiles) -> str:
    """What stands for the content of these files: sizes, times of change, and their heads.

    Names are left out, so that a model that moved is recognised. Raises OSError.
    """
    texts: list[str] = []
    for part in parts_of(files):
        with open(part, "rb") as file:  # noqa: PTH123  no Path for each of many parts
            status = os.fstat(file.fileno())
            head = file.read(_HEAD)
        texts.append(f"{status.st_size} {status.st_mtime_ns} {digest([head.hex()])}")
    return digest(texts)

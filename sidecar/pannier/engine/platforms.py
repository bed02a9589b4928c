"""What this machine is, and which build of the programs suits it.

`look` reads the machine once; everything else is a function of the `Machine` that it returns, so
that each platform can be tested on any other. Two questions have two answers: which release archive
to take (it only needs the drivers), and which backend to build (it needs the tools of the vendor).

Must not: start a program, or promise that a build works: a program is started once before it is
trusted.
"""

import ctypes.util
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec

Backend = Literal["cpu", "cuda", "hip", "vulkan", "metal"]
BACKENDS: tuple[str, ...] = get_args(Backend)

_PACKAGES = {
    "debian": "sudo apt install build-essential",
    "fedora": "sudo dnf install gcc-c++ make",
    "rhel": "sudo dnf install gcc-c++ make",
    "arch": "sudo pacman -S base-devel",
    "suse": "sudo zypper install gcc-c++ make",
    "alpine": "sudo apk add build-base",
}


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which build suits this machine; paths are None where there is none."""

    system: str = "linux"
    arch: str = "x64"
    distribution: tuple[str, ...] = ()
    nvidia: bool = False
    nvcc: str | None = None
    hipcc: str | None = None
    gpu_node: bool = False
    vulkan_loader: bool = False
    vulkan_sdk: bool = False
    avx2: bool = True
    compiler: str | None = None
    make: str | None = None
    go: str | None = None


def look(environ: Mapping[str, str] = os.environ) -> Machine:
    """Look at this machine."""
    path = environ.get("PATH", os.defpath)

    def tool(*names: str | None) -> str | None:
        return next((found for n in names if n and (found := shutil.which(n, path=path))), None)

    system = {"darwin": "macos"}.get(platform.system().lower(), platform.system().lower())
    arch = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    headers = (Path(environ.get("VULKAN_SDK", "/usr")) / "include", Path("/usr/include"))
    return Machine(
        system=system,
        arch=arch,
        distribution=_distribution(),
        nvidia=Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists(),
        nvcc=tool(environ.get("CUDACXX"), "nvcc", "/usr/local/cuda/bin/nvcc"),
        hipcc=tool("hipcc", "/opt/rocm/bin/hipcc"),
        gpu_node=any(Path("/dev/dri").glob("renderD*")) if Path("/dev/dri").is_dir() else False,
        vulkan_loader=ctypes.util.find_library("vulkan") is not None,
        vulkan_sdk=tool("glslc") is not None
        and any((folder / "vulkan" / "vulkan.h").exists() for folder in headers),
        avx2=_has_avx2(),
        compiler=tool(environ.get("CXX"), "c++", "g++", "clang++"),
        make=tool("make", "ninja"),
        go=tool("go", "/usr/local/go/bin/go"),
    )


def release_backend(machine: Machine) -> Backend:
    """The backend of the release archive that suits *machine*."""
    built = build_backend(machine)
    if built == "cpu" and machine.vulkan_loader and (machine.nvidia or machine.gpu_node):
        # A card without its vendor's compiler: Vulkan reaches it through the driver that is there.
        return "vulkan"
    return built


def build_backend(machine: Machine) -> Backend:
    """The backend that can be built on *machine*."""
    if machine.system == "macos":
        return "metal" if machine.arch == "arm64" else "cpu"
    if machine.nvidia and machine.nvcc:
        return "cuda"
    if machine.hipcc and machine.gpu_node:
        return "hip"
    return "vulkan" if machine.vulkan_sdk and machine.gpu_node else "cpu"


def llama_asset(names: Iterable[str], tag: str, machine: Machine, backend: Backend) -> str | None:
    """Which of the *names* of a llama.cpp release suits; None where there is none."""
    place = {"linux": "ubuntu", "macos": "macos", "windows": "win"}.get(machine.system)
    if place is None or (machine.system == "macos" and (backend == "metal") != _is_apple(machine)):
        return None
    variant = {
        "cpu": r"(?:cpu-)?",
        "metal": "",
        "vulkan": "vulkan-",
        "hip": r"(?:rocm|hip)-[\w.]+-",
        "cuda": r"cuda-[\w.]+-",
    }[backend]
    wanted = re.compile(
        rf"llama-{re.escape(tag)}-bin-{place}-{variant}{machine.arch}\.(?:tar\.gz|zip)"
    )
    fitting = [name for name in names if wanted.fullmatch(name)]
    # Several versions of one vendor's runtime: the newest; a number sorts as a number.
    return max(fitting, key=_by_number, default=None)


def swap_asset(version: str, machine: Machine) -> str | None:
    """The name of the llama-swap archive that suits; None where there is none."""
    system = {"linux": "linux", "macos": "darwin", "windows": "windows", "freebsd": "freebsd"}.get(
        machine.system
    )
    arch = {"x64": "amd64", "arm64": "arm64"}.get(machine.arch)
    if system is None or arch is None:
        return None
    return f"llama-swap_{version}_{system}_{arch}.{'zip' if system == 'windows' else 'tar.gz'}"


def compiler_hint(machine: Machine) -> str:
    """The line to type that brings a C++ compiler."""
    if machine.system == "macos":
        return "xcode-select --install"
    for name in machine.distribution:
        if name in _PACKAGES:
            return _PACKAGES[name]
    return "install a C++ compiler and make with the system's package tool"


def _is_apple(machine: Machine) -> bool:
    return machine.system == "macos" and machine.arch == "arm64"


def _by_number(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name))


def _distribution() -> tuple[str, ...]:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ()
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return tuple("suse" if "suse" in name else name for name in names if name)


def _has_avx2() -> bool:
    try:
        return "avx2" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True

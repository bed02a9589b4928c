"""Reading config.toml off a real disk: half a file is waited for, no file is a problem."""

import asyncio
import os

import pytest

from pannier.config.read_file import read_keys, read_now, read_settled
from pannier.config.schema import Server
from pannier.errors import ConfigError

PATIENCE = 10.0
KEY = "k" * 16


def problem_of(error):
    (problem,) = error.value.problems
    return problem


async def test_a_file_that_stands_still_is_read(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"a = 1\n")
    assert await asyncio.wait_for(read_settled(path), PATIENCE) == b"a = 1\n"


async def test_a_slow_writer_is_waited_for(tmp_path):
    path = tmp_path / "config.toml"
    lines = [b"[server]\n", b'listen = "127.0.0.1:1"\n', b"[models.a]\n", b'path = "a"\n']

    async def write() -> None:
        with path.open("wb", buffering=0) as file:
            for line in lines:
                file.write(line)
                await asyncio.sleep(0.03)

    writer = asyncio.create_task(write())
    await asyncio.sleep(0)
    assert await asyncio.wait_for(read_settled(path), PATIENCE) == b"".join(lines)
    await writer


async def test_a_writer_that_never_ends_does_not_hold_the_reader_for_ever(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"")
    stop = asyncio.Event()

    async def write() -> None:
        with path.open("ab", buffering=0) as file:
            while not stop.is_set():
                file.write(b"# more\n")
                await asyncio.sleep(0.005)

    writer = asyncio.create_task(write())
    assert await asyncio.wait_for(read_settled(path), PATIENCE)
    stop.set()
    await writer


@pytest.mark.parametrize("settled", [True, False])
async def test_a_missing_file_is_a_problem_with_the_way_out(tmp_path, settled):
    path = tmp_path / "config.toml"
    with pytest.raises(ConfigError) as error:
        await read_settled(path) if settled else read_now(path)
    problem = problem_of(error)
    assert problem.code == "missing"
    assert "No such file" in problem.message
    assert "pannier init" in problem.hint


async def test_a_file_that_stays_missing_is_told_soon(tmp_path):
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ConfigError):
        await read_settled(tmp_path / "config.toml")
    assert loop.time() - began < 1.0, "two equal answers are enough, also when there is no file"


async def test_a_file_that_is_moved_away_for_a_moment_is_no_missing_file(tmp_path):
    path = tmp_path / "config.toml"
    reading = asyncio.create_task(read_settled(path))
    await asyncio.sleep(0.02)
    path.write_bytes(b"a = 1\n")
    assert await asyncio.wait_for(reading, PATIENCE) == b"a = 1\n"


@pytest.mark.parametrize("settled", [True, False])
async def test_a_folder_is_a_problem_of_its_own(tmp_path, settled):
    with pytest.raises(ConfigError) as error:
        await read_settled(tmp_path) if settled else read_now(tmp_path)
    assert problem_of(error).code == "unreadable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_problem(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"")
    path.chmod(0)
    with pytest.raises(ConfigError) as error:
        read_now(path)
    assert problem_of(error).code == "unreadable"


def test_a_file_that_is_no_config_is_not_read_whole(tmp_path):
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    content = read_now(path)
    assert len(content) < 4 << 20


# --- key files ------------------------------------------------------------------------------------


def test_without_key_files_there_are_no_keys(tmp_path):
    assert read_keys(Server(), tmp_path) == ((), ())


def test_keys_stand_one_a_line_with_comments_and_blank_lines(tmp_path):
    (tmp_path / "keys").write_text(f"# clients\n\n  {KEY}1  \n{KEY}2\r\n")
    found = read_keys(Server(api_key_file="keys"), tmp_path)
    assert found == ((f"{KEY}1", f"{KEY}2"), ())


def test_admins_have_a_file_of_their_own(tmp_path):
    (tmp_path / "clients").write_text(KEY)
    (tmp_path / "admins").write_text("a" * 20)
    server = Server(api_key_file="clients", admin_key_file=str(tmp_path / "admins"))
    assert read_keys(server, tmp_path) == ((KEY,), ("a" * 20,))


def test_a_byte_order_mark_is_no_part_of_a_key(tmp_path):
    (tmp_path / "keys").write_text(KEY, encoding="utf-8-sig")
    assert read_keys(Server(api_key_file="keys"), tmp_path)[0] == (KEY,)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "holds no key"),
        (b"# only a comment\n", "holds no key"),
        (b"short\n", "less than 16"),
        (b"\xff" * 20, "UTF-8"),
    ],
)
def test_a_key_file_that_is_of_no_use_names_its_key_and_shows_none(tmp_path, content, says):
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_keys(Server(api_key_file="keys"), tmp_path)
    problem = problem_of(error)
    assert (problem.code, problem.where) == ("key-file", "server.api_key_file")
    assert says in problem.message
    assert "short" not in problem.message
    assert "0xff" not in problem.message


def test_both_key_files_are_reported_at_once(tmp_path):
    with pytest.raises(ConfigError) as error:
        read_keys(Server(api_key_file="a", admin_key_file="~nobody-of-that-name/b"), tmp_path)
    assert [problem.where for problem in error.value.problems] == [
        "server.api_key_file",
        "server.admin_key_file",
    ]

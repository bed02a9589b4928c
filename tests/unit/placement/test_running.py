"""Who is asked for what runs: the address of the config, as it is reached from this machine."""

import socket
import threading

import pytest

from pannier.config.schema import Server
from pannier.placement.running import ask_running


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_where_nobody_listens_there_is_nothing_to_say(tmp_path, host):
    found = ask_running(Server(listen=f"{host}:{free_port()}"), tmp_path)
    assert (found.view, found.note) == (None, None)


def test_a_port_that_the_system_chooses_is_not_asked(tmp_path):
    found = ask_running(Server(listen="127.0.0.1:0"), tmp_path)
    assert (found.view, found.note) == (None, None)


def test_all_addresses_are_reached_over_loopback(tmp_path):
    found = ask_running(Server(listen=f"0.0.0.0:{free_port()}"), tmp_path)
    assert (found.view, found.note) == (None, None)


def test_one_that_speaks_something_else_is_a_note(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer():
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        found = ask_running(Server(listen=address), tmp_path)
        thread.join()
    assert found.view is None
    assert address in found.note

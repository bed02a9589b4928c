"""Ports: below what the kernel lends to others, never twice, and an error when there is none."""

import socket

import pytest

from pannier.errors import HostError
from pannier.fleet import ports
from pannier.fleet.ports import LOWEST, Ports, ephemeral_start, is_free


def test_ports_are_below_those_of_outgoing_connections():
    given = Ports()
    taken = [given.take() for _ in range(50)]
    assert all(LOWEST <= port < ephemeral_start() for port in taken)


def test_no_port_is_given_twice_while_it_is_in_use():
    given = Ports()
    taken = [given.take() for _ in range(300)]
    assert len(set(taken)) == 300


@pytest.fixture
def one_port(tmp_path, monkeypatch):
    """A machine on which one port alone is left below the kernel's own."""
    probe = Ports().take()
    monkeypatch.setattr(ports, "LOWEST", probe)
    monkeypatch.setattr(ports, "ephemeral_start", lambda: probe + 1)
    return probe


def test_a_port_that_was_given_back_is_given_again(one_port, monkeypatch):
    monkeypatch.setattr(ports, "LOWEST", one_port - 1)
    given = Ports()
    first, second = sorted([given.take(), given.take()])
    with pytest.raises(HostError):
        given.take()
    given.give_back(first)
    assert given.take() == first
    given.give_back(first, second)
    assert sorted([given.take(), given.take()]) == [first, second]


def test_a_port_on_which_another_program_listens_is_not_given(one_port, monkeypatch):
    monkeypatch.setattr(ports, "LOWEST", one_port - 1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", one_port))
        other.listen()
        assert not is_free(one_port)
        assert Ports().take() == one_port - 1
        with socket.socket() as everywhere:
            everywhere.bind(("0.0.0.0", one_port - 1))
            everywhere.listen()
            with pytest.raises(HostError, match="no free port found"):
                Ports().take()


def test_a_port_whose_last_connection_lingers_is_free():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # it closes first, so it is the one that lingers
            client.recv(1)
    assert is_free(port)


@pytest.mark.parametrize("text", ["", "many few", "\0"])
def test_a_setting_that_cannot_be_read_has_the_usual_value(tmp_path, text):
    setting = tmp_path / "range"
    assert ephemeral_start(setting) == 32768
    setting.write_text(text)
    assert ephemeral_start(setting) == 32768
    setting.write_text("20000\t60999\n")
    assert ephemeral_start(setting) == 20000


def test_a_machine_that_lends_nearly_all_ports_has_the_upper_ones_left(monkeypatch):
    monkeypatch.setattr(ports, "ephemeral_start", lambda: 1024)
    assert Ports().take() >= LOWEST

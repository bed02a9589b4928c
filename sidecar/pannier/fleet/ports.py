"""Hands out ports for the servers that Pannier starts.

Chosen below the kernel's ephemeral range, so that no outgoing connection takes one between the
choice and the bind (llama-swap binds late), bind-tested, and never given out twice while in use
(spec SC-14).

Must not: promise. A foreign program can take any port at any moment; the load then fails with the
engine's own words and the next start gets another.
"""

import random
import socket
from pathlib import Path

from pannier.errors import HostError
from pannier.render.flags import HOST_ADDRESS

LOWEST = 10000
_EPHEMERAL_START = 32768
_TRIES = 400


def ephemeral_start(
    setting: Path = Path("/proc/sys/net/ipv4/ip_local_port_range"),
) -> int:
    """The first port that the kernel gives to outgoing connections."""
    try:
        return int(setting.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL_START


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST_ADDRESS, port))
        except OSError:
            return False
    return True


class Ports:
    """The ports in use by one fleet; the hosts of its groups take them and give them back."""

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def take(self) -> int:
        """A port that is free now. Raises HostError when none is found."""
        highest = ephemeral_start() - 1
        if highest <= LOWEST:
            highest = 65535
        for _ in range(_TRIES):
            port = random.randint(LOWEST, highest)  # noqa: S311  not a secret, only spread out
            if port not in self._taken and is_free(port):
                self._taken.add(port)
                return port
        raise HostError(
            f"no free port found between {LOWEST} and {highest}",
            hint="see which programs listen with `ss -ltnp`",
        )

    def give_back(self, *ports: int) -> None:
        """Ports whose servers are gone."""
        self._taken.difference_update(ports)

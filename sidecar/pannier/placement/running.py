"""Asks the Pannier that listens where a config says for its placement.

A plan made beside it is to know what runs, what of each device our own engines hold, and what it
would change. One question, two seconds at most, on the address of the config alone; whatever is
wrong with the answer is a note, as the plan can be made without it.

Must not: start anything, or ask for more than `GET /v1/placement`.
"""

import http.client
from pathlib import Path

import msgspec

from pannier.config.read_file import read_keys
from pannier.config.schema import Server, split_listen
from pannier.errors import ConfigError
from pannier.plan.view import View

_SECONDS = 2.0
_LARGEST = 16 << 20
"""Bytes of an answer; a hundred models on eight devices take about 200,000."""

_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where an address that means all of them is reached from the same machine."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What was found at the address: the view of it, or why there is none."""

    address: str
    view: View | None = None
    note: str | None = None


def ask_running(server: Server, base: Path) -> Running:
    """The placement of the Pannier that runs; blocks. Never raises for what it finds there."""
    host, port = split_listen(server.listen)
    found = Running(address=server.listen)
    if not port:  # it is another one at every start
        return found
    try:
        status, body = _get(_HERE.get(host, host), port, _key(server, base))
    except ConnectionRefusedError:
        return found
    except (OSError, http.client.HTTPException) as error:
        return _without(found, getattr(error, "strerror", None) or str(error) or "no answer")
    if status == 401:
        return _without(found, "it takes none of the keys of this config")
    if status != 200:
        return _without(found, f"it answers with {status}")
    try:
        return msgspec.structs.replace(found, view=msgspec.json.decode(body, type=View))
    except msgspec.MsgspecError:
        return _without(found, "it answers as no Pannier of this version does")


def _without(found: Running, why: str) -> Running:
    note = f"what listens on {found.address} was not compared with: {why}"
    return msgspec.structs.replace(found, note=note)


def _key(server: Server, base: Path) -> str | None:
    try:
        clients, admins = read_keys(server, base)
    except ConfigError:
        return None
    return next(iter((*admins, *clients)), None)


def _get(host: str, port: int, key: str | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    headers = {"Accept": "application/json", "Connection": "close"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request("GET", "/v1/placement", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(_LARGEST)
    finally:
        connection.close()

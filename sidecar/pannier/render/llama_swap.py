"""group -> the config of its llama-swap: one JSON document, which is valid YAML. Pure.

The same bytes are a group's identity on both hosts: two plans agree about a group exactly when they
render it alike. For the identity the ports and the key, which are new at every start, are left
out (`identity`). Everything llama-swap would do beside running commands is switched off: Pannier
does it, for both hosts alike.

Must not: invent a port (spec SC-4) or use any of llama-swap's own: its `${PORT}`, `localhost`,
preload hook and loading text.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence

import msgspec

from pannier.render.argv import Launch
from pannier.render.flags import HOST_ADDRESS, PORT_FLAG
from pannier.render.quoting import command_line, unrenderable

GROUP_NAME = "pannier"
"""Not `(default)`, which llama-swap overwrites (SC-12)."""

UNLOAD_TIMEOUT_S = 15
"""Longer than the launcher takes to stop an engine, so that llama-swap never kills a launcher."""

NO_LIMIT = 1_000_000
"""concurrencyLimit: llama-swap's default of 10 counts requests that wait for a load (SC-3)."""


class GroupLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it is started: its members' launches, each behind its launcher.

    The identity is the digest by which an edit is found to change the group or not.
    """

    id: str
    swap: bool
    launches: tuple[Launch, ...]
    identity: str

    def launch(self, instance: str) -> Launch:
        """The launch of a member; KeyError when it is none."""
        for launch in self.launches:
            if launch.instance == instance:
                return launch
        raise KeyError(instance)


def group_launch(
    group_id: str, launches: Sequence[Launch], *, swap: bool, host: str, launcher: Sequence[str]
) -> GroupLaunch:
    """The launch of a group on a kind of host. Raises ValueError for what cannot be rendered."""
    behind = {
        launch.instance: (*launcher, "--instance", launch.instance, "--") for launch in launches
    }
    wrapped = tuple(
        msgspec.structs.replace(launch, argv=(*behind[launch.instance], *launch.argv))
        for launch in launches
    )
    unnamed = GroupLaunch(id=group_id, swap=swap, launches=wrapped, identity="")
    ports = dict.fromkeys(behind, 0)
    material = host.encode() + b"\0" + render(unnamed, ports, key="-")
    # What only Pannier acts on is part of a group too.
    material += msgspec.json.encode([(launch.ttl_s, launch.preload) for launch in wrapped])
    return msgspec.structs.replace(unnamed, identity=hashlib.sha256(material).hexdigest())


def command(launch: Launch, port: int) -> tuple[str, ...]:
    """The argv of a launch on a port: the port comes last (SC-6)."""
    return (*launch.argv, PORT_FLAG, str(port))


def render(
    group: GroupLaunch, ports: Mapping[str, int], *, key: str, windows: bool = False
) -> bytes:
    """The config file of the llama-swap that runs this group.

    Raises KeyError for a member without a port and ValueError for what cannot be quoted.
    """
    members = [launch.instance for launch in group.launches]
    document = {
        "healthCheckTimeout": max(
            (launch.load_timeout_s for launch in group.launches), default=600
        ),
        "unloadTimeout": UNLOAD_TIMEOUT_S,
        "logLevel": "info",
        "sendLoadingState": False,
        "captureBuffer": 0,
        "performance": {"disabled": True},
        "apiKeys": [key],
        "models": {
            launch.instance: _model(launch, ports[launch.instance], windows)
            for launch in group.launches
        },
        "groups": {
            GROUP_NAME: {
                "swap": group.swap,
                "exclusive": False,
                "persistent": True,
                "members": members,
            }
        },
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _model(launch: Launch, port: int, windows: bool) -> dict[str, object]:
    entry: dict[str, object] = {
        "cmd": command_line(command(launch, port), windows=windows),
        "proxy": f"http://{HOST_ADDRESS}:{port}",
        "ttl": math.ceil(launch.ttl_s),
        "concurrencyLimit": NO_LIMIT,
    }
    if launch.env:
        entry["env"] = [_variable(name, value) for name, value in sorted(launch.env.items())]
    return entry


def _variable(name: str, value: str) -> str:
    reason = unrenderable(value)
    if reason:
        raise ValueError(f"the environment variable {name} {reason}")
    return f"{name}={value}"

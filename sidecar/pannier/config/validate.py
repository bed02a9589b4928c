"""The rules of config.toml that one value alone cannot tell.

Each rule is a small function over the typed config; it names the key to change, what was found,
what is allowed and, where it is not plain, the way out. Types, ranges and required keys are not
here: the schema has them.

Must not: look at the machine (whether a file, a device or a host exists is the plan's business, and
changes while the file does not).
"""

import re
from collections.abc import Callable, Iterator
from typing import get_args

from pannier.config.address import (
    check_host_name,
    check_origin,
    check_url,
    is_loopback,
    split_endpoint,
    split_listen,
)
from pannier.config.findings import Findings
from pannier.config.locate import Path
from pannier.config.names import check_names
from pannier.config.schema import Config, KvPair, Model, Placement, Role
from pannier.config.shape import quote
from pannier.errors import Problem

_OWN_FLAGS = {
    "--port": "Pannier picks the port",
    "--host": "models listen on 127.0.0.1 only; clients come in through server.listen",
    "-m": 'set "path" instead',
    "--model": 'set "path" instead',
    "-a": 'set "aliases" instead',
    "--alias": 'set "aliases" instead',
}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLAIN_KV_TYPES = ("f32", "f16", "bf16")


def validate(config: Config, findings: Findings) -> list[Problem]:
    """All problems of a config: those found while it was read, and those of the rules."""
    _check_server(config, findings)
    _check_args(config.engine.args, ("engine", "args"), findings)
    _check_env(config.engine.env, ("engine", "env"), findings)
    _check_each(config.engine.rpc, ("engine", "rpc"), split_endpoint, findings)
    check_names(config, findings)
    for name, model in config.models.items():
        _check_model(model, ("models", name), findings)
    for target, placement in config.placement.items():
        _check_target(config, target, findings)
        _check_placement(placement, ("placement", target), findings)
    for name, peer in config.peers.items():
        _check(peer.url, ("peers", name, "url"), check_url, findings)
    return findings.problems()


def _check_server(config: Config, findings: Findings) -> None:
    server, path = config.server, ("server", "listen")
    _check_each(server.allowed_hosts, ("server", "allowed_hosts"), check_host_name, findings)
    _check_each(server.allowed_origins, ("server", "allowed_origins"), check_origin, findings)
    if not _check(server.listen, path, split_listen, findings):
        return
    if server.api_key_file is None and not is_loopback(split_listen(server.listen)[0]):
        findings.add(
            "no-api-key",
            path,
            f"{quote(server.listen)} can be reached from other machines, and there is no "
            "server.api_key_file",
            'set server.api_key_file, or listen on loopback ("127.0.0.1:8484")',
            needs=[("server", "api_key_file")],
        )


def _check_model(model: Model, path: Path, findings: Findings) -> None:
    if model.context is not None and model.context < model.min_context:
        findings.add(
            "conflict",
            (*path, "context"),
            f"context {model.context} is below min_context {model.min_context}",
            "lower min_context or raise context",
            needs=[(*path, "min_context")],
        )
    if model.ubatch > model.batch:
        findings.add(
            "conflict",
            (*path, "ubatch"),
            f"ubatch {model.ubatch} is above batch {model.batch}",
            "lower ubatch or raise batch",
            needs=[(*path, "batch")],
        )
    _check_kv_type(model, path, findings)
    if model.draft is not None and model.role in ("embed", "rerank"):
        findings.add(
            "conflict",
            (*path, "draft"),
            f'a model with role "{model.role}" writes no text, so nothing can be drafted for it',
            "leave draft out",
        )
    _check_args(model.args, (*path, "args"), findings)
    _check_env(model.env, (*path, "env"), findings)


def _check_kv_type(model: Model, path: Path, findings: Findings) -> None:
    place: Path = (*path, "kv_type")
    value_type = model.kv_type
    if isinstance(value_type, KvPair):
        place, value_type = (*place, "v"), value_type.v
    if model.flash_attention == "off" and value_type not in _PLAIN_KV_TYPES:
        findings.add(
            "conflict",
            place,
            f'values of the KV cache as "{value_type}" need flash attention, which is "off"',
            'set flash_attention to "auto", or the values to f16, bf16 or f32',
        )


def _check_args(args: tuple[str, ...], path: Path, findings: Findings) -> None:
    for number, arg in enumerate(args):
        place = (*path, number)
        flag = arg.partition("=")[0]
        if flag in _OWN_FLAGS:
            findings.add("own-flag", place, f'"{flag}" is set by Pannier', _OWN_FLAGS[flag])
        elif arg.startswith("#"):
            message = f'an argument must not begin with "#", found {quote(arg)}'
            findings.add("bad-arg", place, message, "llama-swap would take it for a comment")


def _check_env(env: dict[str, str], path: Path, findings: Findings) -> None:
    for name in env:
        if not _ENV_NAME.fullmatch(name):
            message = "expected a variable name of letters, digits and _, with no digit first"
            findings.add("bad-name", (*path, name), f"{message}, found {quote(name)}")


def _check_target(config: Config, target: str, findings: Findings) -> None:
    roles = get_args(Role)
    if target in config.models or target in roles:
        return
    owner = next((name for name, m in config.models.items() if target in m.aliases), None)
    hint = f"it is an alias; write the id {quote(owner)}" if owner is not None else None
    hint = hint or findings.nearest(target, [*roles, *config.models])
    message = f"expected a role ({', '.join(roles)}) or the id of a model, found {quote(target)}"
    findings.add("unknown-target", ("placement", target), message, hint, needs=[("models",)])


def _check_placement(placement: Placement, path: Path, findings: Findings) -> None:
    first: dict[int | str, Path] = {}
    for number, device in enumerate(placement.devices):
        place = (*path, "devices", number)
        if isinstance(device, str) and re.fullmatch(r"[0-9]+", device, re.ASCII):
            message = f"expected an index without quotes or a label, found text {quote(device)}"
            findings.add("bad-device", place, message, f"write {device}")
        elif device in first:
            shown = quote(device) if isinstance(device, str) else device
            message = f"the device {shown} is listed twice"
            findings.add("duplicate", place, message, needs=[first[device]])
        first.setdefault(device, place)
    shares = placement.tensor_split
    if shares is not None and len(shares) != len(placement.devices):
        findings.add(
            "conflict",
            (*path, "tensor_split"),
            f"expected one share for each of the {len(placement.devices)} devices, "
            f"found {len(shares)}",
            "a device that shall hold nothing is left out of devices",
            needs=[(*path, "devices")],
        )


def _check(text: str, path: Path, check: Callable[[str], object], findings: Findings) -> bool:
    """Apply a check that raises ValueError; whether it passed."""
    try:
        check(text)
    except ValueError as error:
        findings.add("bad-address", path, f"{error}, found {quote(text)}")
        return False
    return True


def _check_each(
    texts: tuple[str, ...], path: Path, check: Callable[[str], object], findings: Findings
) -> None:
    for place, text in _places(texts, path):
        _check(text, place, check, findings)


def _places(texts: tuple[str, ...], path: Path) -> Iterator[tuple[Path, str]]:
    for number, text in enumerate(texts):
        yield (*path, number), text

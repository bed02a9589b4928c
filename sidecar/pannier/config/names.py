"""Names that clients send: model ids, aliases and peers. Each means one thing only.

A request carries nothing but a name, so two owners of one name would make the answer a matter of
chance. Names also travel in URLs, in comma-separated headers and in llama-swap's own config, and
the id of a replica is the id of its model with "#1" behind it.

Must not: change a name. What the person wrote is what clients see.
"""

import re
from collections.abc import Iterator

import msgspec

from pannier.config.findings import Findings
from pannier.config.locate import Path
from pannier.config.schema import Config
from pannier.config.shape import quote

MAX_LENGTH = 128
_REPLICA = re.compile(r"#[0-9]+\Z", re.ASCII)


class _Name(msgspec.Struct, frozen=True):
    text: str
    path: Path
    owner: str


def check_names(config: Config, findings: Findings) -> None:
    """Find names that cannot be used, and names with two owners (reported at the second one)."""
    names = sorted(_names(config), key=lambda name: findings.line(name.path) or 0)
    first: dict[str, _Name] = {}
    for name in names:
        message = _fault(name.text)
        if message is not None:
            findings.add("bad-name", name.path, message)
        earlier = first.setdefault(name.text, name)
        if earlier is not name:
            line = findings.line(earlier.path)
            place = f" (line {line})" if line is not None else ""
            findings.add(
                "duplicate",
                name.path,
                f"{quote(name.text)} is {name.owner}, but already {earlier.owner}{place}",
                "a name that clients send can mean one thing only",
                needs=[earlier.path],
            )


def _names(config: Config) -> Iterator[_Name]:
    for model_id, model in config.models.items():
        path: Path = ("models", model_id)
        yield _Name(model_id, path, f"the id of model {quote(model_id)}")
        for number, alias in enumerate(model.aliases):
            yield _Name(alias, (*path, "aliases", number), f"an alias of {quote(model_id)}")
    for peer in config.peers:
        yield _Name(peer, ("peers", peer), f"the name of peer {quote(peer)}")


def _fault(name: str) -> str | None:
    """Why a name cannot be used; control characters and "${" are refused in all text already."""
    found = quote(name)
    if not name or name != name.strip():
        return f"a name must not be empty or begin or end with a space, found {found}"
    if len(name) > MAX_LENGTH:
        return f"a name has at most {MAX_LENGTH} characters, found {len(name)}"
    if "," in name or "\\" in name:
        return f'a name must not hold "," or "\\", found {found}'
    if name.startswith("/"):
        return f'a name must not begin with "/", found {found}'
    if _REPLICA.search(name):
        return f'a name must not end in "#" and a number (that is a replica), found {found}'
    return None

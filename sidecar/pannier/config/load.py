"""From the bytes of config.toml to a `Config`, or to all of its problems at once.

Three steps, each of which can only be taken when the one before it worked: bytes to text, text to
plain values (the standard TOML parser), plain values to structs. The rules that compare values are
checked in the same go, so that one look at the output shows everything there is to mend.

Must not: read the file, or accept one that an editor was caught writing: a file without any key is
refused, as stopping every model must not be what a half-saved file means.
"""

import re
import tomllib
from typing import Any

import msgspec

from pannier.config.findings import Findings
from pannier.config.locate import key_lines
from pannier.config.read import read_table
from pannier.config.schema import Config
from pannier.config.validate import validate
from pannier.errors import ConfigError, Problem

MAX_BYTES = 1024 * 1024
_MAX_DOTS = 256  # the parser takes quadratic time over the dots of a dotted key
_BOM = b"\xef\xbb\xbf"
_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_PLAIN_WORDS = {
    "Cannot overwrite a value": "this key is set twice",
    "Cannot mutate immutable namespace": "this table is already complete and cannot be added to",
    "Invalid value": "no value, or not a TOML value (text needs quotes)",
    "Invalid statement": 'expected key = value, [table] or "# comment"',
}


def parse(data: bytes) -> Config:
    """Read the content of config.toml. Raises ConfigError with all its problems."""
    text = _text(data)
    tree = _tree(text)
    if not tree:
        raise _refusal(
            "empty",
            "the file is empty",
            hint="for a fleet without models write at least one table, such as [server]",
        )
    try:
        findings = Findings(key_lines(text))
    except RecursionError:
        raise _too_deep() from None
    config: Config = read_table(Config, tree, (), findings)
    config = _lower_min_context(config, tree)
    found = validate(config, findings)
    if found:
        raise ConfigError(found)
    return config


def _text(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        message = f"the file has more than 1 MiB ({MAX_BYTES} bytes), the most that is read"
        raise _refusal("too-large", message)
    data = data.removeprefix(_BOM)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"expected UTF-8, found the byte 0x{data[error.start]:02X}"
        raise _refusal("encoding", message, line=line, hint="save the file as UTF-8") from None


def _tree(text: str) -> dict[str, Any]:
    for number, row in enumerate(text.split("\n"), start=1):
        if row.count(".") > _MAX_DOTS and not row.lstrip().startswith("#"):
            message = f"expected at most {_MAX_DOTS} dots in a line, found {row.count('.')}"
            raise _refusal("syntax", message, line=number)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), text) from None
    except ValueError:  # a number with more digits than Python converts
        message = "not valid TOML: a number has too many digits"
        raise _refusal("syntax", message, line=_longest_number(text)) from None


def _syntax_error(message: str, text: str) -> ConfigError:
    match = _PLACE.fullmatch(message)
    words = match[1] if match else message
    words = _PLAIN_WORDS.get(words, words[:1].lower() + words[1:])
    if match is None or match[2] is None:
        last = text.rstrip("\r\n").count("\n") + 1
        return _refusal("syntax", f"not valid TOML: {words}, at the end of the file", line=last)
    return _refusal("syntax", f"not valid TOML: {words} (column {match[3]})", line=int(match[2]))


def _longest_number(text: str) -> int:
    digits = max(re.finditer(r"[0-9_]+", text), key=lambda found: len(found.group()))
    return text.count("\n", 0, digits.start()) + 1


def _lower_min_context(config: Config, tree: dict[str, Any]) -> Config:
    """A small context lowers the default floor: whoever asks for 2048 tokens wants 2048."""
    models = {}
    for name, model in config.models.items():
        written = tree["models"][name]
        if model.context is not None and "min_context" not in written:
            floor = min(model.min_context, model.context)
            model = msgspec.structs.replace(model, min_context=floor)
        models[name] = model
    return msgspec.structs.replace(config, models=models)


def _too_deep() -> ConfigError:
    return _refusal("syntax", "lists or inline tables are nested too deep")


def _refusal(
    code: str, message: str, *, line: int | None = None, hint: str | None = None
) -> ConfigError:
    return ConfigError([Problem(code=code, where="", line=line, message=message, hint=hint)])

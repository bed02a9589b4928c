"""The JSON Schema and the example, as the reader and as a real TOML editor see them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import pannier.config
from pannier.config import schema
from pannier.config.load import parse
from pannier.config.schema import Config, KvPair, schema_json

EXAMPLE = Path(pannier.config.__file__).with_name("example.toml")
SECTIONS = {
    "server": schema.Server,
    "engine": schema.Engine,
    "memory": schema.Memory,
    "models": schema.Model,
    "placement": schema.Placement,
    "peers": schema.Peer,
}
LATER_KEYWORDS = {
    "$defs", "$ref", "prefixItems", "unevaluatedProperties", "dependentRequired", "$anchor",
}  # fmt: skip


def nodes(value):
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def test_the_sections_of_the_schema_are_those_of_the_config():
    assert set(SECTIONS) == {field.name for field in msgspec.structs.fields(Config)}


def test_every_key_has_a_description_for_editors():
    properties = [node["properties"] for node in nodes(json.loads(schema_json()))
                  if isinstance(node.get("properties"), dict)]  # fmt: skip
    assert len(properties) == 8
    assert [key for table in properties for key in table if not table[key].get("description")] == []


def test_tables_with_fixed_keys_are_closed_and_maps_are_open():
    document = json.loads(schema_json())
    assert document["additionalProperties"] is False
    for name in ("server", "engine", "memory"):
        assert document["properties"][name]["additionalProperties"] is False
    model = document["properties"]["models"]["additionalProperties"]
    assert model["additionalProperties"] is False
    assert model["required"] == ["path"]
    assert model["properties"]["env"]["additionalProperties"] == {"type": "string"}


def test_only_keywords_of_draft_07_are_used():
    document = json.loads(schema_json())
    assert document["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert document["title"]
    assert not [node for node in nodes(document) if LATER_KEYWORDS & set(node)]


def test_alternatives_ranges_and_defaults_are_in_the_schema():
    properties = json.loads(schema_json())["properties"]
    model = properties["models"]["additionalProperties"]["properties"]
    assert model["slots"] == {
        "type": "integer", "minimum": 1, "maximum": 256, "default": 1,
        "description": "Requests that are answered at the same time.",
    }  # fmt: skip
    assert model["role"]["enum"] == ["chat", "vision", "embed", "rerank"]
    assert model["gpu_layers"]["anyOf"][1] == {"type": "integer", "minimum": 0, "maximum": 10000}
    assert model["kv_type"]["anyOf"][1]["required"] == [field.name for field in
                                                        msgspec.structs.fields(KvPair)]  # fmt: skip
    assert model["ttl"]["default"] == "0s"
    reserve = properties["memory"]["properties"]["reserve"]
    assert reserve["default"] == "512MiB"
    assert re.search(reserve["anyOf"][0]["pattern"], "1.5GiB")
    assert not re.search(reserve["anyOf"][0]["pattern"], "512")


def test_the_schema_is_the_same_bytes_each_time():
    assert schema_json() == schema_json()
    assert schema_json().endswith(b"}\n")


def test_the_example_is_a_valid_config():
    config = parse(EXAMPLE.read_bytes())
    assert config.models["qwen3-8b"].role == "chat"


def test_the_example_names_the_schema_in_its_first_line():
    assert EXAMPLE.read_text().splitlines()[0] == "#:schema ./config.schema.json"


@pytest.mark.parametrize("section", SECTIONS)
def test_the_example_shows_every_key(section):
    text = EXAMPLE.read_text()
    start = re.search(rf"(?m)^(# )?\[{section}[.\]]", text)
    end = re.search(r"(?m)^# ----", text[start.end() :])
    part = text[start.start() : start.end() + end.start() if end else len(text)]
    keys = [field.name for field in msgspec.structs.fields(SECTIONS[section])]
    assert [key for key in keys if not re.search(rf"(?m)^(# )?{key} = ", part)] == []


def uncommented(section):
    """The example with the commented keys of one section switched on, the first of each."""
    seen, lines = set(), []
    current = ""
    for line in EXAMPLE.read_text().splitlines():
        bare = line.removeprefix("# ")
        header = re.match(r"\[([a-z]+)", bare)
        current = header[1] if header else current
        key = re.match(r"([a-z_]+) = ", bare)
        if header and current == section and bare.startswith(f"[{section}.bge"):
            current = ""
        if current == section and (header or (key and key[1] not in seen)):
            seen.add(key[1] if key else "")
            lines.append(bare)
        elif not line.startswith("#") and not (current == section and key):
            lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_value_that_the_example_shows_is_valid(section):
    config = parse(uncommented(section).encode())
    assert getattr(config, section) != {}


def test_a_default_that_the_example_shows_is_the_default():
    examples = {"role", "path", "context", "draft", "aliases", "args", "env"}
    model = parse(uncommented("models").encode()).models["qwen3-8b"]
    for field in msgspec.structs.fields(schema.Model):
        if field.name not in examples:
            assert getattr(model, field.name) == field.default, field.name


def taplo(tmp_path, text):
    """What a real editor's engine says about a file, with nothing but the schema beside it."""
    (tmp_path / "schema.json").write_bytes(schema_json())
    file = tmp_path / "config.toml"
    file.write_text(text)
    command = [
        str(Path(sys.executable).with_name("taplo")), "lint", "--no-auto-config",
        "--colors", "never", "--schema", (tmp_path / "schema.json").as_uri(), str(file),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("section", ["", *SECTIONS])
def test_taplo_accepts_the_example(tmp_path, section):
    result = taplo(tmp_path, uncommented(section) if section else EXAMPLE.read_text())
    assert (result.returncode, result.stderr.count("error")) == (0, 0), result.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('[engine]\nhots = "auto"', "'hots' was unexpected"),
        ('[engine]\nhost = "docker"', '"docker" is not one of'),
        ('[models.a]\npath = "x"\nslots = 0', "0 is less than the minimum of 1"),
        ('[models.a]\nrole = "chat"', '"path" is a required property'),
        ("[models.a]\npath = 'x'\nttl = '5 minutes'", "does not match"),
        ("[memory]\nreserve = 512", "is not valid under any"),
    ],
)
def test_taplo_finds_what_the_reader_refuses(tmp_path, line, words):
    result = taplo(tmp_path, line)
    assert result.returncode != 0
    assert words in result.stderr

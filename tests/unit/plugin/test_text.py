"""The text of the plugin: what a reviewer and Open WebUI's loader rely on."""

import ast
import json
import re
import sys

import pytest
from tests.unit.plugin.stand_in import PLUGIN

import pannier
from pannier.config.load import parse

TEXT = PLUGIN.read_text()
README = PLUGIN.with_name("README.md").read_text()


def test_it_is_under_300_lines():
    assert len(TEXT.splitlines()) < 300


def test_its_header_begins_in_the_first_line():
    assert TEXT.splitlines()[0] == '"""'
    assert TEXT.splitlines()[1].startswith("title: ")


@pytest.mark.parametrize("text", ["execute", "from utils", "from apps", "from main", "from config"])
def test_neither_code_for_the_page_nor_what_the_import_rewriting_would_change(text):
    assert text not in TEXT


def test_it_asks_for_no_packages():
    assert "requirements:" not in TEXT


def test_it_imports_what_open_webui_ships_and_nothing_of_it_at_import_time():
    top = [
        name.split(".")[0]
        for node in ast.parse(TEXT).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [a.name for a in node.names]
        )
    ]
    assert set(top) - set(sys.stdlib_module_names) == {"aiohttp", "pydantic"}


def test_only_two_kinds_of_events_are_ever_sent():
    sent = [
        node.args[0].value
        for node in ast.walk(ast.parse(TEXT))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "_send"
    ]
    assert set(sent) == {"status", "embeds"}


def test_it_has_no_toggle_and_only_an_inlet(plugin):
    assert not hasattr(plugin.Filter(), "toggle")
    assert not hasattr(plugin.Filter, "outlet")
    assert not hasattr(plugin.Filter, "stream")
    assert not hasattr(plugin.Filter, "UserValves")


def test_the_key_is_a_password_field_and_the_style_a_choice(plugin):
    fields = plugin.Filter.Valves.model_json_schema()["properties"]

    assert fields["api_key"]["input"] == {"type": "password"}
    assert fields["style"]["enum"] == ["line", "card"]


def test_the_readme_lists_every_valve_with_its_default(plugin):
    for name, field in plugin.Filter.Valves.model_fields.items():
        shown = {True: "on", "": "empty"}.get(field.default, f"{field.default}")
        assert f"| `{name}` | {shown} |" in README, name


def test_the_config_and_the_header_of_the_readme_fit_together():
    (config,) = re.findall(r"^```toml\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    (headers,) = re.findall(r"^```json\n(.*?)^```", README, re.DOTALL | re.MULTILINE)

    header = parse(config.encode()).server.event_header
    assert json.loads(headers) == {header: "{{MESSAGE_ID}}"}


def test_the_version_is_that_of_the_package():
    assert f"\nversion: {pannier.__version__}\n" in TEXT

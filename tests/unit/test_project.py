"""The rules of the project that a machine can check: sizes, docstrings, layers, types, lint.

The last four run the same tools that a developer runs, so that `pytest` alone is the whole gate.
"""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pannier.config.load import parse

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "sidecar" / "pannier").rglob("*.py"))
PLAIN = [module for module in MODULES if module.name not in ("__init__.py", "__main__.py")]
TOOLS = Path(sys.executable).parent
LONGEST_MODULE = 500
LONGEST_FUNCTION = 50


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_there_are_modules_to_look_at():
    assert len(PLAIN) > 40


@pytest.mark.parametrize("module", MODULES, ids=shown)
def test_a_module_says_what_it_is_for(module):
    assert ast.get_docstring(ast.parse(module.read_text())), f"{shown(module)} has no docstring"


@pytest.mark.parametrize("module", PLAIN, ids=shown)
def test_a_module_says_why_it_is_so_in_three_lines_at_least(module):
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    assert len(docstring.splitlines()) >= 3


@pytest.mark.parametrize("module", MODULES, ids=shown)
def test_no_module_is_over_500_lines(module):
    assert len(module.read_text().splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("module", MODULES, ids=shown)
def test_no_function_is_over_50_lines(module):
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1}"
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert long == []


def test_every_dependency_has_its_reason_beside_it():
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    start = lines.index("dependencies = [")
    block = lines[start + 1 : lines.index("]", start)]
    reasoned = False
    for line in block:
        if line.strip().startswith("#"):
            reasoned = True
            continue
        assert reasoned, f"no reason stands above {line.strip()}"
        reasoned = False


def test_every_ignored_lint_rule_has_its_reason_beside_it():
    text = (ROOT / "pyproject.toml").read_text()
    ignored = text[text.index("\nignore = [") :].partition("\n]")[0].splitlines()[2:]
    assert ignored
    assert all("#" in line for line in ignored)


def test_the_toml_of_the_readme_is_a_config_that_is_accepted():
    found = blocks((ROOT / "README.md").read_text(), "toml")
    assert found, "the README shows no config"
    for block in found:
        parse(block.encode())


def test_the_version_is_said_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]


@pytest.mark.timeout(320)
@pytest.mark.parametrize(
    "command",
    [
        ["lint-imports", "--no-logo"],
        ["mypy"],
        ["ruff", "check"],
        ["ruff", "format", "--check"],
    ],
    ids=" ".join,
)
def test_the_tool_finds_nothing(command):
    program = TOOLS / command[0]
    assert program.exists(), f"{command[0]} is not installed: pip install -e .[test]"
    ended = subprocess.run(
        [str(program), *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

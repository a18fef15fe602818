"""The walks of docs/flows.md go through functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/flows.md").read_text()
STATIONS = re.findall(r"^\| `([\w/]+\.py)` \| (.*?) \|", PAGE, re.MULTILINE)


def defined(file):
    """Returns the names of functions, classes, methods and values of a module of the package."""
    names = set()
    for node in ast.parse((ROOT / "stillbox" / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{inner.name}" for inner in node.body if hasattr(inner, "name")}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("file", sorted({file for file, _ in STATIONS}))
def test_each_station_is_in_its_file(file):
    words = {
        word for name, cell in STATIONS if name == file for word in re.findall(r"`(.*?)`", cell)
    }
    assert words <= defined(file)


def test_the_page_has_eight_walks():
    assert len(re.findall(r"^## ", PAGE, re.MULTILINE)) == 8


def test_a_value_has_its_name_at_each_station_from_the_file_to_the_mathematics():
    walk = PAGE.partition("## From `matched_threshold`")[2].partition("\n## ")[0]
    files = [
        file for file, _ in re.findall(r"^\| `([\w/]+/(boxes|matchers)\.py)`", walk, re.MULTILINE)
    ]
    assert len(files) == 3  # reader, schema, matcher
    for file in files:
        assert "matched_threshold" in (ROOT / "stillbox" / file).read_text()

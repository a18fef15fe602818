"""What people have, in each format: the table of docs/data.md, cell by cell."""

import re
from pathlib import Path

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records.folder import convert_folder
from tests.records.situations import (
    FORMATS,
    HEIGHT,
    SITUATIONS,
    STEMS,
    WIDTH,
    box_of,
    pictures,
)
from tests.records.test_folder import examples

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
HEADING = "## What each reader does"


def table() -> dict[tuple[str, str], str]:
    """The cells of the table by situation and format."""
    lines = PAGE.read_text().partition(HEADING)[2].splitlines()
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if line.startswith("|")]
    header, _, *body = rows
    assert header[1:] == list(FORMATS)
    return {
        (row[0], name): cell for row in body for name, cell in zip(header[1:], row[1:], strict=True)
    }


CELLS = table()


def test_the_table_has_every_situation():
    assert list(dict.fromkeys(situation for situation, _ in CELLS)) == list(SITUATIONS)


def outcome(root, tmp_path) -> str:
    try:
        converted = convert_folder(root, tmp_path / "out")
    except UserError as error:
        assert not (tmp_path / "out").exists()
        assert error.fix
        return "stops"
    both = examples(converted) | examples(converted, "validation")
    by_stem = {Path(name).stem.lower(): example for name, example in both.items()}
    right = [stem for number, stem in enumerate(STEMS) if has_box(by_stem.get(stem), number)]
    said = converted.problems
    if len(by_stem) < len(STEMS):
        assert len(right) == len(by_stem)
        assert said
        return "left out"
    if len(right) < len(STEMS):
        assert any("background" in problem for problem in said)
        assert converted.boxes == len(right)
        return "background"
    return "said" if said else "read"


def has_box(example, number) -> bool:
    expected = np.array(box_of(number)) / (2 * [HEIGHT, WIDTH])
    return example is not None and any(
        np.allclose(box, expected, atol=1e-4) for box in example.boxes
    )


@pytest.mark.parametrize(("situation", "name"), CELLS)
def test_a_situation(tmp_path, situation, name):
    root = tmp_path / "set"
    pictures(root)
    SITUATIONS[situation](root, FORMATS[name])
    assert outcome(root, tmp_path) == CELLS[situation, name]


def test_names_of_classes_are_the_characters_of_the_file(tmp_path):
    for name, write in FORMATS.items():
        root = tmp_path / name
        pictures(root)
        SITUATIONS["classes `yes`, `010`, `~`, `12:30`"](root, write)
        converted = convert_folder(root, tmp_path / f"{name} out")
        assert sorted(converted.classes) == sorted(("yes", "no", "010", "1.10", "~", "12:30")), name


def test_a_box_that_stands_three_times_is_kept_once(tmp_path):
    for name, write in FORMATS.items():
        root = tmp_path / name
        pictures(root)
        SITUATIONS["the same box three times"](root, write)
        converted = convert_folder(root, tmp_path / f"{name} out")
        assert converted.boxes == len(STEMS), name

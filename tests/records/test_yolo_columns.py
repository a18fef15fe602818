"""More columns than YOLO's five: their meaning by the whole set, or a refusal that counts them."""

import numpy as np
import pytest

from stillbox.records.folder import convert_folder
from stillbox.records.folder_content import FolderOptions
from tests.helpers import refused
from tests.records.builders import put
from tests.records.situations import STEMS, pictures
from tests.records.test_folder import examples

# Centre and size in fractions.
BOXES = [(0.3 + 0.05 * n, 0.4 + 0.03 * n, 0.2, 0.25) for n in range(6)]


def converted(tmp_path, lines, names="[cat, dog]", **options):
    root = tmp_path / "set"
    pictures(root)
    put(root, "data.yaml", f"path: .\nnames: {names}\n")
    for stem, line in zip(STEMS, lines, strict=True):
        put(root, f"labels/{stem}.txt", line + "\n")
    result = convert_folder(root, tmp_path / "out", FolderOptions(**options))
    return result, examples(result) | examples(result, "validation")


def line(*values):
    return " ".join(f"{value:g}" for value in values)


def assert_boxes(read):
    for stem, (x, y, w, h) in zip(STEMS, BOXES, strict=True):
        expected = [y - h / 2, x - w / 2, y + h / 2, x + w / 2]
        np.testing.assert_allclose(read[f"{stem}.png"].boxes, [expected], atol=1e-5)


def around(n):
    """Four corners of the box, as points."""
    x, y, w, h = BOXES[n]
    return [x - w / 2, y - h / 2, x + w / 2, y - h / 2, x + w / 2, y + h / 2, x - w / 2, y + h / 2]


def visible(n):
    points = around(n)
    return [value for k in range(4) for value in (*points[2 * k : 2 * k + 2], 2)]


SAID = {
    "confidence": (lambda n: [0, *BOXES[n], 0.5], "column 6 is a confidence"),
    "confidence and track": (lambda n: [0, *BOXES[n], 0.5, n], "a confidence and a track"),
    "one object, one track": (lambda n: [0, *BOXES[n], 0.5, 1], "a confidence and a track"),
    "lost tracks": (lambda n: [0, *BOXES[n], 0.5, *[n] * (n % 2)], "a confidence and a track"),
    "keypoints": (lambda n: [0, *BOXES[n], *around(n)], "columns 6 to 13 are keypoints"),
    "visibility": (lambda n: [0, *BOXES[n], *visible(n)], "keypoints with visibility"),
    "one keypoint": (lambda n: [0, *BOXES[n], *BOXES[n][:2], 1], "keypoints with visibility"),
}


@pytest.mark.parametrize("case", SAID)
def test_columns_with_one_meaning_are_passed_over_and_said(tmp_path, case):
    values, said = SAID[case]
    result, read = converted(tmp_path, [line(*values(n)) for n in range(6)])
    assert_boxes(read)
    assert any(said in problem for problem in result.problems)


OUTLINES = {
    "oriented boxes": lambda n: [0, *around(n)],
    "six points": lambda n: [0, *around(n), *around(n)[:4]],
    "boxes among outlines": lambda n: [0, *(BOXES[n] if n % 2 else around(n))],
    "triangles among outlines": lambda n: [0, *around(n)[: 6 if n % 2 else 8]],
}


@pytest.mark.parametrize("case", OUTLINES)
def test_outlines_become_the_boxes_around_them(tmp_path, case):
    result, read = converted(tmp_path, [line(*OUTLINES[case](n)) for n in range(6)])
    assert_boxes(read)
    assert not any("passed over" in problem for problem in result.problems)


REFUSED = {
    "6 columns": lambda n: [0, *BOXES[n], 17.5],
    "7 columns": lambda n: [0, *BOXES[n], 0.5, 0.5],
    "8 columns": lambda n: [0, *BOXES[n], 0.5, 0.5, 7],
    "3 lines of 6 columns": lambda n: [0, *BOXES[n], *[0.5] * (n % 2)],
    "10 columns": lambda n: [0, *BOXES[n], 1, 2, 3, 4, 5],
}


@pytest.mark.parametrize("case", REFUSED)
def test_columns_without_a_meaning_are_counted_and_refused(tmp_path, case):
    with refused(None, case, 5):
        converted(tmp_path, [line(*REFUSED[case](n)) for n in range(6)])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "spell",
    [
        lambda text: text.replace(" ", ", "),
        lambda text: text.replace(" ", ","),
        lambda text: text.replace(" ", ";"),
        lambda text: text.replace(" ", "\t").replace("0\t", "0.0\t", 1),
        lambda text: text.replace(".", ","),
        lambda text: f"\n  {text}  ",
        lambda text: text.replace("0 ", "0e0 ", 1),
    ],
)
def test_lines_of_other_writers_are_read(tmp_path, spell):
    result, read = converted(tmp_path, [spell(line(0, *BOXES[n])) for n in range(6)])
    assert_boxes(read)
    assert result.problems == () or all("no image to score" in p for p in result.problems)


def test_classes_that_are_numbered_from_1_stop(tmp_path):
    with refused(None, 1, 2, 0):
        converted(tmp_path, [line(1 + n % 2, *BOXES[n]) for n in range(6)])
    # A class without a box may be the first.
    result, _ = converted(tmp_path, [line(1, *BOXES[n]) for n in range(6)])
    assert result.boxes == 6


def test_a_label_file_of_something_else_leaves_its_image_out(tmp_path):
    lines = [line(0, *box) for box in BOXES[:5]] + ["a cat on a mat"]
    result, read = converted(tmp_path, lines)
    assert "p5.png" not in read
    said = "labels/p5.txt:1: 'a cat on a mat'"
    assert any("label file is not YOLO" in p and said in p for p in result.problems)

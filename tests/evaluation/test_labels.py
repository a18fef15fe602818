"""Where labels lie, how large they are, and in which font."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from stillbox.evaluation import fonts
from stillbox.evaluation.fonts import clipped, has_glyphs, load_font, text_width
from stillbox.evaluation.labels import Labels, draw_labels
from stillbox.evaluation.pictures import draw_marks, result_marks
from tests.evaluation.builders import result

RED, BLUE = (200, 0, 0), (0, 0, 200)
SIZE = (400, 300)


def placed(*boxes, size=SIZE, others=()):
    """Returns left, top, right, bottom of the labels at boxes among others."""
    labels = Labels(size, [*boxes, *others], pad=3, largest=20)
    for box in boxes:
        labels.place(box, "cat", RED)
    return [label.place for label in labels.placed]


def drawn(box):
    """Returns left, top, right and bottom (the last two excluded) of the label at a box."""
    labels = Labels(SIZE, [box], pad=3, largest=20)
    labels.place(box, "cat", RED)
    canvas = Image.new("RGB", SIZE, (128, 128, 128))
    draw_labels(ImageDraw.Draw(canvas), labels.placed, pad=3)
    rows, columns = np.nonzero((np.asarray(canvas) == RED).all(axis=2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def test_a_label_stands_on_its_box():
    left, _, _, bottom = drawn((100, 100, 300, 200))
    assert left == 100
    assert bottom in (100, 101)


def test_a_label_without_room_above_lies_inside():
    _, top, _, _ = drawn((100, 5, 300, 200))
    assert top == 5


def test_a_second_label_at_the_same_box_lies_inside_and_a_third_below():
    box = (100, 100, 300, 200)
    assert [place[1] for place in placed(box, box, box)][1:] == [100, 201]


@pytest.mark.parametrize("box", [(380, 290, 399, 299), (0, 0, 3, 3), (0, 295, 399, 299)])
def test_no_label_runs_over_the_edge(box):
    left, top, right, bottom = drawn(box)
    assert 0 <= left < right <= 401
    assert 0 <= top < bottom <= 301


def test_a_small_box_has_a_small_label():
    _, top, _, bottom = drawn((100, 100, 300, 200))
    _, small_top, _, small_bottom = drawn((100, 100, 110, 110))
    assert 0.5 < (small_bottom - small_top) / (bottom - top) < 0.75


def shared(place, box):
    sides = [min(place[i + 2], box[i + 2]) - max(place[i], box[i]) for i in (0, 1)]
    return max(sides[0], 0) * max(sides[1], 0)


def test_no_label_hides_a_small_object():
    rng = np.random.default_rng(0)
    corners = rng.integers(0, (770, 570), (60, 2))
    boxes = [(x, y, x + 25, y + 25) for x, y in corners.tolist()]
    places = placed(*boxes, (100, 100, 700, 500), size=(800, 600))
    assert len(places) > 50
    assert not any(shared(place, box) for place in places for box in boxes)


def test_a_small_object_above_moves_the_label_of_a_large_one():
    small = (100, 70, 120, 90)
    (place,) = placed((100, 100, 300, 250), others=[small])
    assert not shared(place, small)
    (usual,) = placed((100, 100, 300, 250))
    assert shared(usual, small)


def test_a_label_away_from_its_box_has_a_line_to_it():
    box = (200, 150, 215, 165)
    # Small objects all around leave no place beside the box.
    around = [(x, y, x + 20, y + 20) for x in range(120, 300, 22) for y in (125, 150, 175)]
    labels = Labels(SIZE, [box, *around], pad=3, largest=20)
    labels.place(box, "cat", RED)
    (label,) = labels.placed
    assert label.leader is not None
    x, y = label.leader[2:]
    assert 200 <= x <= 215
    assert 150 <= y <= 165


def test_where_every_place_hides_a_small_object_there_is_no_label():
    boxes = [(x, y, x + 18, y + 18) for x in range(0, 400, 20) for y in range(0, 300, 20)]
    assert placed(*boxes[:1], others=boxes) == []


def test_a_long_text_is_cut_with_dots():
    short = clipped("a very long name of a class", 20, 80)
    assert short.endswith("...")
    assert load_font(20).getlength(short) <= 80
    assert clipped("cat", 20, 80) == "cat"


def test_a_text_gets_a_font_with_its_glyphs_or_none(monkeypatch):
    assert load_font(12, "\u0401\u0436").getname()[0] == "DejaVu Sans"  # Cyrillic
    # A machine without fonts has none for Linear B.
    monkeypatch.setattr(fonts, "_system_fonts", tuple)
    assert not has_glyphs("\U00010000 cat")
    assert has_glyphs("cat")


def test_a_name_without_glyphs_is_drawn_as_a_number(monkeypatch):
    monkeypatch.setattr(fonts, "_system_fonts", tuple)
    fonts.font_file.cache_clear()
    gray = np.full((300, 400, 3), 128, np.uint8)
    found = result("1", [[50, 50, 250, 350]], [0.9], [7])
    unknown = draw_marks(gray, result_marks(found, {7: "\U00010000"}))
    number = draw_marks(gray, result_marks(found, {7: "class 7"}))
    assert np.array_equal(unknown, number)


def test_widths_are_estimated_for_all_scripts():
    assert text_width("\u732b", 20) == pytest.approx(21)  # as wide as high
    # A mark above a letter takes no room of its own.
    assert text_width("e\u0301", 20) == text_width("\u00e9", 20)

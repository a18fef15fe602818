"""Boxes drawn on images; where labels lie, how large they are, and in which font."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from stillbox.errors import UserError
from stillbox.evaluation import drawing, pictures
from stillbox.evaluation.drawing import (
    PALETTE,
    Labels,
    class_color,
    clipped,
    css,
    draw_labels,
    has_glyphs,
    load_font,
    text_color,
    text_width,
)
from tests.evaluation.builders import result, truth
from tests.helpers import refused

GRAY = np.full((450, 600, 3), 128, np.uint8)
RED = (255, 0, 0)


def mark(box, text="cat", **fields):
    return pictures.Mark(box=box, text=text, color=RED, **fields)


def test_a_box_is_outlined_where_it_is_and_the_image_is_left_alone():
    before = GRAY.copy()
    drawn = pictures.draw_marks(GRAY, [mark((100, 200, 300, 400))])
    assert np.array_equal(GRAY, before)
    assert drawn.shape == GRAY.shape
    for row, column in ((100, 300), (299, 300), (200, 200), (200, 399)):
        assert tuple(drawn[row, column]) == RED
    assert (drawn[150:250, 250:350] == 128).all()
    # Two pixels outside the right edge nothing is painted.
    assert (drawn[150:250, 402:] == 128).all()


def test_no_boxes_change_nothing():
    assert np.array_equal(pictures.draw_marks(GRAY, []), GRAY)


@pytest.mark.parametrize(
    "box", [(0, 0, 450, 600), (-50, -50, 20, 20), (440, 590, 500, 700), (7, 7, 7, 7), (9, 0, 8, 0)]
)
def test_labels_and_boxes_at_and_over_the_edge_are_drawn_inside(box):
    drawn = pictures.draw_marks(GRAY, [mark(box, text="a name of some length 0.99")])
    assert drawn.shape == GRAY.shape
    assert (drawn == RED).all(axis=2).sum() > 300


def test_a_label_too_long_for_the_image_is_shortened_and_not_cut_off():
    drawn = pictures.draw_marks(GRAY, [mark((200, 300, 250, 350), text="word " * 60)])
    painted = (drawn == RED).all(axis=2)
    # The label is nearly as wide as the image and ends at its edge, behind the last letter.
    rows = np.flatnonzero(painted.sum(axis=1) > 250)
    assert len(rows) > 5
    assert painted[rows][:, -2:].all()


def test_a_small_image_is_enlarged_so_that_its_labels_can_be_read():
    drawn = pictures.draw_marks(np.zeros((60, 100, 3), np.uint8), [mark((10, 20, 30, 40))])
    # 100 pixels need a factor of 5 to reach 420.
    assert drawn.shape == (300, 500, 3)
    assert max(drawn.shape) >= pictures.LEAST_SIDE
    assert tuple(drawn[50, 150]) == RED


def test_a_crowd_is_dashed():
    solid = pictures.draw_marks(GRAY, [mark((100, 100, 400, 500), text="")])
    dashed = pictures.draw_marks(GRAY, [mark((100, 100, 400, 500), text="", dashed=True)])
    full = (solid[150:350, 100] == RED).all(axis=1).mean()
    broken = (dashed[150:350, 100] == RED).all(axis=1).mean()
    assert full == 1.0
    assert 0.3 < broken < 0.7


def test_truth_marks_name_the_class_and_the_crowd():
    marks = pictures.truth_marks(
        truth("1", [[0, 0, 9, 9], [1, 1, 5, 5]], [1, 7], is_crowd=[True, False]), {1: "cat"}
    )
    assert [(m.text, m.dashed) for m in marks] == [("cat (crowd)", True), ("class 7", False)]
    assert marks[0].color == class_color(1)


def test_result_marks_are_the_best_with_the_best_on_top():
    detections = result("1", [[0, 0, 9, 9]] * 4, [0.6, 0.4, 0.9, 0.7], [1, 1, 2, 1])
    marks = pictures.result_marks(detections, {1: "cat", 2: "dog"}, min_score=0.5, max_boxes=2)
    assert [m.text for m in marks] == ["cat 0.70", "dog 0.90"]
    assert pictures.result_marks(detections, {}, min_score=0.95) == []


def test_a_difficult_box_says_so_and_labels_can_be_left_out():
    hard = truth("1", [[0, 0, 9, 9]], [1], is_difficult=[True])
    assert [m.text for m in pictures.truth_marks(hard, {1: "cat"})] == ["cat (difficult)"]
    bare = pictures.truth_marks(hard, {1: "cat"}, show_labels=False, color=(1, 2, 3))
    assert [(m.text, m.color) for m in bare] == [("", (1, 2, 3))]


@pytest.mark.parametrize(
    ("labels", "scores", "text"),
    [(True, True, "cat 0.70"), (True, False, "cat"), (False, True, "0.70"), (False, False, "")],
)
def test_labels_and_scores_can_be_left_out(labels, scores, text):
    detections = result("1", [[0, 0, 9, 9]], [0.7], [1])
    marks = pictures.result_marks(detections, {1: "cat"}, show_labels=labels, show_scores=scores)
    assert [m.text for m in marks] == [text]


def test_a_mark_without_text_has_no_label():
    box = (100, 100, 400, 500)
    labelled = pictures.draw_marks(GRAY, [mark(box, text="cat")])
    bare = pictures.draw_marks(GRAY, [mark(box, text="")])
    assert (labelled[60:95, 100:140] != 128).any()
    assert (bare[60:95, 100:140] == 128).all()


def test_beside_puts_pictures_of_any_height_in_a_row():
    drawn = pictures.beside(
        [GRAY, GRAY[:100, :80]], ["left", "a caption that is far too long " * 9]
    )
    assert drawn.shape[1] == 600 + 80 + 9


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_a_contact_sheet_holds_every_picture(count):
    sheet = pictures.contact_sheet([GRAY] * count, columns=4, cell=60, gap=5)
    columns, rows = min(count, 4), -(-count // 4)
    # 600 x 450 shrinks to 60 x 45.
    assert sheet.shape == (rows * 50 + 5, columns * 65 + 5, 3)
    assert (sheet == 128).all(axis=2).sum() == pytest.approx(count * 60 * 45, rel=0.01)


def test_pictures_are_written_whole_or_not_at_all(tmp_path):
    for name in ("deep/a.png", "b.jpg"):
        path = pictures.save_picture(GRAY, tmp_path / name)
        with Image.open(path) as image:
            assert image.size == (600, 450)
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["a.png", "b.jpg"]
    with pytest.raises(UserError, match=r"use \.png"):
        pictures.save_picture(GRAY, tmp_path / "c.bmp")


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("file/a.png"):
        pictures.save_picture(GRAY, tmp_path / "file" / "a.png")


def test_colours_repeat_only_after_the_palette_and_text_stands_out():
    assert class_color(1) == class_color(1 + len(PALETTE))
    assert len({class_color(i) for i in range(1, len(PALETTE) + 1)}) == len(PALETTE)
    assert (text_color((255, 255, 0)), text_color((20, 20, 90))) == ((0, 0, 0), (255, 255, 255))
    assert css((255, 0, 16)) == "#ff0010"


DARK_RED, DARK_BLUE = (200, 0, 0), (0, 0, 200)
SIZE = (400, 300)


def placed(*boxes, size=SIZE, others=()):
    """Returns left, top, right, bottom of the labels at boxes among others."""
    labels = Labels(size, [*boxes, *others], pad=3, largest=20)
    for box in boxes:
        labels.place(box, "cat", DARK_RED)
    return [label.place for label in labels.placed]


def drawn(box):
    """Returns left, top, right and bottom (the last two excluded) of the label at a box."""
    labels = Labels(SIZE, [box], pad=3, largest=20)
    labels.place(box, "cat", DARK_RED)
    canvas = Image.new("RGB", SIZE, (128, 128, 128))
    draw_labels(ImageDraw.Draw(canvas), labels.placed, pad=3)
    rows, columns = np.nonzero((np.asarray(canvas) == DARK_RED).all(axis=2))
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
    labels.place(box, "cat", DARK_RED)
    (label,) = labels.placed
    assert label.leader is not None
    x, y = label.leader[2:]
    assert 200 <= x <= 215
    assert 150 <= y <= 165


def test_a_label_is_left_out_if_every_place_hides_a_small_object():
    boxes = [(x, y, x + 18, y + 18) for x in range(0, 400, 20) for y in range(0, 300, 20)]
    assert placed(*boxes[:1], others=boxes) == []


def test_a_long_text_is_cut_with_dots():
    short = clipped("a very long name of a class", 20, 80)
    assert short.endswith("...")
    assert load_font(20).getlength(short) <= 80
    assert clipped("cat", 20, 80) == "cat"
    assert clipped("W", 20, 5) == "W..."


def test_a_very_long_text_is_measured_a_few_times(monkeypatch):
    measured = []
    monkeypatch.setattr(
        drawing, "text_width", lambda text, size: measured.append(text) or 10.0 * len(text)
    )
    assert clipped("x" * 10_000, 20, 80) == "xxxxx..."
    assert len(measured) < 20


def test_a_text_gets_a_font_with_its_glyphs_or_none(monkeypatch):
    assert load_font(12, "\u0401\u0436").getname()[0] == "DejaVu Sans"  # Cyrillic
    # A machine without fonts has none for Linear B.
    monkeypatch.setattr(drawing, "_system_fonts", tuple)
    assert not has_glyphs("\U00010000 cat")
    assert has_glyphs("cat")


def test_a_name_without_glyphs_is_drawn_as_a_number(monkeypatch):
    monkeypatch.setattr(drawing, "_system_fonts", tuple)
    drawing.font_file.cache_clear()
    gray = np.full((300, 400, 3), 128, np.uint8)
    detections = result("1", [[50, 50, 250, 350]], [0.9], [7])
    unknown = pictures.draw_marks(gray, pictures.result_marks(detections, {7: "\U00010000"}))
    number = pictures.draw_marks(gray, pictures.result_marks(detections, {7: "class 7"}))
    assert np.array_equal(unknown, number)


def test_widths_are_estimated_for_all_scripts():
    assert text_width("\u732b", 20) == pytest.approx(21)  # as wide as high
    # A mark above a letter takes no room of its own.
    assert text_width("e\u0301", 20) == text_width("\u00e9", 20)

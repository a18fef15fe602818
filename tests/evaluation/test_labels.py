"""Where labels lie, and how large they are."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from stillbox.evaluation.labels import Labels, load_font, shortened

RED, BLUE = (200, 0, 0), (0, 0, 200)


def draw(*boxes, size):
    """Returns a picture with a red label at the first box and a blue one at the second."""
    labels = Labels(size, pad=3, largest=20)
    for box, color in zip(boxes, (RED, BLUE), strict=False):
        labels.place(box, "cat", color)
    canvas = Image.new("RGB", size, (128, 128, 128))
    labels.draw(ImageDraw.Draw(canvas))
    return np.asarray(canvas)


def drawn(box):
    """Returns left, top, right and bottom (the last two excluded) of the label at a box."""
    rows, columns = np.nonzero((draw(box, size=(400, 300)) == RED).all(axis=2))
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
    labels = Labels((400, 300), pad=3, largest=20)
    for _ in range(3):
        labels.place(box, "cat", RED)
    assert [place[1] for place, *_ in labels._placed][1:] == [100, 201]


def test_the_first_of_two_labels_in_one_place_lies_on_top():
    picture = draw((0, 0, 60, 24), (0, 0, 60, 24), size=(60, 24))  # one label high
    assert (picture == RED).all(axis=2).any()
    assert not (picture == BLUE).all(axis=2).any()


@pytest.mark.parametrize("box", [(380, 290, 399, 299), (0, 0, 3, 3), (-5, 295, 500, 299)])
def test_no_label_runs_over_the_edge(box):
    left, top, right, bottom = drawn(box)
    assert 0 <= left < right <= 400
    assert 0 <= top < bottom <= 300


def test_a_small_box_has_a_small_label():
    _, top, _, bottom = drawn((100, 100, 300, 200))
    _, small_top, _, small_bottom = drawn((100, 100, 110, 110))
    assert 0.5 < (small_bottom - small_top) / (bottom - top) < 0.75


def test_a_long_text_is_cut_with_dots():
    font = load_font(20)
    short = shortened("a very long name of a class", 80, font)
    assert short.endswith("...")
    assert font.getlength(short) <= 80
    assert shortened("cat", 80, font) == "cat"

import numpy as np
import pytest

from stillbox.records import example as rules
from stillbox.records.example import apply_box_policy
from tests.records.builders import make_example

GOOD = [0.1, 0.2, 0.5, 0.6]
# stored box, reason, what `fix` makes of it (None: dropped); the image is 40 x 60 (height x width)
CASES = {
    "order of y": ([0.5, 0.2, 0.1, 0.6], rules.INVERTED, [0.1, 0.2, 0.5, 0.6]),
    "order of x": ([0.1, 0.6, 0.5, 0.2], rules.INVERTED, [0.1, 0.2, 0.5, 0.6]),
    "order of both": ([0.5, 0.6, 0.1, 0.2], rules.INVERTED, [0.1, 0.2, 0.5, 0.6]),
    "over the edge": ([-0.2, 0.2, 0.5, 1.3], rules.OUTSIDE, [0, 0.2, 0.5, 1]),
    "far off": ([0.1, 1.2, 0.5, 1.6], rules.WHOLLY_OUTSIDE, None),
    "at the edge": ([0.1, 1.0, 0.5, 1.6], rules.WHOLLY_OUTSIDE, None),
    "no height": ([0.3, 0.2, 0.3, 0.6], rules.NO_AREA, None),
    "a point": ([0.3, 0.2, 0.3, 0.2], rules.NO_AREA, None),
    "not a number": ([np.nan, 0.2, 0.3, 0.6], rules.NOT_A_NUMBER, None),
    "infinite": ([0.1, 0.2, np.inf, 0.6], rules.NOT_A_NUMBER, None),
    # 4/40, 12/60, 20/40, 36/60
    "pixels": ([4, 12, 20, 36], rules.IN_PIXELS, [0.1, 0.2, 0.5, 0.6]),
    "too many pixels": ([4, 12, 20, 300], rules.IN_PIXELS, None),
}


@pytest.mark.parametrize("name", CASES)
def test_fix(name):
    stored, reason, fixed = CASES[name]
    example, problems = apply_box_policy(make_example([GOOD, stored], [1, 2]), {}, "fix")
    expected = [GOOD] if fixed is None else [GOOD, fixed]
    np.testing.assert_allclose(example.boxes, np.array(expected, np.float32), atol=1e-7)
    assert example.class_ids.tolist() == [1, 2][: len(expected)]
    (problem,) = problems
    assert (problem.reason, problem.box) == (reason, 1)
    assert problem.action == ("dropped" if fixed is None else "fixed")
    assert "ymin" in problem.detail


@pytest.mark.parametrize("name", CASES)
def test_drop(name):
    stored, reason, _ = CASES[name]
    example, problems = apply_box_policy(make_example([stored, GOOD], [1, 2]), {}, "drop")
    np.testing.assert_array_equal(example.boxes, np.array([GOOD], np.float32))
    assert example.class_ids.tolist() == [2]
    assert [(p.reason, p.box, p.action) for p in problems] == [(reason, 0, "dropped")]


@pytest.mark.parametrize("name", CASES)
def test_fail_changes_nothing_and_names_the_first(name):
    stored, reason, _ = CASES[name]
    given = make_example([GOOD, stored], [1, 2])
    example, problems = apply_box_policy(given, {}, "fail")
    assert example is given
    assert [(p.reason, p.box, p.action) for p in problems] == [(reason, 1, "stopped")]


@pytest.mark.parametrize("policy", ["fix", "drop", "fail"])
def test_an_unknown_class_cannot_be_fixed(policy):
    given = make_example([GOOD, GOOD], [0, 2])
    example, problems = apply_box_policy(given, {0: "'cow'"}, policy)
    assert [(p.reason, p.box, p.detail) for p in problems] == [(rules.UNKNOWN_CLASS, 0, "'cow'")]
    assert example.class_ids.tolist() == ([0, 2] if policy == "fail" else [2])


@pytest.mark.parametrize("policy", ["fix", "drop", "fail"])
def test_sound_boxes_are_left_alone(policy):
    for boxes in ([], [[0, 0, 1, 1]], [GOOD, [0, 0, 1e-6, 1e-6]]):
        given = make_example(boxes, [1] * len(boxes))
        assert apply_box_policy(given, {}, policy) == (given, [])


def test_rounding_errors_are_clipped_without_a_report():
    given = make_example([[-1e-5, 0, 1.00001, 1]], [1])
    example, problems = apply_box_policy(given, {}, "fail")
    assert problems == []
    assert example.boxes.tolist() == [[0, 0, 1, 1]]


def test_several_faults_of_one_box_are_all_named():
    # Inverted, and outside once it is turned round.
    example, problems = apply_box_policy(make_example([[1.5, 0.2, 0.5, 0.6]], [1]), {}, "fix")
    np.testing.assert_allclose(example.boxes, [[0.5, 0.2, 1, 0.6]])
    assert [p.reason for p in problems] == [rules.INVERTED, rules.OUTSIDE]


def test_pixels_need_a_size():
    given = make_example([[4, 12, 20, 36]], [1], height=0, width=0)
    example, problems = apply_box_policy(given, {}, "fix")
    assert len(example.boxes) == 0
    assert problems[0].reason == rules.IN_PIXELS
    assert "the size is unknown" in problems[0].detail


def test_a_converter_has_no_pixels_left():
    given = make_example([[0.1, 0.2, 0.5, 2.6]], [1])
    _, problems = apply_box_policy(given, {}, "fix", pixels_possible=False)
    assert [p.reason for p in problems] == [rules.OUTSIDE]


def test_every_list_loses_the_same_boxes():
    count = 3
    given = make_example(
        [GOOD, [0.3, 0.3, 0.3, 0.3], GOOD],
        [1, 2, 1],
        weights=np.array([0.1, 0.2, 0.3], np.float32),
        is_crowd=np.array([True, True, False]),
        difficult=np.array([False, True, True]),
        truncated=np.array([True, False, False]),
        area=np.arange(count, dtype=np.float32),
    )
    example, _ = apply_box_policy(given, {}, "fix")
    np.testing.assert_allclose(example.weights, [0.1, 0.3])
    assert example.is_crowd.tolist() == [True, False]
    assert example.difficult.tolist() == [False, True]
    assert example.truncated.tolist() == [True, False]
    assert example.area.tolist() == [0, 2]


def test_random_boxes_come_out_sound():
    random = np.random.default_rng(0)
    boxes = random.choice(
        [np.nan, -np.inf, np.inf, -3, -1e-9, 0, 1e-9, 0.3, 0.5, 1, 1.0000001, 1.5, 30], (500, 4)
    )
    example, _ = apply_box_policy(make_example(boxes, [1] * 500), {}, "fix")
    low, high = example.boxes[:, :2], example.boxes[:, 2:]
    assert len(example.boxes)
    assert np.all((low >= 0) & (high <= 1) & (low < high))

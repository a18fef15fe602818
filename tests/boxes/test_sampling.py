"""The mask of the greatest values .

The balanced sampler beside the original's two forms, and the rows of a mask.
"""

from functools import partial

import jax
import numpy as np
import pytest

from stillbox.boxes.sampling import (
    balanced_sample,
    greedy_nms_mask,
    mine_hard_examples,
    select_rows,
    top_k_mask,
)
from tests.boxes import golden

masked = jax.jit(top_k_mask)


@pytest.mark.parametrize(
    "values, expected",
    [
        ([0.12, 0.33, 0.05, 1, 0.088], "01010"),
        ([-0.12, -0.33, -0.05, -1, -0.088], "00101"),
        # Of equal values the first.
        ([0.1, 0.1, 0.2, 0.1, 0.1], "10100"),
        ([-0.1, -0.1, -0.1, -0.1, -0.1], "11000"),
        # Zeros of both signs are equal, infinities are values like others.
        ([0.0, -0.0, 0.0, -1.0, -1.0], "11000"),
        ([-np.inf, np.inf, -np.inf, 3.0, 1e-45], "01010"),
    ],
)
def test_the_two_greatest_equal_the_published_test(values, expected):
    mask = masked(np.float32(values), np.int32(2))
    assert "".join(map(str, np.asarray(mask, int))) == expected


def test_each_row_has_its_own_k():
    values = np.float32([[3, 1, 2], [3, 1, 2], [3, 1, 2], [3, 1, 2]])
    marked = masked(values, np.int32([0, 1, 2, 7]))
    assert marked.tolist() == [
        [False, False, False],
        [True, False, False],
        [True, False, True],
        [True, True, True],
    ]


def test_random_rows_equal_a_stable_sort():
    rng = np.random.default_rng(0)
    # Two decimals, so that there are ties in every row.
    values = rng.normal(size=(20, 500)).round(2).astype(np.float32)
    k = rng.integers(0, 500, 20)
    marked = masked(values, k)
    for row, count, mask in zip(values, k, marked, strict=True):
        expected = np.zeros(500, bool)
        expected[np.argsort(-row, kind="stable")[:count]] = True
        assert (np.asarray(mask) == expected).all()


def test_the_best_two_boxes_of_each_class_equal_the_published_test():
    # From RetinaNet for TPU: of class 0 boxes 2 and 3, of class 1 boxes 1 and 3.
    scores = np.float32([[0.2, 0.2], [0.1, 0.9], [0.5, 0.1], [0.3, 0.5]])
    marked = np.asarray(top_k_mask(scores.T, np.array([2, 2])))
    assert [np.flatnonzero(row).tolist() for row in marked] == [[2, 3], [1, 3]]


GOLDEN = golden.load("boxes_sampling.json")
CASES = {case["name"]: case for case in GOLDEN["cases"]}
# What the goldens replace the original's shuffle with: an order of n things.
SHUFFLES = {
    "identity": np.arange,
    "reverse": lambda n: np.arange(n)[::-1],
    "rs0": lambda n: np.random.RandomState(0).permutation(n),
}
sample = jax.jit(balanced_sample, static_argnames=("size", "positive_fraction"))

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_shuffle = pytest.mark.parametrize("shuffle", SHUFFLES)


def sampled(case, priorities, candidates):
    options = {"size": case["batch_size"], "positive_fraction": case["positive_fraction"]}
    mask = sample(np.float32(priorities), candidates, np.array(case["labels"], bool), **options)
    return np.flatnonzero(mask).tolist()


@each_shuffle
@each_case
def test_the_sample_equals_the_originals_dynamic_form(case, shuffle):
    candidates, labels = np.array(case["indicator"], bool), np.array(case["labels"], bool)
    priorities = np.zeros(len(labels))
    # Positive and negative candidates are shuffled apart; the first of each are taken.
    for kind in (candidates & labels, candidates & ~labels):
        rows = np.flatnonzero(kind)
        priorities[rows[SHUFFLES[shuffle](len(rows))]] = -np.arange(len(rows))
    assert sampled(case, priorities, candidates) == case[f"dynamic_{shuffle}"]


@each_shuffle
@each_case
def test_the_originals_static_form_differs_only_in_how_it_fills_a_sample(case, shuffle):
    candidates, labels = np.array(case["indicator"], bool), np.array(case["labels"], bool)
    order = SHUFFLES[shuffle](len(labels))
    priorities = np.zeros(len(labels))
    # All rows are shuffled together; the last of each kind are taken.
    priorities[order] = np.arange(len(labels))
    lacking = max(0, case["batch_size"] - candidates.sum())
    promoted = candidates.copy()
    promoted[np.flatnonzero(~candidates)[:lacking]] = True
    ours = sampled(case, priorities, promoted)
    further = [row for row in order if labels[row]][: case["batch_size"] - len(ours)]
    assert sorted({*ours, *further}) == case[f"static_{shuffle}"]
    if case["name"] not in {"all_positive", "few_candidates", "no_candidate"}:
        assert sampled(case, priorities, candidates) == case[f"static_{shuffle}"]


def test_images_of_a_batch_are_sampled_apart():
    rng = np.random.default_rng(0)
    priorities = rng.random((3, 40)).astype(np.float32)
    candidates, positives = rng.random((2, 3, 40)) < 0.5
    of_size = partial(sample, size=10, positive_fraction=0.25)
    batch = of_size(priorities, candidates, positives)
    rows = [of_size(*row) for row in zip(priorities, candidates, positives, strict=True)]
    assert (np.asarray(batch) == np.asarray(rows)).all()
    assert (np.asarray(jax.vmap(of_size)(priorities, candidates, positives)) == batch).all()
    assert (np.asarray(batch).sum(-1) == 10).all()


def test_every_candidate_is_as_likely():
    keys = jax.random.split(jax.random.key(0), 2000)
    priorities = jax.vmap(partial(jax.random.uniform, shape=8))(keys)
    positives = np.arange(8) < 4
    marked = sample(
        priorities,
        np.full((2000, 8), True),
        np.tile(positives, (2000, 1)),
        size=4,
        positive_fraction=0.25,
    )
    # One of 4 positive ones, 3 of 4 negative ones; 5 standard deviations are .05.
    expected = np.where(positives, 0.25, 0.75)
    np.testing.assert_allclose(np.mean(marked, axis=0), expected, atol=0.05)


def test_selected_rows_equal_the_originals():
    case = GOLDEN["boolean_mask_static"]
    indices, valid = select_rows(np.array(case["mask"], bool), case["size"])
    assert np.float32(case["rows"])[np.asarray(indices)].tolist() == case["selected"]
    # The original repeats row 0 in place of a fourth.
    assert indices.tolist() == [0, 2, 4, 0]
    assert valid.tolist() == [True, True, True, False]


def test_rows_of_every_image_are_selected_up_to_the_size():
    mask = np.array([[0, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
    indices, valid = jax.jit(select_rows, static_argnums=1)(mask, 2)
    assert indices.tolist() == [[1, 2], [0, 0], [0, 1]]
    assert valid.tolist() == [[True, True], [False, False], [True, True]]
    assert indices.dtype == np.int32


# The published unit test of the reference .
LOCALIZATION = np.float32([[100, 90, 80, 0], [0, 1, 2, 3]])
CLASSES = np.float32([[0, 10, 50, 110], [9, 6, 3, 0]])
SAME = np.tile(np.float32([0.1, 0.1, 0.9, 0.9]), (2, 4, 1))
ALL_BACKGROUND = np.full((2, 4), -1)

mine = jax.jit(
    mine_hard_examples,
    static_argnames=(
        "loss_type",
        "num_hard_examples",
        "iou_threshold",
        "max_negatives_per_positive",
        "min_negatives_per_image",
    ),
)


def mined_sums(mask):
    return float((LOCALIZATION * mask).sum()), float((CLASSES * mask).sum())


@pytest.mark.parametrize(
    "loss_type, sums",
    [
        # Anchors 0 and 3 have the largest localisation losses: 100 + 3.
        ("localization", (103, 0)),
        # Sums [100, 100, 130, 110] and [9, 7, 5, 3]: anchors 2 and 0.
        ("both", (80, 59)),
        # Anchors 3 and 0: 110 + 9.
        ("classification", (0, 119)),
    ],
)
def test_the_hardest_example_equals_the_published_test(loss_type, sums):
    mask = mine(
        LOCALIZATION,
        CLASSES,
        SAME,
        ALL_BACKGROUND,
        loss_type=loss_type,
        num_hard_examples=1,
        iou_threshold=0.0,
    )
    assert mask.dtype == np.float32
    assert mined_sums(mask) == sums


def test_examples_under_a_harder_one_are_passed_over():
    boxes = SAME.copy()
    boxes[:, 1] = [0.9, 0.9, 0.99, 0.99]
    mask = mine(
        LOCALIZATION,
        CLASSES,
        boxes,
        ALL_BACKGROUND,
        loss_type="classification",
        num_hard_examples=2,
        iou_threshold=0.5,
    )
    # Image 0: 110, then not 50 (same box) but 10; image 1: 9 and 6.
    np.testing.assert_array_equal(mask, [[0, 1, 0, 1], [1, 1, 0, 0]])
    assert mined_sums(mask) == (91, 135)


def test_the_weights_decide_what_is_hard():
    mine_both = partial(
        mine,
        LOCALIZATION,
        CLASSES,
        SAME,
        ALL_BACKGROUND,
        loss_type="both",
        num_hard_examples=1,
        iou_threshold=0.0,
    )
    # Without the class loss as in `localization`, and the other way round.
    assert mined_sums(mine_both(classification_weight=0.0)) == (103, 0)
    assert mined_sums(mine_both(localization_weight=0.0)) == (0, 119)


def line_of_boxes(count):
    """Boxes side by side, none of which meets another."""
    left = np.arange(count, dtype=np.float32)
    return np.stack([np.zeros(count), left, np.ones(count), left + 0.5], -1)[None].astype(
        np.float32
    )


@pytest.mark.parametrize(
    "ratio, floor, kept",
    [
        # Ranked: background, match, background, ignored, background, match, background.
        (0, 0, [1, 1, 1, 1, 1, 1, 1]),
        # Two matches allow two; what is ignored has no loss and is left out.
        (1, 0, [1, 1, 1, 0, 0, 1, 0]),
        # int(1.5 * 2) = 3
        (1.5, 0, [1, 1, 1, 0, 1, 1, 0]),
        (1, 4, [1, 1, 1, 0, 1, 1, 1]),
    ],
)
def test_background_is_limited_by_the_number_of_matches(ratio, floor, kept):
    mask = mine(
        np.zeros((1, 7)),
        np.arange(7, 0, -1)[None],
        line_of_boxes(7),
        np.asarray([[-1, 3, -1, -2, -1, 0, -1]]),
        max_negatives_per_positive=ratio,
        min_negatives_per_image=floor,
    )
    np.testing.assert_array_equal(mask, [kept])


def test_three_negatives_for_each_positive_equal_a_sort():
    """SSD's mining: no boxes are compared, ties go to the first ."""
    rng = np.random.default_rng(1)
    losses = rng.random((4, 300)).round(2).astype(np.float32)
    matches = np.where(rng.random((4, 300)) < 0.05, 0, -1)
    mask = mine(
        np.zeros((4, 300)),
        losses,
        np.zeros((4, 300, 4)),
        matches,
        loss_type="classification",
        num_hard_examples=0,
        iou_threshold=1.0,
        max_negatives_per_positive=3,
    )
    for row, loss, match in zip(mask, losses, matches, strict=True):
        ranked = np.argsort(np.where(match < 0, -loss, 1), kind="stable")
        chosen = set(ranked[: 3 * (match >= 0).sum()]) | set(np.flatnonzero(match >= 0))
        assert set(np.flatnonzero(row)) == chosen


def test_without_comparing_boxes_the_hardest_count_however_they_overlap():
    mask = mine(
        LOCALIZATION,
        CLASSES,
        SAME,
        ALL_BACKGROUND,
        loss_type="classification",
        num_hard_examples=2,
        iou_threshold=1.0,
    )
    # 110 and 50, 9 and 6, though all boxes are the same.
    np.testing.assert_array_equal(mask, [[0, 0, 1, 1], [1, 1, 0, 0]])


def test_an_image_without_matches_keeps_only_the_least_number():
    mask = mine(
        np.zeros((1, 7)),
        np.arange(7)[None],
        line_of_boxes(7),
        np.full((1, 7), -1),
        max_negatives_per_positive=3,
        min_negatives_per_image=2,
    )
    # The hardest come last here.
    np.testing.assert_array_equal(mask, [[0, 0, 0, 0, 0, 1, 1]])


@pytest.mark.parametrize("limit, kept", [(3, 3), (0, 7), (100, 7)])
def test_no_more_than_the_limit_are_kept_and_0_sets_none(limit, kept):
    mask = mine(
        np.zeros((1, 7)),
        np.ones((1, 7)),
        line_of_boxes(7),
        np.zeros((1, 7), int),
        num_hard_examples=limit,
    )
    # Equal losses: the lowest anchors first.
    np.testing.assert_array_equal(mask, [[1] * kept + [0] * (7 - kept)])


def test_the_choice_has_no_gradient():
    def total(losses):
        mask = mine(losses, losses, SAME, ALL_BACKGROUND, num_hard_examples=1)
        return (mask * losses).sum()

    # One anchor an image counts, with slope 1 and nothing through the choice itself.
    gradient = jax.grad(total)(LOCALIZATION)
    np.testing.assert_array_equal(gradient, [[1, 0, 0, 0], [0, 0, 0, 1]])


def survivors_one_by_one(boxes, iou_threshold, max_kept):
    kept, suppressed = np.zeros(len(boxes), bool), np.zeros(len(boxes), bool)
    for i, box in enumerate(boxes):
        if not suppressed[i] and kept.sum() < max_kept:
            kept[i] = True
            suppressed |= golden.plain_iou(box, boxes) > iou_threshold
    return kept


@pytest.mark.parametrize(
    "count, iou_threshold, max_kept",
    [(1, 0.5, 9), (63, 0.3, 20), (64, 0.0, 64), (65, 0.99, 64), (300, 0.0, 300), (300, 0.7, 99)],
)
def test_tiles_keep_the_same_boxes_as_one_by_one(count, iou_threshold, max_kept):
    boxes = golden.random_boxes(np.random.default_rng(count), 3, count)
    boxes[1] = boxes[1, 0]  # identical boxes
    boxes[2, ::3] = 0  # boxes without area, which suppress nothing
    survive = partial(greedy_nms_mask, iou_threshold=iou_threshold, max_kept=max_kept)
    kept = jax.jit(survive)(boxes)
    for image, result in zip(boxes, kept, strict=True):
        np.testing.assert_array_equal(result, survivors_one_by_one(image, iou_threshold, max_kept))


def test_a_chain_of_overlaps_keeps_every_other_box():
    # Each box overlaps its neighbours by .5 / 1.5 = 1/3: every second one stays.
    left = np.arange(130, dtype=np.float32) / 2
    boxes = np.stack([np.zeros(130), left, np.ones(130), left + 1], -1)[None]
    kept = greedy_nms_mask(boxes, iou_threshold=0.3, max_kept=130)
    np.testing.assert_array_equal(kept[0], np.arange(130) % 2 == 0)

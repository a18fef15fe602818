"""The mask of the greatest values ."""

import jax
import numpy as np
import pytest

from stillbox.boxes.top_k_mask import top_k_mask

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
    marked = np.asarray(top_k_mask(scores.T, [2, 2]))
    assert [np.flatnonzero(row).tolist() for row in marked] == [[2, 3], [1, 3]]

"""The balanced sampler beside the original's two forms, and the rows of a mask."""

from functools import partial

import jax
import numpy as np
import pytest

from stillbox.boxes.sampling import balanced_sample, select_rows
from tests.boxes import golden

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

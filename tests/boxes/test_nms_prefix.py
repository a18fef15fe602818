"""The search of the best candidates alone; `test_nms.py` has the search among all boxes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes import nms
from stillbox.boxes.nms import batched_nms
from stillbox.boxes.nms_prefix import best_candidates, top_k
from stillbox.lowering import lowering
from tests.boxes import golden

OPTIONS = {"score_threshold": 0.2, "iou_threshold": 0.3, "max_per_class": 40, "max_total": 15}


def both(monkeypatch, boxes, scores, *depths, **options):
    """Detections by the search of the best candidates and by that among all boxes."""
    found = []
    for few in (0, 10**6):
        monkeypatch.setattr(nms, "_FEW", few)
        monkeypatch.setattr(nms, "_DEPTHS", depths)
        suppress = jax.jit(functools.partial(batched_nms, **options))
        found.append(jax.device_get(suppress(np.float32(boxes), np.float32(scores))))
    return found


def equal(one, other):
    for first, second in zip(one[:-1], other[:-1], strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.fixture
def searches(monkeypatch):
    """Counts of the images that a search of the best candidates finished, and did not."""
    counts, search = [], nms.search_prefix

    def spy(*arguments):
        found, done = search(*arguments)
        jax.debug.callback(lambda done: counts.extend(done.tolist()), done)
        return found, done

    monkeypatch.setattr(nms, "search_prefix", spy)
    return counts


def random_images(batch, anchors=60, classes=4, steps=25):
    rng = np.random.default_rng(3)
    boxes = golden.random_boxes(rng, batch, anchors)
    # Coarse scores make many ties, within a class and between classes.
    scores = (rng.integers(0, steps, (batch, anchors, classes)) / steps).astype(np.float32)
    return boxes, scores


@pytest.mark.parametrize(
    "depth, variant",
    [
        (20, {}),
        (4, {"max_per_class": 3}),
        (4, {"drop_at_threshold": True, "max_candidates_per_class": 20}),
        (3, {"class_agnostic": True}),
        (4, {"clip_window": np.tile(np.float32([0.1, 0, 0.8, 0.6]), (40, 1))}),
    ],
)
def test_the_best_candidates_give_the_detections_of_all(monkeypatch, searches, depth, variant):
    boxes, scores = random_images(40, steps=10**6)
    scores[1], boxes[2, ::2], scores[3, :, 1:] = 0, 0, 0
    equal(*both(monkeypatch, boxes, scores, depth, **{**OPTIONS, **variant}))
    jax.effects_barrier()
    assert sum(searches) >= 36


def test_images_whose_best_candidates_do_not_suffice_are_searched_wholly(monkeypatch, searches):
    boxes, scores = random_images(40, steps=10**6)
    # In these one box of each class stays, so that a look at all candidates is needed.
    boxes[:20] = boxes[:20, :1]
    equal(*both(monkeypatch, boxes, scores, 4, **OPTIONS))
    jax.effects_barrier()
    assert searches == [False] * 20 + [True] * 20


def test_a_few_candidates_more_are_searched_before_all_are(monkeypatch, searches):
    boxes, scores = random_images(6, steps=10**6)
    equal(*both(monkeypatch, boxes, scores, 1, 8, **OPTIONS))
    jax.effects_barrier()
    assert searches == [False] * 6 + [True] * 6


def test_a_class_has_no_more_candidates_than_its_limit(monkeypatch, searches):
    # Ten boxes side by side in the first class, three of which may be candidates, two in another.
    lefts, zeros = np.arange(100.0), np.zeros(100)
    boxes = np.stack([zeros, lefts, zeros + 1, lefts + 1], axis=1)[None]
    scores = np.zeros((1, 100, 2))
    scores[0, :10, 0], scores[0, 50:52, 1] = np.linspace(0.9, 0.5, 10), 0.4
    options = {**OPTIONS, "max_candidates_per_class": 3}
    one, other = both(monkeypatch, boxes, scores, 2, **options)
    equal(one, other)
    assert one.anchors[0, : one.count[0]].tolist() == [0, 1, 2, 50, 51]
    jax.effects_barrier()
    assert searches == [True]


def test_boxes_of_classes(monkeypatch, searches):
    boxes, scores = random_images(4, steps=10**6)
    boxes = np.stack([boxes, boxes[:, ::-1], boxes * 0.9, boxes], axis=2)
    equal(*both(monkeypatch, boxes, scores, 5, **OPTIONS))
    jax.effects_barrier()
    assert all(searches)


def test_more_invisible_boxes_than_fit(monkeypatch, searches):
    # 200 boxes side by side of which the window shows the last two, those with the lowest scores.
    lefts = np.arange(200.0)
    ones = np.ones(200)
    boxes = np.stack([0 * ones, lefts, ones, lefts + 1], axis=1)[None]
    scores = np.linspace(0.9, 0.3, 200)[None, :, None]
    options = {**OPTIONS, "max_per_class": 300, "clip_window": np.float32([[0, 198, 1, 200]])}
    one, other = both(monkeypatch, boxes, scores, 20, **options)
    equal(one, other)
    assert one.count == [2]
    jax.effects_barrier()
    assert searches == [False]


def test_a_full_class_ends_the_search(monkeypatch, searches):
    boxes, scores = random_images(4, classes=1, steps=10**6)
    equal(*both(monkeypatch, boxes, scores, 1, **{**OPTIONS, "max_per_class": 2}))
    jax.effects_barrier()
    assert all(searches)


@pytest.mark.parametrize(
    "name, options",
    [
        ("partitioned", {"drop_at_threshold": True}),
        ("agnostic", {"class_agnostic": True}),
        ("clip", {"clip_window": np.float32([[0, 0, 0.75, 1]])}),
    ],
)
def test_the_executed_reference(monkeypatch, searches, name, options):
    expected = golden.load("boxes_nms.json")[name]
    monkeypatch.setattr(nms, "_FEW", 0)
    boxes, scores = (array[None] for array in golden.nms_inputs())
    limits = {"score_threshold": 0.1, "iou_threshold": 0.5, "max_per_class": 20, "max_total": 50}
    found = jax.jit(functools.partial(batched_nms, **limits, **options))(boxes, scores)
    assert found.count.tolist() == [expected["num"]]
    np.testing.assert_array_equal(found.scores[0, :8], np.float32(expected["scores8"]))
    np.testing.assert_array_equal(found.classes[0, :8], expected["classes8"])
    np.testing.assert_allclose(found.scores.sum(), expected["score_sum"], rtol=1e-6)
    jax.effects_barrier()
    assert searches == [True]


def test_candidates_of_the_last_score_are_left_out():
    # Anchors 1 and 2 are kept. Their .5 is not: class 0 of anchor 3 has it too, and comes first.
    scores = jnp.float32([[[0, 0], [0.5, 0.9], [0.8, 0.5], [0.5, 0.1]]])
    found = best_candidates(scores, 0.0, 3)
    np.testing.assert_array_equal(found.scores, np.float32([[0.9, 0.8, -np.inf]]))
    np.testing.assert_array_equal(found.classes[0, :2], [1, 0])
    np.testing.assert_array_equal(found.anchors[0, :2], [1, 2])
    assert not found.complete.any()


def test_a_score_that_is_no_number_hides_no_other():
    scores = jnp.float32([[[0.1, 0.2], [np.nan, 0.9], [0.3, 0.2], [0.4, 0.1]]])
    found = best_candidates(scores, 0.0, 2)
    np.testing.assert_array_equal(found.scores[0, :1], np.float32([0.9]))
    assert found.anchors[0, 0] == 1


@pytest.mark.parametrize("most", [1, 7, 150, 200])
def test_sorts_find_the_greatest_values_in_the_same_order(most):
    rng = np.random.default_rng(5)
    # Many ties, in the last place too, and rows that have fewer candidates than are wanted.
    values = (rng.integers(-9, 9, (3, 200)) / 8).astype(np.float32)
    values[1, 100:] = -np.inf
    values[2] = -np.inf
    with lowering(top_k="sort"):
        found = jax.jit(lambda values: top_k(values, most))(values)
    for one, other in zip(found, jax.lax.top_k(values, most), strict=True):
        np.testing.assert_array_equal(one, other)

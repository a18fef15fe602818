"""The published models run forward: maps, logits, losses, targets, detections."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.models.build import build_detector
from stillbox.models.one_stage.detector import postprocess
from stillbox.models.one_stage.loss import batch_targets, detection_loss
from stillbox.models.variables import bind_detector, split_detector
from tests import reference
from tests.reference import FPN, INCEPTION, PPN, RESNET

# The forward golden of the pooling pyramid is not recorded; these are figures of the original.
PPN_LOSSES = {"eval": (0.887544, 3.332873), "train": (0.953201, 3.246708)}

# Compiling takes long; the other backbones and the other inputs have the same heads and losses.
_SLOW = {
    (RESNET, "eval"),
    (RESNET, "train"),
    (INCEPTION, "eval"),
    (INCEPTION, "train"),
    (FPN, "train"),
}
_CASES = [
    pytest.param(name, mode, marks=[pytest.mark.slow] if (name, mode) in _SLOW else [])
    for name in (PPN, FPN, RESNET, INCEPTION)
    for mode in ("eval", "train")
]
BOTH_MODES = pytest.mark.parametrize(("run", "mode"), _CASES, indirect=["run"])


@pytest.fixture(
    params=[PPN, FPN, *(pytest.param(name, marks=pytest.mark.slow) for name in (RESNET, INCEPTION))]
)
def run(request):
    """A recipe's name, its detector and a function from a mode to what it computes."""
    return request.param, built(request.param)[0], partial(computed, request.param)


@cache
def built(name):
    """Returns a detector and its split form, with the weights of the goldens."""
    model = reference.model(name)
    detector = build_detector(model)
    reference.load_deterministic_weights(detector, model)
    return detector, split_detector(detector)


@cache
def computed(name, mode):
    """Returns maps, predictions, losses, penalty and, in evaluation, detections."""
    model, (detector, (graph, params, stats)) = reference.model(name), built(name)
    side = model.resizer.input_size[0]

    def forward(params, stats, batch, *, train):
        bound = bind_detector(graph, params, stats)
        maps = bound.features(batch.images, train=train)
        predictions = bound.head(maps, train=train, dropout_key=None)
        losses = detection_loss(predictions, batch, detector.anchors, model)
        sizes = jnp.full((2, 2), side, jnp.int32)
        found = None if train else postprocess(predictions, detector.anchors, sizes, model)
        return maps, predictions, losses, bound.regularization(), found

    compiled = jax.jit(forward, static_argnames="train")
    outputs = compiled(params, stats, reference.batch(side), train=mode == "train")
    return jax.tree.map(np.asarray, outputs)


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """Frees the models when the last test of them has run."""
    yield
    built.cache_clear()
    computed.cache_clear()


@BOTH_MODES
def test_losses_equal_the_executed_original(run, mode):
    name, _, result = run
    _, _, losses, penalty, _ = result(mode)
    if name == PPN:
        localization, classification = PPN_LOSSES[mode]
        expected_penalty = 0.461134
    else:
        golden = reference.golden(name)[mode]
        localization = golden["loss"]["Loss/localization_loss"]
        classification = golden["loss"]["Loss/classification_loss"]
        expected_penalty = golden["regularization_loss"]
    np.testing.assert_allclose(losses.localization, localization, rtol=1e-3)
    np.testing.assert_allclose(losses.classification, classification, rtol=1e-3)
    np.testing.assert_allclose(penalty, expected_penalty, rtol=2e-6)


@BOTH_MODES
def test_maps_and_predictions_have_the_moments_of_the_original(run, mode):
    name, _, result = run
    if name == PPN:
        pytest.skip("there is no forward golden of the pooling pyramid")
    maps, (boxes, logits), *_ = result(mode)
    # NumPy sums pairwise; a plain float32 sum over three million values would be off by more.
    moments = [(m.mean(), m.std()) for m in maps]
    golden = reference.golden(name)[mode]
    np.testing.assert_allclose(moments, golden["fm_stats"], atol=1e-5 if mode == "eval" else 2e-4)
    ours = [boxes.mean(), boxes.std(), logits.mean(), logits.std()]
    theirs = [golden[key] for key in ("box_mean", "box_std", "cls_mean", "cls_std")]
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_evaluation_predictions_equal_the_executed_original(run):
    name, _, result = run
    if name == PPN:
        pytest.skip("there is no forward golden of the pooling pyramid")
    _, (boxes, logits), *_ = result("eval")
    golden = reference.golden(name)["eval"]
    np.testing.assert_allclose(boxes[0, :3], golden["box_img0_anchor0_3"], atol=5e-4)
    np.testing.assert_allclose(boxes[1, -2:], golden["box_img1_last2"], atol=5e-4)
    np.testing.assert_allclose(logits[0, 0, :6], golden["cls_img0_anchor0_first6"], atol=5e-4)
    np.testing.assert_allclose(logits[1, -1, :6], golden["cls_img1_last_first6"], atol=5e-4)


def test_detections_equal_the_executed_original(run):
    name, _, result = run
    if name == PPN:
        pytest.skip("there is no forward golden of the pooling pyramid")
    found, golden = result("eval")[-1], reference.golden(name)["eval"]["det"]
    assert found.count.tolist() == golden["num"]
    assert found.classes[0, :5].tolist() == golden["classes5"]
    np.testing.assert_allclose(found.scores[0, :5], golden["scores5"], rtol=1e-4)
    np.testing.assert_allclose(found.boxes[0, :3], golden["boxes3"], atol=1e-5)
    np.testing.assert_allclose(found.scores.sum(), golden["score_sum"], rtol=1e-5)
    np.testing.assert_allclose(found.boxes.sum(), golden["box_sum"], rtol=1e-5)


def test_targets_equal_the_executed_original(run):
    name, detector, _ = run
    model = reference.model(name)
    answer = jax.jit(partial(batch_targets, anchors=detector.anchors, model=model))
    targets = answer(reference.batch(model.resizer.input_size[0]))
    matches = np.asarray(targets.matches)
    first = np.flatnonzero(matches[0] >= 0)
    per_box = [(matches[0] == row).sum() for row in range(3)]
    if name == PPN:
        assert (matches >= 0).sum(axis=1).tolist() == [23, 11]
        assert per_box == [7, 11, 5]
        assert first[:6].tolist() == [188, 190, 300, 302, 304, 2298]
        return
    golden = reference.golden(name)["eval"]
    assert (matches >= 0).sum(axis=1).tolist() == golden["num_pos"]
    assert (matches == -1).sum(axis=1).tolist() == golden["num_neg"]
    assert per_box == golden["pos_per_gt_img0"][:3]
    assert first[:10].tolist() == golden["first_pos_idx_img0"][:10]
    codes = np.asarray(targets.box_targets)[0, first[:3]]
    np.testing.assert_allclose(codes, golden["regt_first_pos_img0"], atol=1e-5)

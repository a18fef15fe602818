"""Published models beside the executed originals: maps, logits, losses, targets, rates."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes.coders import decode_faster_rcnn
from stillbox.boxes.losses import smooth_l1_loss
from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.anchors import build_anchors
from stillbox.models.build import build_detector
from stillbox.models.detector import Predictions
from stillbox.models.one_stage.detector import postprocess
from stillbox.models.one_stage.loss import batch_targets
from stillbox.models.variables import bind_detector, split_detector
from stillbox.training.optimizer import build_schedule
from tests import reference
from tests.batches import batch_of
from tests.matched import Terms, loss_terms
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
    """A recipe's name, its detector and a function from a mode to its outputs."""
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
        losses = loss_terms(predictions, batch, detector.anchors, model)
        sizes = jnp.full((2, 2), side, jnp.int32)
        detections = None if train else postprocess(predictions, detector.anchors, sizes, model)
        return maps, predictions, losses, bound.regularization(), detections

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
    detections, golden = result("eval")[-1], reference.golden(name)["eval"]["det"]
    assert detections.count.tolist() == golden["num"]
    assert detections.classes[0, :5].tolist() == golden["classes5"]
    np.testing.assert_allclose(detections.scores[0, :5], golden["scores5"], rtol=1e-4)
    np.testing.assert_allclose(detections.boxes[0, :3], golden["boxes3"], atol=1e-5)
    np.testing.assert_allclose(detections.scores.sum(), golden["score_sum"], rtol=1e-5)
    np.testing.assert_allclose(detections.boxes.sum(), golden["box_sum"], rtol=1e-5)


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


SHAPES = tuple((side, side) for side in (38, 19, 10, 5, 3, 1))
ANCHORS = 8732
# ymin, xmin, ymax, xmax and the class of 1 to 80.
ONE_BOX = (((0.1, 0.2, 0.5, 0.6), 1),)
FOUR_BOXES = (
    *ONE_BOX,
    ((0.0, 0.0, 1.0, 1.0), 2),
    ((0.49, 0.49, 0.51, 0.51), 3),
    ((0.2, 0.1, 0.9, 0.4), 80),
)


@cache
def experiment() -> schema.Experiment:
    return resolve("ssd_resnet34").experiment


def anchors() -> np.ndarray:
    return build_anchors(experiment().model.anchors, SHAPES, (300, 300))


def batch_with(*images, image_weights=None) -> Batch:
    count, room = len(images), 6
    boxes, classes = np.zeros((count, room, 4), np.float32), np.zeros((count, room), np.int32)
    weights = np.zeros((count, room), np.float32)
    for row, image in enumerate(images):
        for column, (box, class_) in enumerate(image):
            boxes[row, column], classes[row, column] = box, class_ - 1
            weights[row, column] = 1
    pixels = np.zeros((count, 1, 1, 3), np.float32)
    return batch_of(pixels, boxes, weights, classes, image_weights)


@cache
def targets_of(*images):
    compute = jax.jit(lambda batch: batch_targets(batch, anchors(), experiment().model))
    return jax.device_get(compute(batch_with(*images)))


def test_one_box_has_the_thirteen_matches_of_the_original():
    targets = targets_of(ONE_BOX)
    matched = np.flatnonzero(targets.matches[0] >= 0)
    expected = [8080, 8081, 8082, 8083, 8086, 8087, 8089, 8140, 8141, 8142, 8578, 8580, 8586]
    assert matched.tolist() == expected
    codes = targets.box_targets[0]
    np.testing.assert_allclose(
        codes[8080], [1.0101005, 0.8080812, 0.96185917, 0.96185917], atol=2e-6
    )
    np.testing.assert_allclose(
        codes[8082], [1.428499, 0.57139987, 2.6947272, -0.77100784], atol=2e-6
    )
    assert not codes[targets.matches[0] < 0].any()


def test_four_boxes_have_the_matches_of_the_original():
    targets = targets_of(FOUR_BOXES)
    classes = targets.class_targets[0].argmax(axis=-1)
    # 13 + 5 + 1 + 6 = 25; class slot 0 is the background.
    counts = {class_: int((classes == class_).sum()) for class_ in (1, 2, 3, 80)}
    assert counts == {1: 13, 2: 5, 3: 1, 80: 6}
    assert np.flatnonzero(classes == 2).tolist() == [8709, 8728, 8729, 8730, 8731]
    # A box as small as this one reaches no IoU of .5, so its best anchor is forced.
    assert np.flatnonzero(classes == 3).tolist() == [2808]
    assert np.flatnonzero(classes == 80)[0] == 8197
    codes = targets.box_targets[0]
    np.testing.assert_allclose(codes[8709], [0, 0, 1.2758143, 1.2758143], atol=2e-6)
    np.testing.assert_allclose(
        codes[2808], [0.95238036, 0.95238036, -6.263815, -6.263815], atol=1e-5
    )
    np.testing.assert_allclose(codes[8197], [1.4999226, -0.71424854, 2.02707, 1.2563167], atol=2e-6)
    np.testing.assert_allclose(
        codes.sum(axis=0), [0.5179953, -8.3157836, 9.3071696, 3.8331638], atol=2e-5
    )


def losses_of(predictions: Predictions, batch: Batch, model: schema.OneStage) -> Terms:
    compute = jax.jit(lambda *inputs: loss_terms(*inputs, anchors(), model))
    return jax.device_get(compute(predictions, batch))


def zeros(count: int = 2) -> Predictions:
    return Predictions(jnp.zeros((count, ANCHORS, 4)), jnp.zeros((count, ANCHORS, 81)))


def test_losses_of_zero_logits_equal_the_original():
    parts = losses_of(zeros(), batch_with(ONE_BOX, FOUR_BOXES), experiment().model)
    # One positive and three negatives for each of N, all with a cross entropy of ln 81.
    assert parts.classification == pytest.approx(4 * np.log(81), abs=2e-5)
    assert parts.classification == pytest.approx(17.577797, abs=2e-5)
    assert parts.localization == pytest.approx(3.0433292, abs=2e-6)
    assert parts.classification + parts.localization == pytest.approx(20.621126, abs=2e-5)


def test_losses_of_waves_equal_the_original():
    logits = 3 * np.sin(0.001 * np.arange(2 * ANCHORS * 81)).reshape(2, ANCHORS, 81)
    codes = 2 * np.cos(0.01 * np.arange(2 * ANCHORS * 4)).reshape(2, ANCHORS, 4)
    predictions = Predictions(jnp.asarray(codes, jnp.float32), jnp.asarray(logits, jnp.float32))
    parts = losses_of(predictions, batch_with(ONE_BOX, FOUR_BOXES), experiment().model)
    assert parts.classification == pytest.approx(17.963066, abs=2e-5)
    assert parts.localization == pytest.approx(5.109417, abs=2e-6)
    assert parts.classification + parts.localization == pytest.approx(23.072483, abs=2e-5)


def test_rows_that_fill_up_do_not_count_as_images():
    full = losses_of(zeros(), batch_with(ONE_BOX, FOUR_BOXES), experiment().model)
    padded = losses_of(
        zeros(3),
        batch_with(ONE_BOX, FOUR_BOXES, (), image_weights=np.float32([1, 1, 0])),
        experiment().model,
    )
    np.testing.assert_allclose(padded[:2], full[:2], rtol=1e-6)


def test_the_order_of_the_anchors_changes_no_loss():
    """All but ties, which the older order of the original breaks differently."""
    model = experiment().model
    older = replace(model, anchors=replace(model.anchors, order="anchor_major"))
    boxes = build_anchors(older.anchors, SHAPES, (300, 300))
    assert not np.array_equal(boxes, anchors())
    compute = jax.jit(lambda *inputs: loss_terms(*inputs, boxes, older))
    parts = compute(zeros(), batch_with(ONE_BOX, FOUR_BOXES))
    assert parts.classification == pytest.approx(17.577797, abs=2e-5)
    assert parts.localization == pytest.approx(3.0433292, abs=2e-6)


def test_decoding_equals_the_original():
    box = decode_faster_rcnn(np.float32([1, -2, 0.5, -0.5]), np.float32([0.1, 0.2, 0.5, 0.8]))
    np.testing.assert_allclose(box, [0.118966, 0.108549, 0.561034, 0.651451], atol=1e-6)


@pytest.mark.parametrize(
    "epoch, rate",
    [
        # 1.01 * .012 / 7; the peak; 0.012 * (.5 * (1 + cos(pi * 10 / 40)) + .01); the floor.
        (1, 0.00173143),
        (3.5, 0.00605906),
        (7, 0.01212),
        (15, 0.01212),
        (25, 0.01036264),
        (35, 0.00612),
        (45, 0.00187736),
        (54, 0.000138496),
        (55, 0.00012),
        (64, 0.00012),
    ],
)
def test_the_rates_of_the_recipe_equal_the_original(epoch, rate):
    schedule = build_schedule(experiment().train.optimizer.schedule)
    # The original's steps are whole: epoch 3.5 is step 3209 of 3209.5.
    assert float(schedule(int(epoch * 917))) == pytest.approx(rate, rel=2e-5)


@pytest.mark.parametrize(
    "epoch, rate",
    # A straight line to .012 at epoch 5, a tenth from epoch 40 on.
    [(0, 0.0), (1, 0.0024), (4, 0.0096), (5, 0.012), (39, 0.012), (40, 0.0012), (49, 0.0012)],
)
def test_the_older_schedule_falls_in_a_step(epoch, rate):
    older = resolve("ssd_resnet34_step_schedule").experiment.train
    schedule = build_schedule(older.optimizer.schedule)
    assert float(schedule(epoch * 917)) == pytest.approx(rate, abs=1e-8)
    assert older.freeze == ()


def test_differences_of_codes_cost_as_much_as_in_the_original():
    # Half a square up to 1, a line above: .5^2 / 2, 1 / 2, 2 - .5, 3 - .5.
    codes = np.float32([[0.5, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [-3, 0, 0, 0]])
    losses = smooth_l1_loss(codes, np.zeros((4, 4), np.float32), np.ones(4), delta=1.0)
    np.testing.assert_allclose(losses, [0.125, 0.5, 1.5, 2.5])


def test_the_first_two_layers_are_frozen_and_125_tensors_train():
    from stillbox.models.build import build_detector
    from stillbox.models.variables import split_detector
    from stillbox.training.trainable import select_trainable

    _, params, stats = split_detector(build_detector(experiment().model))
    assert sum(array.size for array in params.values()) == 19_972_534
    assert len(params) == 131
    assert sum(array.size for array in (*params.values(), *stats.values())) == 19_982_390
    trained = select_trainable(params, {}, experiment().train)
    assert sorted(set(params) - trained) == [
        "backbone.group_1.block_1.conv_1.kernel",
        "backbone.group_1.block_1.conv_1.norm.bias",
        "backbone.group_1.block_1.conv_1.norm.scale",
        "backbone.stem.kernel",
        "backbone.stem.norm.bias",
        "backbone.stem.norm.scale",
    ]

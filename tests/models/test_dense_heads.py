"""Heads and losses of dense detectors: towers, group norm, offsets, targets by quality.

The executed numbers of the originals are in `tests/proofs/test_dense_heads.py`.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.boxes.structures import Batch
from stillbox.cli.overrides import changes_of
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.run_length import with_steps
from stillbox.experiment.variants import implementation_of
from stillbox.models.build import build_detector
from stillbox.models.detector import LossInputs, Predictions
from stillbox.models.heads import WeightSharedPredictor
from stillbox.models.layers.norm import GroupNormLayer
from stillbox.models.parts import Outputs
from stillbox.models.paths import variables_of
from stillbox.models.postprocessing import best_of_levels
from stillbox.models.task_aligned_head import mean_logits, resampled
from tests.helpers import at_once, build_options, parts_of, refusal

GROUPED = schema.ConvHyperparams(activation="relu", group_norm=schema.GroupNorm(groups=2))
SIDE, STRIDES = 64, (8, 16, 32)


def anchors():
    """Returns an anchor of eight strides at every location, and the number on each map."""
    levels = []
    for stride in STRIDES:
        rows, columns = np.meshgrid(*[np.arange(SIDE // stride)] * 2, indexing="ij")
        centers = np.stack([rows, columns], axis=-1).reshape(-1, 2) * stride
        levels.append(np.concatenate([centers - 4 * stride, centers + 4 * stride], axis=-1))
    boxes = np.concatenate(levels).astype(np.float32) / SIDE
    return boxes, tuple(map(len, levels))


ANCHORS, SIZES = anchors()


def model(head="gfl", **changes):
    kinds = {"gfl": schema.GflHead, "atss": schema.AtssHead, "task_aligned": None}
    base = schema.OneStage(
        num_classes=3,
        background_class=False,
        resizer=schema.FixedShapeResizer(height=SIDE, width=SIDE),
        head=(kinds[head] or schema.TaskAlignedHead)(),
        box_coder=schema.DistributionBoxCoder(),
        matcher=schema.AtssMatcher(),
        loss=schema.QualityLoss(),
    )
    return replace(base, **changes)


def batch(boxes=((0.1, 0.1, 0.7, 0.7),), rows=4, images=2):
    """Returns a batch; its first image has the boxes, and the others none."""
    all_boxes = np.zeros((images, rows, 4), np.float32)
    all_boxes[0, : len(boxes)] = np.reshape(boxes, (-1, 4))
    weights = np.zeros((images, rows), np.float32)
    weights[0, : len(boxes)] = 1.0
    return Batch(
        images=np.zeros((images, SIDE, SIDE, 3), np.uint8),
        boxes=all_boxes,
        classes=np.zeros((images, rows), np.int32),
        weights=weights,
        true_sizes=np.full((images, 2), SIDE, np.int32),
        image_weights=np.ones(images, np.float32),
        records=np.arange(images),
    )


def loss_of(config, predictions, given, step=0):
    function = implementation_of(config.loss)

    @jax.jit
    def compute(predictions, step):
        inputs = LossInputs(given, step=step)
        return function(config.loss, config, predictions, ANCHORS, SIZES, inputs)

    return compute(predictions, jnp.int32(step))


def floats(losses):
    return {name: float(term) for name, term in losses.terms.items()}


def predictions_of(config, images=2, seed=0):
    random = np.random.default_rng(seed)
    boxes = random.normal(size=(images, len(ANCHORS), config.box_coder.code_size))
    logits = random.normal(size=(images, len(ANCHORS), config.num_classes)) - 2.0
    return Predictions(*(jnp.asarray(array.astype(np.float32)) for array in (boxes, logits)))


def test_group_norm_is_that_of_its_formula_with_its_gradients():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(2.0, 3.0, (3, 4, 5, 6)), jnp.float32)
    layer = GroupNormLayer(6, schema.GroupNorm(groups=2, epsilon=1e-3))
    layer.scale[...], layer.bias[...] = jnp.arange(1.0, 7.0), jnp.arange(6.0) - 3.0

    def plain(x, scale, bias):
        grouped = x.reshape(3, 20, 2, 3)
        mean = grouped.mean(axis=(1, 3), keepdims=True)
        var = grouped.var(axis=(1, 3), keepdims=True)
        y = ((grouped - mean) / jnp.sqrt(var + 1e-3)).reshape(x.shape)
        return jax.nn.relu(y * scale + bias)

    graph = nnx.graphdef(layer)

    def layered(x, scale, bias):
        params = nnx.State({"scale": nnx.Param(scale), "bias": nnx.Param(bias)})
        return nnx.merge(graph, params)(x, "relu", train=True)

    inputs = x, layer.scale[...], layer.bias[...]
    values = [at_once(f, *inputs) for f in (layered, plain)]
    np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-5)
    weights = jnp.asarray(random.normal(size=x.shape), jnp.float32)
    slopes = [
        at_once(jax.grad(lambda *given, f=f: jnp.sum(f(*given) * weights), (0, 1, 2)), *inputs)
        for f in (layered, plain)
    ]
    for ours, theirs in zip(*slopes, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_groups_divide_the_channels():
    error = refusal(GroupNormLayer, 20, schema.GroupNorm(groups=8))
    assert "8 groups do not divide 20 channels" in str(error)
    assert "such as 4" in str(error)


def build(kind, config, **outputs):
    sizes = Outputs(**({"anchors": (1, 1), "class_channels": 3, "code_size": 8} | outputs))
    return kind(config, (6, 6), sizes, build_options())


def test_a_factor_of_each_map_multiplies_box_codes_alone():
    config = schema.GflHead(depth=8, layers_before=1, conv=GROUPED)
    head = build(WeightSharedPredictor, config)
    maps = tuple(jnp.asarray(np.random.default_rng(0).normal(size=(2, s, s, 6))) for s in (4, 2))
    before = head(maps, train=True, dropout_key=None)
    variables_of(head)["scale_1"][...] = jnp.float32(3.0)
    after = head(maps, train=True, dropout_key=None)
    assert np.array_equal(before.class_logits, after.class_logits)
    assert np.array_equal(before.box_encodings[:, :16], after.box_encodings[:, :16])
    np.testing.assert_allclose(after.box_encodings[:, 16:], 3 * before.box_encodings[:, 16:], 1e-5)


def test_group_norms_are_shared_by_maps_and_batch_norms_are_not():
    names = {}
    for norm in ({"group_norm": schema.GroupNorm(groups=2)}, {"batch_norm": schema.BatchNorm()}):
        conv = schema.ConvHyperparams(**norm)
        head = build(WeightSharedPredictor, schema.GflHead(depth=8, layers_before=1, conv=conv))
        names[next(iter(norm))] = set(parts_of(head.box_tower.layers[0]))
    assert names["group_norm"] == {"", "conv", "norm"}
    assert names["batch_norm"] == {"", "conv", "norm_0", "norm_1"}


def test_centerness_multiplies_scores():
    config = schema.AtssHead(depth=8, layers_before=1, conv=GROUPED)
    predicted = build(WeightSharedPredictor, config)(
        (jnp.ones((2, 4, 4, 6)),) * 2, train=True, dropout_key=None
    )
    assert predicted.quality_logits.shape == (2, 32)
    given = schema.Nms(score_threshold=0.2, max_candidates_per_level=2)
    scores = jnp.asarray([[[0.1, 0.9], [0.3, 0.4], [0.5, 0.5], [0.6, 0.1]]])
    kept = best_of_levels(scores, (2, 2), given)
    assert kept[0].tolist() == pytest.approx(
        np.array([[0, 0.9], [0, 0.4], [0.5, 0], [0.6, 0]], np.float32)
    )


def test_means_of_probabilities_have_logits():
    a, b = jnp.asarray([-30.0, -2.0, 0.0, 3.0, 40.0, 200.0]), jnp.asarray([5.0, -1, 0, 2, 50, 200])
    means = mean_logits(a[None, None, :, None], b[None, None, :, None])[0, 0, :, 0]
    wanted = np.sqrt(jax.nn.sigmoid(a) * jax.nn.sigmoid(b))
    np.testing.assert_allclose(jax.nn.sigmoid(means), wanted, rtol=1e-5)
    assert np.isfinite(means).all()


def test_values_are_interpolated_with_zeros_outside():
    values = jnp.arange(12.0).reshape(1, 3, 4, 1) + 1.0
    places = np.zeros((1, 3, 4, 1, 2), np.float32)
    places[0, 0, :, 0] = [[1.0, 2.0], [0.5, 0.25], [-0.5, 0.0], [-9.0, 2.0]]
    places[0, 1, :, 0] = [[2.5, 3.0], [2.0, 3.5], [np.float32(1e20), 1.0], [1.0, -1.0]]
    sampled = np.asarray(resampled(values, jnp.asarray(places)))[0, :2, :, 0]
    assert sampled[0].tolist() == pytest.approx([7.0, 3.25, 0.5, 0.0])
    assert sampled[1].tolist() == pytest.approx([6.0, 6.0, 0.0, 0.0])


@pytest.mark.parametrize("boxes", [(), ((0.1, 0.1, 0.7, 0.7), (0.3, 0.2, 0.9, 0.8))])
@pytest.mark.parametrize("coder", [schema.DistributionBoxCoder(), schema.DistanceBoxCoder()])
def test_losses_and_gradients_are_finite_with_and_without_boxes(boxes, coder):
    weight = 0.25 if isinstance(coder, schema.DistributionBoxCoder) else 0.0
    config = model(box_coder=coder, loss=schema.QualityLoss(distribution_weight=weight))
    given = batch(boxes)

    def total(predictions):
        losses = loss_of(config, predictions, given)
        return sum(losses.terms.values()), losses

    slope = jax.value_and_grad(total, has_aux=True)
    (value, losses), slopes = at_once(slope, predictions_of(config))
    assert np.isfinite(value) and value > 0
    assert (losses.metrics["matched_anchors"] > 0) == bool(boxes)
    assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))
    if not boxes:
        assert not np.any(slopes.box_encodings)


def test_anchors_of_a_box_without_weight_have_no_loss():
    config = model(matcher=schema.ArgmaxMatcher(matched_threshold=0.3, unmatched_threshold=0.3))

    def trained(weight):
        given = batch()
        given.weights[0, 0] = weight
        slope = jax.grad(lambda given_, batch: sum(loss_of(config, given_, batch).terms.values()))
        return [np.asarray(part).any(-1) for part in slope(predictions_of(config), given)]

    matched, seen = trained(1.0)
    assert matched.any() and seen.all()
    without, seen = trained(0.0)
    assert not without.any()
    assert np.array_equal(seen, ~matched)


def test_padding_images_and_padding_boxes_change_nothing():
    config = model()
    predictions = predictions_of(config)
    plain = loss_of(config, predictions, batch())
    more = batch(rows=9, images=3)
    more = more._replace(image_weights=np.array([1, 1, 0], np.float32))
    padded = jax.tree.map(lambda array: jnp.concatenate([array, array[:1]]), predictions)
    again = loss_of(config, padded, more)
    for name, term in plain.terms.items():
        np.testing.assert_allclose(again.terms[name], term, rtol=1e-6, err_msg=name)


def test_two_copies_of_half_a_weight_count_as_one():
    config = model()
    given, predictions = batch(), predictions_of(config)
    given.boxes[1], given.weights[1] = given.boxes[0] * 0.8, given.weights[0]
    whole = floats(loss_of(config, predictions, given))
    given, predictions = (
        jax.tree.map(lambda array: array[np.array([0, 1, 1])], tree)
        for tree in (given, predictions)
    )
    assert floats(loss_of(config, predictions, given)) != pytest.approx(whole, rel=1e-3)
    halves = np.array([1.0, 0.5, 0.5], np.float32)
    images = loss_of(config, predictions, given._replace(image_weights=halves))
    assert floats(images) == pytest.approx(whole, rel=1e-6)
    boxes = floats(
        loss_of(config, predictions, given._replace(weights=given.weights * halves[:, None]))
    )
    # The background of both copies counts.
    assert boxes.pop("classification_loss") > whole.pop("classification_loss")
    assert boxes == pytest.approx(whole, rel=1e-6)


def test_a_weight_multiplies_the_classification_loss_of_its_class_alone():
    given, predictions = batch(), predictions_of(model())

    def terms(*weights):
        config = model(loss=schema.QualityLoss(class_weights=weights))
        return floats(loss_of(config, predictions, given))

    plain, alone = terms(), [terms(*row) for row in np.eye(3).tolist()]
    assert terms(1.0, 1.0, 1.0) == pytest.approx(plain)
    parts = [each["classification_loss"] for each in alone]
    assert sum(parts) == pytest.approx(plain["classification_loss"], rel=1e-5)
    weighted = terms(2.0, 0.5, 0.0)
    assert weighted["classification_loss"] == pytest.approx(2 * parts[0] + parts[1] / 2, rel=1e-5)
    for name in plain.keys() - {"classification_loss"}:
        assert weighted[name] == pytest.approx(plain[name])


def test_the_first_steps_have_an_assignment_of_their_own():
    loss = schema.QualityLoss(
        class_targets="alignment",
        box_weights="alignment",
        distribution_weight=0.0,
        initial=schema.InitialAssignment(steps=5),
    )
    parts = {"box_coder": schema.DistanceBoxCoder(), "matcher": schema.TaskAlignedMatcher()}
    config = model("task_aligned", loss=loss, **parts)
    first = replace(
        config,
        matcher=schema.AtssMatcher(),
        loss=replace(
            loss,
            classification=schema.SigmoidFocalLoss(alpha=0.25),
            class_targets="one",
            box_weights="centerness",
            empty_images_count=False,
            initial=None,
        ),
    )
    later = replace(config, loss=replace(loss, initial=None))
    predictions = predictions_of(config)
    for step, wanted in ((4, first), (5, later)):
        ours, theirs = (floats(loss_of(m, predictions, batch(), step)) for m in (config, wanted))
        assert ours == pytest.approx(theirs, rel=1e-6)
        assert floats(loss_of(config, predictions, batch(), 9 - step)) != pytest.approx(
            theirs, 1e-3
        )


def test_the_first_steps_stretch_with_the_run():
    experiment = resolve("tood_resnet50").experiment
    assert with_steps(experiment, 8796).model.loss.initial.steps == 2932


def temporary_bytes(matcher, rows):
    config = model(
        "task_aligned",
        matcher=matcher,
        box_coder=schema.DistanceBoxCoder(),
        loss=schema.QualityLoss(distribution_weight=0.0),
    )
    given = batch(rows=rows)
    compute = jax.jit(lambda predictions: loss_of(config, predictions, given).terms)
    lowered = compute.lower(predictions_of(config))
    return lowered.compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("matcher", [schema.AtssMatcher(), schema.TaskAlignedMatcher()])
def test_memory_of_matchers_does_not_grow_with_boxes(matcher):
    few, many = (temporary_bytes(matcher, rows) for rows in (1, 1000))
    # A matrix of boxes and anchors would have 84,000 numbers for each of two images.
    assert many - few < 2 * 1000 * 10 * 4


@pytest.mark.parametrize("head", ["gfl", "atss", "task_aligned"])
def test_a_detector_has_the_anchors_and_codes_of_its_head(head):
    names = {"gfl": "gfl_resnet50", "atss": "atss_resnet50", "task_aligned": "tood_resnet50"}
    changes = [
        "model.resizer={kind: fixed_shape, height: 64, width: 64}",
        "model.backbone.depth=10",
        "model.neck.depth=16",
        "model.head={depth: 16, layers_before: 2, conv: {group_norm: {groups: 4}}}",
    ]
    experiment = resolve(names[head], changes_of(changes)).experiment
    detector = build_detector(experiment.model, seed=0, dtype=jnp.float32)
    images = jnp.zeros((1, 64, 64, 3), jnp.uint8)
    predicted = jax.eval_shape(lambda images: detector(images, train=False), images)
    count = 64 + 16 + 4 + 1 + 1
    assert predicted.box_encodings.shape == (1, count, experiment.model.box_coder.code_size)
    assert predicted.class_logits.shape == (1, count, 80)
    assert len(detector.anchors) == count

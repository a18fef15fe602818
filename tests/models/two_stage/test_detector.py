"""Faster R-CNN as one program: losses, gradients, padding, empty images."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes.crops import multiplied
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models.build import abstract_detector, build_detector
from stillbox.models.detector import LossInputs
from stillbox.models.variables import bind_detector, split_detector
from tests.boxes.golden import random_boxes
from tests.boxes.one_map import crop_and_resize, roi_align
from tests.helpers import refusal
from tests.models.two_stage.small import small_batch, small_model

KEY = jax.random.key(0)
# Images do not influence each other, and samples are all that there is.
WHOLE = (
    "model.freeze_batch_norm=true",
    "model.proposals={sample_size: 512, positive_fraction: 1.0}",
    "model.boxes={sample_size: 24, positive_fraction: 1.0}",
)


@cache
def parts(*overrides):
    return split_detector(build_detector(small_model(*overrides)))


@cache
def loss_function(*overrides):
    """From batch and key to the terms and metrics of a step."""
    graph, params, stats = parts(*overrides)

    def run(batch, key):
        output = bind_detector(graph, params, stats).loss(LossInputs(batch, key=key))
        return output.terms, output.metrics

    return jax.jit(run)


@cache
def detect_function(*overrides):
    graph, params, stats = parts(*overrides)
    return jax.jit(lambda images, sizes: bind_detector(graph, params, stats).detect(images, sizes))


@pytest.mark.parametrize(
    "overrides, sentence",
    [
        (
            (
                "model.backbone={kind: inception_v3, depth_multiplier: 0.05, min_depth: 8}",
                "model.neck={min_level: 5, max_level: 5}",
                "model.resizer={height: 171, width: 171}",
            ),
            "a map of 4 x 4 has no power of two as its stride",
        ),
        (
            (
                "model.neck={min_level: 3, max_level: 4}",
                "model.proposals.anchors={kind: multiscale, min_level: 3, max_level: 4}",
            ),
            "one convolution for all feature maps, which have 32, 64 channels",
        ),
    ],
    ids=["strides", "channels"],
)
def test_maps_that_do_not_fit_two_stages_are_refused(overrides, sentence):
    error = refusal(abstract_detector, small_model(*overrides), "float32")
    assert sentence in error.what


@pytest.mark.parametrize(
    "stage, trained, other",
    [
        (("objectness_loss", "proposal_localization_loss"), "proposals.", "box_"),
        (("classification_loss", "localization_loss"), "box_predictor.", "proposals."),
    ],
)
def test_a_stage_trains_no_parameter_of_the_other(stage, trained, other):
    graph, params, stats = parts()

    # Few parameters: of what has no gradient nothing is compiled.
    @jax.jit
    @jax.grad
    def gradient(some, rest, batch):
        detector = bind_detector(graph, rest | some, stats)
        terms = detector.loss(LossInputs(batch, key=KEY)).terms
        return sum(terms[name] for name in stage)

    def largest(prefix):
        some = {path: array for path, array in params.items() if path.startswith(prefix)}
        gradients = gradient(some, params, small_batch())
        return max(float(jnp.abs(array).max()) for array in gradients.values())

    assert largest(trained) > 0
    assert largest(other) == 0


def test_the_sample_follows_the_key():
    run, batch = loss_function(), small_batch()
    same, _ = run(batch, KEY)
    again, _ = run(batch, KEY)
    other, _ = run(batch, jax.random.key(1))
    assert same == again
    assert same["objectness_loss"] != other["objectness_loss"]


def test_an_image_without_objects_trains_the_background_alone():
    batch = small_batch()
    empty = batch._replace(boxes=np.zeros_like(batch.boxes), weights=np.zeros_like(batch.weights))
    terms, metrics = loss_function()(empty, KEY)
    assert terms["proposal_localization_loss"] == terms["localization_loss"] == 0
    assert terms["objectness_loss"] > 0 and terms["classification_loss"] > 0
    assert metrics["sampled_anchors"] == metrics["sampled_proposals"] == 0


def test_a_padding_row_of_the_batch_changes_no_loss():
    two, three = small_batch(2), small_batch(3)
    padded = three._replace(
        images=np.concatenate([two.images, np.zeros_like(two.images[:1])]),
        image_weights=np.float32([1, 1, 0]),
    )
    expected, _ = loss_function(*WHOLE)(two, KEY)
    terms, _ = loss_function(*WHOLE)(padded, KEY)
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name], value, rtol=1e-5, err_msg=name)


def test_all_contents_share_one_program():
    detect = detect_function()
    batch = small_batch()
    for images in (batch.images, np.zeros_like(batch.images), np.full_like(batch.images, 255)):
        detections = detect(images, batch.true_sizes)
        assert detections.boxes.shape == (2, 10, 4)
        assert np.isfinite(detections.boxes).all() and detections.finite.all()
    assert detect._cache_size() == 1


def test_proposals_are_the_detections_of_one_stage():
    detect = detect_function("model.boxes=null")
    batch = small_batch()
    proposals = detect(batch.images, batch.true_sizes)
    assert proposals.boxes.shape == (2, 24, 4)
    assert set(np.unique(proposals.classes)) == {0}
    scores = np.asarray(proposals.scores)
    assert (np.diff(scores, axis=1) <= 0).all() and scores.max() > 0.1


def test_padding_changes_nothing_where_it_is_masked():
    """An image of 48 x 40 pixels on a canvas of 64 x 64, and by itself.

    Detection clips anchors to the image, this training leaves out those that cross its edges.
    """
    height, width = 48, 40
    rng = np.random.default_rng(3)
    image = rng.uniform(0, 255, (1, height, width, 3)).astype(np.float32)
    canvas = rng.uniform(0, 255, (1, 64, 64, 3)).astype(np.float32)
    canvas[:, :height, :width] = image
    common = (*WHOLE, "model.proposals.clip_anchors=false")
    alone = (*common, f"model.resizer={{height: {height}, width: {width}}}")
    padded = (*common, "model.mask_padding=true")
    size = np.int32([[height, width]])
    expected = detect_function(*alone)(image, size)
    detections = detect_function(*padded)(canvas, size)
    assert expected.count.tolist() == detections.count.tolist()
    np.testing.assert_allclose(detections.scores, expected.scores, atol=1e-5)
    np.testing.assert_allclose(detections.boxes, expected.boxes, atol=1e-4)
    batch = small_batch(1)._replace(true_sizes=size)
    shrunk = batch.boxes * np.float32([height, width, height, width]) / 64
    of_image, _ = loss_function(*alone)(batch._replace(images=image), KEY)
    of_canvas, _ = loss_function(*padded)(batch._replace(images=canvas, boxes=shrunk), KEY)
    for name, value in of_image.items():
        np.testing.assert_allclose(of_canvas[name], value, rtol=1e-4, err_msg=name)


# ---- Crops of the second stage: levels, parts of a padded input, platforms -----------------------


INPUT = (1024, 1024)
SIDES, STRIDES = (32, 16, 8), (32, 64, 128)
CONFIGS = {
    "crop_and_resize": schema.CropAndResize(size=5, pool_size=2, pool_stride=1, outside="fade"),
    "roi_align": schema.RoiAlign(size=4, samples=2),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
each_number_of_maps = pytest.mark.parametrize("count", [1, 3], ids=["one_map", "pyramid"])


def inputs(count):
    """Maps of two images, 9 boxes each, and windows inside the input."""
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(2, side, side, 3)).astype(np.float32) for side in SIDES[:count]]
    return maps, random_boxes(rng, 2, 9), np.int32([[1000, 900], [1024, 308]])


def cropped(config, input_size=INPUT):
    crop = implementation_of(config)
    return jax.jit(lambda maps, boxes, windows: crop(config, maps, boxes, windows, input_size))


def pooled(crop):
    """Maxima of 2x2 windows, one apart."""
    views = [crop[:, i : i + 4, j : j + 4] for i in range(2) for j in range(2)]
    return np.max(views, axis=0)


_crop = jax.jit(partial(crop_and_resize, size=5, outside="fade", compute=multiplied))
_align = jax.jit(partial(roi_align, size=4, samples=2, compute=multiplied))


def one_by_one(config, maps, boxes, window):
    """Crops of one image, from one map after the other, by matrix products."""
    sides = np.sqrt(np.prod((boxes[:, 2:] - boxes[:, :2]) * window, axis=-1))
    levels = np.clip(np.floor(np.log2(sides / 224)) + len(maps) - 2, 0, len(maps) - 1)
    crops = np.zeros((len(boxes), config.output_size, config.output_size, 3), np.float32)
    for level, (features, stride) in enumerate(zip(maps, STRIDES, strict=False)):
        extent = np.ceil(window / stride)
        if isinstance(config, schema.RoiAlign):
            aligned = _align(features, boxes, extent=extent, window=window / stride)
        else:
            aligned = pooled(np.asarray(_crop(features, boxes, extent=extent)))
        crops = np.where((levels == level)[:, None, None, None], aligned, crops)
    return crops, levels


@each_config
@each_number_of_maps
def test_boxes_are_cropped_from_the_map_of_their_size(config, count):
    maps, boxes, windows = inputs(count)
    computed = cropped(config)(maps, boxes, windows)
    assert computed.shape == (2, 9, config.output_size, config.output_size, 3)
    used = set()
    for image, crops in enumerate(computed):
        maps_of_image = [features[image] for features in maps]
        expected, levels = one_by_one(config, maps_of_image, boxes[image], windows[image])
        np.testing.assert_allclose(crops, expected, atol=1e-5)
        used |= set(levels)
    assert len(used) == count


@each_config
@each_number_of_maps
def test_a_padded_image_has_the_crops_of_its_true_size(config, count):
    maps, boxes, windows = inputs(count)
    computed = cropped(config)(maps, boxes, windows)
    window = (1000, 900)
    alone = [
        features[:1, : -(-window[0] // stride), : -(-window[1] // stride)]
        for features, stride in zip(maps, STRIDES, strict=False)
    ]
    crops = cropped(config, window)(alone, boxes[:1], windows[:1])
    np.testing.assert_allclose(computed[:1], crops, atol=1e-6)


@each_config
@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
def test_each_platform_has_one_computation(config, platform):
    maps, boxes, windows = inputs(3)

    def gradient(maps, boxes, windows):
        return jax.grad(lambda maps: cropped(config)(maps, boxes, windows).sum())(maps)

    traced = jax.jit(gradient).trace(maps, boxes, windows)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    products, sums = "stablehlo.dot_general" in program, "stablehlo.scatter" in program
    assert (products, sums) == ((False, True) if platform == "cpu" else (True, False))


@each_config
def test_crops_of_bfloat16_maps_are_bfloat16(config):
    maps, boxes, windows = inputs(3)
    rounded = [jnp.asarray(features, jnp.bfloat16) for features in maps]
    computed = cropped(config)(rounded, boxes, windows)
    assert computed.dtype == jnp.bfloat16
    exact = cropped(config)(
        [feature_map.astype(np.float32) for feature_map in rounded], boxes, windows
    )
    # Computed in float32 and rounded once.
    np.testing.assert_allclose(computed.astype(np.float32), exact, rtol=2**-8)


@each_config
def test_padded_proposals_have_finite_crops_and_gradients(config):
    maps, boxes, windows = inputs(3)
    # All their points are in the corner of the finest map.

    @jax.jit
    def both(maps):
        crops, pull = jax.vjp(lambda maps: cropped(config)(maps, boxes * 0, windows), maps)
        return crops, *pull(jnp.ones_like(crops))

    crops, gradient = both(maps)
    assert np.isfinite(crops).all()
    for level, features in enumerate(gradient):
        assert [tuple(cell) for cell in np.argwhere(features[0].any(-1))] == [(0, 0)][level:]

"""Anchors, targets, coders, losses and rates of the original RetinaNet, executed.

Numbers come from `ops.json`; its header describes the inputs, which are repeated here.
"""

import json
import math
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes.anchors import grid_anchors, multiscale_grids
from stillbox.boxes.coders import encode_faster_rcnn
from stillbox.boxes.losses import sigmoid_focal_cross_entropy, sigmoid_focal_loss, smooth_l1_loss
from stillbox.boxes.matchers import Targets, argmax_match, assign_targets
from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.inputs.resize import Placement, place_boxes, resize_image
from stillbox.models.anchors import build_anchors
from stillbox.models.detector import Predictions
from stillbox.models.one_stage.detector import postprocess
from stillbox.models.one_stage.loss import batch_targets
from stillbox.models.targets import build_box_coder
from stillbox.training.optimizer import build_schedule
from tests.matched import loss_terms
from tests.small import SHARED, needs_shared

pytestmark = [needs_shared, pytest.mark.proof]

SIDE = 640
SHAPES = tuple((side, side) for side in (80, 40, 20, 10, 5))
PLAIN = {"y_scale": 1.0, "x_scale": 1.0, "height_scale": 1.0, "width_scale": 1.0}
BOXES = ((100, 100, 300, 250), (10, 20, 40, 60), (400, 300, 630, 639), (200, 200, 208, 205))
CLASSES = (1, 17, 90, 3)
MODEL = schema.OneStage(
    num_classes=90,
    resizer=schema.FixedShapeResizer(height=SIDE, width=SIDE),
    anchors=schema.MultiscaleAnchors(scales_per_octave=3, order="scale_major"),
    box_coder=schema.FasterRcnnBoxCoder(**PLAIN),
    matcher=schema.ArgmaxMatcher(force_match_for_each_row=True),
    loss=schema.Loss(
        classification=schema.SigmoidFocalLoss(gamma=1.5, alpha=0.25),
        localization=schema.SmoothL1Loss(delta=0.1),
        localization_weight=50.0,
        normalize_localization_by_code_size=True,
        encode_background_as_zeros=True,
        added_matches=1.0,
        skip_zero_codes=True,
    ),
)


@cache
def golden() -> Any:
    return json.loads((SHARED / "goldens" / "tpu_detection" / "ops.json").read_text())


def anchors() -> np.ndarray:
    return build_anchors(MODEL.anchors, SHAPES, (SIDE, SIDE))


def batch_of(boxes, classes) -> Batch:
    room = 6
    padded, slots = np.zeros((1, room, 4), np.float32), np.zeros((1, room), np.int32)
    weights = np.zeros((1, room), np.float32)
    padded[0, : len(boxes)] = np.array(boxes, np.float32).reshape(-1, 4) / SIDE
    # Slot 0 is the background.
    slots[0, : len(boxes)], weights[0, : len(boxes)] = np.array(classes, np.int32) - 1, 1
    return Batch(
        images=np.zeros((1, 1, 1, 3), np.float32),
        boxes=padded,
        classes=slots,
        weights=weights,
        true_sizes=np.full((1, 2), SIDE, np.int32),
        records=np.zeros(1, np.int32),
        image_weights=np.ones(1, np.float32),
    )


def test_all_anchors_stand_where_the_original_puts_them():
    in_pixels = anchors().astype(np.float64) * SIDE
    assert len(in_pixels) == golden()["A.total"] == 76725
    counts = [9 * rows * columns for rows, columns in SHAPES]
    assert counts == golden()["A.counts"]
    # The goldens are rounded to five places, the last nine to four.
    np.testing.assert_allclose(in_pixels[:9], golden()["A.first9"], atol=1e-5)
    np.testing.assert_allclose(in_pixels[-9:], golden()["A.last9"], atol=1e-4)
    np.testing.assert_allclose(in_pixels.sum(axis=0), golden()["A.colsum"], rtol=1e-7)


def check_targets(targets: Targets, forced: int) -> None:
    """`forced`: the anchor that the 8 x 5 box gets by force."""
    positives = np.flatnonzero(targets.matches >= 0)
    others = [anchor for anchor in golden()["B.pos_idx"] if anchor != 16778]
    assert sorted({*positives} - {forced}) == others
    assert len(positives) == golden()["B.num_positives"] == 87
    slots = targets.class_targets.argmax(axis=-1)
    per_class = {str(c): int((slots[positives] == c).sum()) for c in CLASSES}
    assert per_class == golden()["B.npos_per_class"]
    ends = np.cumsum(golden()["A.counts"])
    levels = np.searchsorted(ends, positives, side="right") + 3
    per_level = {str(level): int((levels == level).sum()) for level in range(3, 8)}
    assert per_level == golden()["B.npos_per_level"]
    for anchor, class_, *codes in golden()["B.first_pos_targets"]:
        assert slots[anchor] == class_
        # The goldens are rounded to six places.
        np.testing.assert_allclose(targets.box_targets[anchor], codes, atol=2e-6)


def test_targets_in_pixels_are_the_originals_the_forced_one_too():
    grids = multiscale_grids(
        (SIDE, SIDE),
        min_level=3,
        max_level=7,
        anchor_scale=4.0,
        aspect_ratios=(1.0, 2.0, 0.5),
        scales_per_octave=3,
        scale_major=True,
    )
    in_pixels = np.concatenate(
        [grid_anchors(shape, *grid) for shape, grid in zip(SHAPES, grids, strict=True)]
    )
    targets = jax.device_get(
        assign_targets(
            in_pixels,
            np.float32(BOXES),
            np.array(CLASSES) - 1,
            np.ones(4, np.float32),
            num_classes=90,
            background_class=True,
            encode_background_as_zeros=True,
            negative_class_weight=1.0,
            match=partial(argmax_match, force_match_for_each_row=True),
            encode=partial(encode_faster_rcnn, scales=(1.0, 1.0, 1.0, 1.0)),
        )
    )
    check_targets(targets, forced=16778)
    (forced,) = golden()["B.forced_small_gt"]
    np.testing.assert_allclose(in_pixels[16778], forced[1:5], atol=1e-5)
    np.testing.assert_allclose(targets.box_targets[16778], forced[5:], atol=2e-6)
    total = np.abs(targets.box_targets).sum(dtype=np.float64)
    assert total == pytest.approx(golden()["B.target_abs_sum"], rel=1e-6)


def test_targets_of_a_batch_are_the_originals_up_to_a_tie():
    targets = jax.device_get(batch_targets(batch_of(BOXES, CLASSES), anchors(), MODEL))
    targets = Targets(*(array[0] for array in targets))
    # Some thirty anchors contain the 8 x 5 box: IoU 40 / 1024 with each, but for the last bit, and
    # coordinates that are divided by 640 are rounded otherwise than pixels.
    (forced,) = np.flatnonzero(targets.class_targets[:, 3])
    ymin, xmin, ymax, xmax = anchors()[forced] * SIDE
    assert (ymin <= 200) and (xmin <= 200) and (ymax >= 208) and (xmax >= 205)
    assert (ymax - ymin) * (xmax - xmin) == pytest.approx(1024, rel=1e-5)
    check_targets(targets, forced)


def test_an_image_without_boxes_has_only_background():
    targets = jax.device_get(batch_targets(batch_of([], []), anchors(), MODEL))
    assert golden()["B.empty"] == [0.0, -1]
    assert (targets.matches == -1).all()
    assert not targets.box_targets.any() and not targets.class_targets.any()


def coder(edges: str, max_log_ratio: float = 0.0):
    config = schema.FasterRcnnBoxCoder(**PLAIN, inclusive_edges=edges, max_log_ratio=max_log_ratio)
    return build_box_coder(config, (SIDE, SIDE))


BOX, ANCHOR = (np.float32(box) / SIDE for box in ([10, 20, 110, 220], [12, 30, 100, 200]))


@pytest.mark.parametrize(
    ("edges", "name"),
    [("none", "C.frcnn_encode"), ("decode", "C.frcnn_encode"), ("both", "C.encode_plus1")],
)
def test_codes_are_those_of_the_original_with_either_edge(edges, name):
    np.testing.assert_allclose(coder(edges).encode(BOX, ANCHOR), golden()[name], atol=2e-7)


def test_boxes_are_decoded_as_in_the_original():
    target = coder("decode").encode(BOX, ANCHOR)
    decoded = coder("decode").decode(target, ANCHOR) * SIDE
    np.testing.assert_allclose(decoded, golden()["C.train_target_decoded"], atol=2e-5)
    zero = coder("decode").decode(np.zeros(4, np.float32), ANCHOR) * SIDE
    np.testing.assert_allclose(zero, golden()["C.decode_zero"], atol=2e-5)
    # Codes .1, -.2, .3 and a width beyond log(1000 / 16): 171 * 62.5 = 10687.5 pixels.
    limited = coder("decode", math.log(1000 / 16))
    decoded = limited.decode(np.float32([0.1, -0.2, 0.3, 9.0]), ANCHOR) * SIDE
    np.testing.assert_allclose(decoded, golden()["C.decode_plus1_clip"], rtol=1e-6, atol=2e-5)


@pytest.mark.parametrize("gamma", [1.5, 2.0])
def test_focal_loss_element_by_element(gamma):
    logits = np.float32([[-4.6, 0, 2], [1, -1, 3]])
    targets = np.float32([[0, 0, 1], [1, 0, 0]])
    losses = sigmoid_focal_cross_entropy(logits, targets, gamma=gamma, alpha=0.25)
    expected = golden()[f"D.focal_elem(a=.25,g={gamma},n=1)"]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def test_sums_of_both_losses():
    # Two by two locations with two anchors, three classes; 3 positives, and 1 is added.
    logits = np.linspace(-3, 3, 24, dtype=np.float32).reshape(8, 3)
    targets = np.array([[1, -1], [-2, 2], [-1, -1], [0, -2]]).reshape(8)
    one_hot = np.asarray(targets[:, None] == np.arange(3), np.float32)
    weights = np.asarray(targets != -2, np.float32)
    losses = sigmoid_focal_loss(logits, one_hot, weights, gamma=1.5, alpha=0.25)
    assert losses.sum() / 4 == pytest.approx(golden()["D.cls_loss"], rel=1e-6)

    codes = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
    true_codes = np.zeros((8, 4), np.float32)
    true_codes[0], true_codes[7] = [0.1, -0.2, 0.3, 0], [-0.5, 0.05, 0, 0.7]
    losses = smooth_l1_loss(codes, true_codes, np.ones(8), delta=0.1, skip_zeros=True)
    assert losses.sum() / (4 * 4) == pytest.approx(golden()["D.box_loss"], rel=1e-6)


def test_the_first_loss_of_an_image_without_boxes():
    # All logits at the head's first bias, -log(99); slot 0 is trained like any other.
    logits = jnp.full((1, len(anchors()), 91), -math.log(99.0))
    predictions = Predictions(jnp.zeros((1, len(anchors()), 4)), logits)
    parts = loss_terms(predictions, batch_of([], []), anchors(), MODEL)
    expected = golden()["D.init_cls_loss_per_image_no_positive"]
    assert float(parts.classification) == pytest.approx(expected, rel=1e-5)
    assert float(parts.localization) == 0.0


STEPS = tuple(
    schema.ScheduleStep(step=step, learning_rate=rate)
    for step, rate in ((500, 0.08), (15000, 0.008), (20000, 0.0008))
)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        (
            "G.step",
            schema.ManualStepSchedule(learning_rate=0.0067, schedule=STEPS, warmup=True),
        ),
        (
            "G.cosine",
            schema.CosineSchedule(
                learning_rate=0.08,
                total_steps=22500,
                warmup_learning_rate=0.0067,
                warmup_steps=500,
            ),
        ),
    ],
)
def test_rates(name, schedule):
    rate = build_schedule(schedule)
    for step, expected in golden()[name].items():
        assert float(rate(int(step))) == pytest.approx(expected, rel=2e-6, abs=1e-8), step


# Overlap of the first two: 50 of 100 pixels, exactly the threshold. Scores of classes 0 and 1.
CANDIDATES = np.float32([[0, 0, 10, 10], [0, 0, 10, 5], [20, 20, 30, 30], [50, 50, 60, 60]])
SCORES = np.float32([[0.9, 0.9], [0.7, 0.55], [0.6, 0.7], [0.01, 0.8]])
# The first two drop what overlaps by exactly the threshold; the third looks at all boxes.
NMS_VERSIONS = {
    "v1": {"drop_at_threshold": True, "max_candidates_per_class": 5000},
    "v2": {"drop_at_threshold": True, "max_candidates_per_class": 5000},
    "batched": {},
}


@pytest.mark.parametrize("version", NMS_VERSIONS)
def test_what_each_version_of_nms_finds(version):
    side = 64
    nms = schema.Nms(
        score_threshold=0.05,
        iou_threshold=0.5,
        max_per_class=8,
        max_total=8,
        clip_first=True,
        clip_margin=1.0,
        **NMS_VERSIONS[version],
    )
    model = schema.OneStage(
        num_classes=2,
        background_class=False,
        resizer=schema.FixedShapeResizer(height=side, width=side),
        postprocessing=schema.Postprocessing(nms=nms),
    )
    # A code of zeros is the anchor, and `identity` takes logits for scores.
    detections = postprocess(
        Predictions(jnp.zeros((1, 4, 4)), SCORES[None]),
        CANDIDATES / side,
        jnp.array([[side, side]]),
        model,
    )
    expected = golden()[f"F.{version}"]
    (count,) = expected["valid"]
    assert detections.count.tolist() == [count]
    np.testing.assert_allclose(detections.boxes[0, :count] * side, expected["boxes"][0][:count])
    np.testing.assert_allclose(detections.scores[0, :count], expected["scores"][0][:count])
    assert detections.classes[0, :count].tolist() == expected["classes"][0][:count]
    # Behind them the original has copies of the best box or zeros, with scores of -1 or 0.
    assert not detections.boxes[0, count:].any()
    assert not detections.scores[0, count:].any()


# The original's test image: 0, 1, ... 250, 0, ... row by row.
def counting(height: int, width: int) -> np.ndarray:
    return (np.arange(height * width * 3) % 251).astype(np.uint8).reshape(height, width, 3)


@pytest.mark.parametrize(
    ("size", "frame"),
    [
        ((427, 640), (640, 640)),
        ((480, 640), (640, 640)),
        ((333, 500), (512, 896)),
        ((640, 427), (640, 640)),
        ((100, 37), (300, 300)),
    ],
)
def test_images_are_resized_and_padded_as_in_the_original(size, frame):
    expected = golden()[f"E.{size[0]}x{size[1]}->{list(frame)}"]
    true_size, desired, scale, offset = expected["info"]
    assert tuple(true_size) == size and tuple(desired) == frame and offset == [0, 0]
    resizer = schema.ScaleJitterResizer(height=frame[0], width=frame[1], multiple=128)
    image, shown = resize_image(counting(*size), resizer)
    assert list(image.shape) == expected["shape"]
    # Detections go back by each axis' own scale, and so do ours: shown / size.
    np.testing.assert_allclose(np.divide(shown, size), scale, rtol=1e-7)
    assert image.sum(dtype=np.float64) == pytest.approx(expected["sum"], rel=1e-9)
    places = ((0, 0, 0), (1, 1, 0), (5, 7, 0), (100, 33, 0))
    np.testing.assert_array_equal([image[place] for place in places], np.float32(expected["px"]))


def test_two_pixels_become_four():
    image = np.float32([[0, 3], [6, 9]])[..., None].repeat(3, axis=-1)
    resized, _ = resize_image(image, schema.ScaleJitterResizer(height=4, width=4))
    np.testing.assert_array_equal(resized[..., 0], golden()["E.2x2->4x4 ch0"])


def test_pixels_are_normalised_and_padding_becomes_0():
    mean = tuple(255 * share for share in (0.485, 0.456, 0.406))
    pixels = schema.PixelNormalization(
        mean=mean, std=tuple(255 * share for share in (0.229, 0.224, 0.225))
    )
    colour = (np.float32([0, 128, 255]) - np.float32(pixels.mean)) / np.float32(pixels.std)
    np.testing.assert_allclose(colour, golden()["E.normalize(0,128,255)"][0][0], rtol=1e-6)
    resizer = schema.ScaleJitterResizer(height=4, width=2, pad_value=mean)
    image, _ = resize_image(np.zeros((2, 2, 3), np.uint8), resizer)
    assert not ((image[2:] - np.float32(pixels.mean)) / np.float32(pixels.std)).any()


def test_boxes_are_scaled_cropped_and_clipped():
    # [0, 0, 427, 640] and [10, 20, 30, 50] times 1.5, less (0, 100), in 640 x 640.
    boxes = np.float32([[0, 0, 427, 640], [10, 20, 30, 50]]) / np.float32([428, 640, 428, 640])
    placement = Placement(size=(642, 960), offset=(0, 100), shown=(640, 640))
    placed, left = place_boxes(boxes, placement, schema.ScaleJitterResizer())
    np.testing.assert_allclose(placed * SIDE, golden()["E.clip_crop_boxes"], atol=1e-4)
    # The second has no width left.
    assert left.tolist() == [True, False]

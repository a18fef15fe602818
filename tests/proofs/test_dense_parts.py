"""Matchers, losses, distributions and centerness of mmdet's dense heads, executed.

The numbers come from float64 runs of mmdet 3.3.0; a case names the function that draws its inputs.
Boxes are `x, y, x, y` there.
"""

import json
import runpy
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes.adaptive_matching import atss_match
from stillbox.boxes.distributions import (
    centerness,
    decode_distances,
    distillation_loss,
    distribution_focal_loss,
    encode_distances,
    mean_distances,
)
from stillbox.boxes.geometry import clip_to_window, iou
from stillbox.boxes.losses import (
    ciou_loss,
    diou_loss,
    giou_loss,
    quality_focal_loss,
    sigmoid_cross_entropy,
    varifocal_loss,
)
from stillbox.boxes.matchers import Frame, Rows
from tests.boxes.test_geometry import aligned
from tests.small import SHARED, needs_shared

pytestmark = [needs_shared, pytest.mark.proof]

FOLDER = SHARED / "goldens/dense_heads"
CASES = FOLDER / "units_dense.json"


@cache
def cases() -> dict[str, Any]:
    return {case["id"]: case for case in json.loads(CASES.read_text())["cases"]}


def names(piece: str) -> list[str]:
    if not CASES.is_file():
        return []
    return [name for name, case in cases().items() if case["piece"] == piece]


@cache
def rules() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "dense_inputs.py"))


# What a case says about its rule, beside the arguments.
_BESIDE = ("rule", "then", "all_scores", "note")


def drawn(spec: dict[str, Any], **given: Any) -> Any:
    words = {key: value for key, value in spec.items() if key not in _BESIDE}
    return rules()[spec["rule"]](**given, **words)


@cache
def arrays() -> Any:
    return np.load(FOLDER / "units_dense.npz")


def expected(value: Any) -> np.ndarray:
    if isinstance(value, dict):
        return arrays()[value["npz"]]
    return np.array(value, np.float64)


def flipped(boxes: np.ndarray) -> np.ndarray:
    """Between `x, y, x, y` and our `y, x, y, x`."""
    return np.asarray(boxes)[..., [1, 0, 3, 2]]


def padded(boxes: np.ndarray, labels: np.ndarray) -> tuple[Any, Any, Any]:
    """Adds two rows of padding, one of them with the coordinates of a real box."""
    more = np.array([[0.0, 0.0, 0.0, 0.0], [10.0, 10.0, 90.0, 90.0]])
    rows = np.concatenate([flipped(boxes), more]).astype(np.float32)
    return rows, np.append(labels, [0, 0]), np.arange(len(rows)) < len(boxes)


def same_assignment(matches: np.ndarray, out: dict[str, Any]) -> np.ndarray:
    (positive,) = np.nonzero(np.asarray(matches) >= 0)
    assert np.array_equal(positive, expected(out["positive_anchor"]))
    assert np.array_equal(np.asarray(matches)[positive], expected(out["positive_gt"]))
    return positive


@pytest.mark.parametrize("name", names("atss"))
def test_atss_assigns_the_anchors_of_the_original(name):
    case = cases()[name]
    boxes, labels = drawn(case["inputs"]["gts"])
    anchors, sizes = drawn(case["inputs"]["anchors"])
    rows, _, valid = padded(boxes, labels)
    size = case["inputs"]["gts"]["height"], case["inputs"]["gts"]["width"]
    boxes_in, anchors_in = (
        jnp.asarray(corners, jnp.float32) / jnp.asarray(size * 2)
        for corners in (rows, flipped(anchors))
    )
    frame = Frame(size, tuple(sizes))
    given = Rows(
        lambda row: iou(boxes_in[row], anchors_in), valid, len(rows), boxes_in, anchors_in, frame
    )
    matches = jax.jit(lambda: atss_match(given, candidates=case["inputs"]["topk"]))()
    if name == "atss_ties":
        # The original's choice among equal distances is not defined; each box gets as many.
        counts = np.bincount(np.asarray(matches)[np.asarray(matches) >= 0], minlength=len(boxes))
        assert counts.sum() == case["out"]["num_positive"]
        return
    same_assignment(matches, case["out"])


@pytest.mark.parametrize("name", names("tal"))
def test_task_aligned_assignment_is_that_of_the_original(name):
    case = cases()[name]
    boxes, labels = drawn(case["inputs"]["gts"])
    if case["inputs"]["last_box_replaced"]:
        boxes[-1] = case["inputs"]["last_box_replaced"]
    anchors, _ = drawn(case["inputs"]["anchors"])
    scores, predicted = drawn(case["inputs"]["predictions"], priors=anchors, boxes=boxes)
    rows, classes, valid = padded(boxes, labels)
    matches, quality = jax.jit(aligned)(
        rows, classes, valid, flipped(anchors), scores, flipped(predicted)
    )
    positive, quality = same_assignment(matches, case["out"]), np.asarray(quality)
    np.testing.assert_allclose(
        quality[positive],
        expected(case["out"]["positive_normalised_alignment"]),
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(quality.sum(), case["out"]["sum_normalised_alignment"], rtol=1e-5)


def quality_targets(spec: dict[str, Any]) -> np.ndarray:
    labels, scores = drawn(spec)
    if spec.get("all_scores") is not None:
        scores = np.where(labels < spec["classes"], spec["all_scores"], scores)
    targets = np.zeros((len(labels), spec["classes"] + 1))
    targets[np.arange(len(labels)), labels] = scores
    return targets[:, :-1].astype(np.float32)


def agrees(
    loss: Any, given: np.ndarray, out: dict[str, Any], losses: str, gradient: str, weight: Any = 1
) -> None:
    """Compares the losses of rows, and the gradient of their weighted sum."""
    np.testing.assert_allclose(loss(given), expected(out[losses]), rtol=1e-5, atol=2e-6)
    slopes = jax.grad(lambda x: jnp.sum(weight * loss(x)))(jnp.asarray(given))
    np.testing.assert_allclose(slopes, expected(out[gradient]), rtol=2e-5, atol=2e-6)


def _of_probabilities(probabilities: Any, *arrays: Any, **words: Any) -> Any:
    logits = jnp.log(probabilities) - jnp.log1p(-probabilities)
    return quality_focal_loss(logits, *arrays, **words)


@pytest.mark.parametrize("name", names("qfl"))
def test_quality_focal_loss(name):
    case = cases()[name]
    given, weight = drawn(case["inputs"]["pred"]), drawn(case["inputs"]["row_weight"])
    targets, beta = quality_targets(case["inputs"]["target"]), case["inputs"]["beta"]
    loss = quality_focal_loss
    if case["inputs"]["activated"]:
        given, loss = rules()["f32"](rules()["sigmoid"](given)), _of_probabilities
    ones = np.ones(len(given), np.float32)
    given = given.astype(np.float32)
    rows = partial(loss, targets=targets, weights=ones, beta=beta)
    agrees(rows, given, case["out"], "loss", "grad_pred", weight)
    total = 1.5 * jnp.sum(loss(given, targets, weight, beta=beta)) / 3.25
    name = "module_loss_weight_1.5_row_weight_avg_factor_3.25"
    np.testing.assert_allclose(total, case["out"][name], rtol=1e-5)


@pytest.mark.parametrize("name", names("vfl"))
def test_varifocal_loss(name):
    inputs, out = cases()[name]["inputs"], cases()[name]["out"]
    given = drawn(inputs["pred"]).astype(np.float32)
    targets = quality_targets(inputs["target"])
    words = {
        "alpha": inputs["alpha"],
        "gamma": inputs["gamma"],
        "weighted_by_quality": inputs["iou_weighted"],
    }
    ones = np.ones(len(given), np.float32)
    out = {**out, "sum": expected(out["loss"]).sum(axis=1)}
    agrees(lambda x: varifocal_loss(x, targets, ones, **words), given, out, "sum", "grad_pred")


@pytest.mark.parametrize("name", names("dfl"))
def test_distribution_focal_loss(name):
    inputs, out = cases()[name]["inputs"], cases()[name]["out"]
    given = drawn(inputs["pred"]).astype(np.float32)
    label = inputs["label"]
    label = drawn(label) if isinstance(label, dict) else np.array(label)
    rows = partial(distribution_focal_loss, targets=label)
    agrees(rows, given, out, "loss", "grad_pred", drawn(inputs["row_weight"]))


@pytest.mark.parametrize("name", names("ld_kl"))
def test_distillation_loss(name):
    inputs, out = cases()[name]["inputs"], cases()[name]["out"]
    student, teacher = (drawn(inputs[who]).astype(np.float32) for who in ("student", "teacher"))

    def loss(x):
        return distillation_loss(x, teacher, temperature=inputs["T"])

    agrees(loss, student, out, "loss", "grad_student", drawn(inputs["row_weight"]))


@pytest.mark.parametrize("name", names("integral"))
def test_means_of_distributions(name):
    inputs, out = cases()[name]["inputs"], cases()[name]["out"]
    logits = drawn(inputs["logits"]).astype(np.float32)
    means, back = jax.vjp(lambda x: mean_distances(x, bins=inputs["reg_max"] + 1), logits)
    np.testing.assert_allclose(means, expected(out["distances"]), rtol=1e-5, atol=1e-5)
    (slopes,) = back(jnp.asarray(drawn(inputs["cotangent"]), jnp.float32))
    np.testing.assert_allclose(slopes, expected(out["grad_logits"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", names("distances"))
def test_distances(name):
    inputs, out = cases()[name]["inputs"], cases()[name]["out"]
    points = drawn(inputs["points"])[:, ::-1]
    boxes, distances = flipped(out["boxes"]), flipped(drawn(inputs["distances"]))
    height, width = inputs["image_height_width"]
    close = {"rtol": 1e-6, "atol": 1e-5}
    computed = encode_distances(boxes, points, longest=inputs["max_dis"])
    np.testing.assert_allclose(flipped(computed), out["encoded"], **close)
    computed = encode_distances(boxes, points)
    np.testing.assert_allclose(flipped(computed), out["encoded_no_max"], **close)
    computed = decode_distances(distances, points)
    np.testing.assert_allclose(flipped(computed), out["decoded"], **close)
    clipped = clip_to_window(computed, np.array([0, 0, height, width]))
    np.testing.assert_allclose(flipped(clipped), out["decoded_clipped"], **close)


@pytest.mark.parametrize("name", names("centerness"))
def test_centerness(name):
    inputs, out = cases()[name]["inputs"], cases()[name]["out"]
    centres = drawn(inputs["centres"])
    f32, uniform = rules()["f32"], rules()["uniform"]
    seed, shape = inputs["centres"]["seed"], centres.shape
    low, high = (uniform(seed + k, shape, 0.02, 30) for k in (1, 2))
    boxes = flipped(np.concatenate([f32(centres - low), f32(centres + high)], axis=1))
    target = centerness(boxes, centres[:, ::-1])
    np.testing.assert_allclose(target, out["target"], rtol=1e-4, atol=1e-6)
    logits = drawn(inputs["logits"]).astype(np.float32)

    def loss(x):
        return jnp.sum(sigmoid_cross_entropy(x, target)) / inputs["avg_factor"]

    np.testing.assert_allclose(loss(logits), out["bce_sum_over_avg_factor"], rtol=1e-5)
    np.testing.assert_allclose(jax.grad(loss)(logits), out["grad_logits"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["giou", "diou", "ciou"])
@pytest.mark.parametrize("name", names("iou_losses"))
def test_losses_of_overlaps(name, kind):
    inputs, out = cases()[name]["inputs"], cases()[name]["out"][f"{kind}_mmdet"]
    first, second = (flipped(rows).astype(np.float32) for rows in drawn(inputs["boxes"]))
    loss = {"giou": giou_loss, "diou": diou_loss, "ciou": ciou_loss}[kind]
    ones = np.ones(len(first), np.float32)
    np.testing.assert_allclose(loss(first, second, ones), out["loss"], rtol=1e-5, atol=2e-6)
    slopes = jax.grad(lambda x: jnp.sum(loss(x, second, ones)))(first)
    assert np.isfinite(slopes).all()
    wanted = flipped(out["grad_first"])
    np.testing.assert_allclose(slopes, wanted, rtol=1e-4, atol=2e-6)

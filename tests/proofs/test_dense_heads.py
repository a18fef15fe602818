"""Whole heads of mmdet and torchvision, executed: outputs, losses, gradients and detections.

As in `test_dense_parts.py`, numbers come from float64 runs on drawn weights and features.
"""

import re
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes.structures import Batch, Detections
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of
from stillbox.models import build  # noqa: F401 - registers the parts
from stillbox.models.detector import LossInputs, Predictions, Taught
from stillbox.models.one_stage.detector import postprocess
from stillbox.models.parts import BuildOptions, Outputs
from stillbox.models.variables import Structure, bind_detector, split_detector
from tests.proofs.test_dense_parts import cases, drawn, expected, flipped, names, rules
from tests.small import needs_shared

pytestmark = [needs_shared, pytest.mark.proof]

SIZE = 128, 160
STRIDES = (8, 16, 32)
CLASSES = 4
TOWER = schema.ConvHyperparams(activation="relu", group_norm=schema.GroupNorm(groups=8))


class Kind(NamedTuple):
    """A head of ours beside the original's."""

    head: schema.Head
    coder: schema.BoxCoder
    loss: schema.DetectorLoss
    matcher: schema.Matcher
    names: dict[str, str]
    """Patterns of the original's parameters, and our paths."""


_TOWERS = {
    r"cls_convs\.(\d+)\.conv\.weight": r"class_tower.layer_\1.conv.kernel",
    r"cls_convs\.(\d+)\.gn\.weight": r"class_tower.layer_\1.norm.scale",
    r"cls_convs\.(\d+)\.gn\.bias": r"class_tower.layer_\1.norm.bias",
    r"reg_convs\.(\d+)\.conv\.weight": r"box_tower.layer_\1.conv.kernel",
    r"reg_convs\.(\d+)\.gn\.weight": r"box_tower.layer_\1.norm.scale",
    r"reg_convs\.(\d+)\.gn\.bias": r"box_tower.layer_\1.norm.bias",
    r"(?:atss|gfl)_cls\.weight": r"class_.kernel",
    r"(?:atss|gfl)_cls\.bias": r"class_.bias",
    r"(?:atss|gfl)_reg\.weight": r"box.kernel",
    r"(?:atss|gfl)_reg\.bias": r"box.bias",
    r"atss_centerness\.weight": r"centerness.kernel",
    r"atss_centerness\.bias": r"centerness.bias",
    r"scales\.(\d+)\.scale": r"scale_\1",
}
_SHARED: dict[str, Any] = {"depth": 32, "layers_before": 2, "conv": TOWER}
_GFL = Kind(
    schema.GflHead(**_SHARED),
    schema.DistributionBoxCoder(),
    schema.QualityLoss(),
    schema.AtssMatcher(),
    _TOWERS,
)
_ALIGNED = Kind(
    schema.TaskAlignedHead(depth=32, layers_before=2, conv=TOWER),
    schema.DistanceBoxCoder(),
    schema.QualityLoss(
        class_targets="alignment",
        empty_images_count=False,
        box_weights="alignment",
        distribution_weight=0.0,
    ),
    schema.TaskAlignedMatcher(),
    {
        r"inter_convs\.(\d+)\.conv\.weight": r"layer_\1.conv.kernel",
        r"inter_convs\.(\d+)\.gn\.weight": r"layer_\1.norm.scale",
        r"inter_convs\.(\d+)\.gn\.bias": r"layer_\1.norm.bias",
        r"cls_decomp\.layer_attention\.0\.weight": r"class_decomposition.attention_1.kernel",
        r"cls_decomp\.layer_attention\.0\.bias": r"class_decomposition.attention_1.bias",
        r"cls_decomp\.layer_attention\.2\.weight": r"class_decomposition.attention_2.kernel",
        r"cls_decomp\.layer_attention\.2\.bias": r"class_decomposition.attention_2.bias",
        r"cls_decomp\.reduction_conv\.conv\.weight": r"class_decomposition.reduction.conv.kernel",
        r"cls_decomp\.reduction_conv\.gn\.weight": r"class_decomposition.reduction.norm.scale",
        r"cls_decomp\.reduction_conv\.gn\.bias": r"class_decomposition.reduction.norm.bias",
        r"reg_decomp\.layer_attention\.0\.weight": r"box_decomposition.attention_1.kernel",
        r"reg_decomp\.layer_attention\.0\.bias": r"box_decomposition.attention_1.bias",
        r"reg_decomp\.layer_attention\.2\.weight": r"box_decomposition.attention_2.kernel",
        r"reg_decomp\.layer_attention\.2\.bias": r"box_decomposition.attention_2.bias",
        r"reg_decomp\.reduction_conv\.conv\.weight": r"box_decomposition.reduction.conv.kernel",
        r"reg_decomp\.reduction_conv\.gn\.weight": r"box_decomposition.reduction.norm.scale",
        r"reg_decomp\.reduction_conv\.gn\.bias": r"box_decomposition.reduction.norm.bias",
        r"tood_cls\.weight": r"class_.kernel",
        r"tood_cls\.bias": r"class_.bias",
        r"tood_reg\.weight": r"box.kernel",
        r"tood_reg\.bias": r"box.bias",
        r"cls_prob_module\.0\.weight": r"probability_1.kernel",
        r"cls_prob_module\.0\.bias": r"probability_1.bias",
        r"cls_prob_module\.2\.weight": r"probability_2.kernel",
        r"cls_prob_module\.2\.bias": r"probability_2.bias",
        r"reg_offset_module\.0\.weight": r"offset_1.kernel",
        r"reg_offset_module\.0\.bias": r"offset_1.bias",
        r"reg_offset_module\.2\.weight": r"offset_2.kernel",
        r"reg_offset_module\.2\.bias": r"offset_2.bias",
        r"scales\.(\d+)\.scale": r"scale_\1",
    },
)
KINDS = {
    "tood": _ALIGNED,
    "tood_initial": _ALIGNED._replace(
        loss=replace(_ALIGNED.loss, initial=schema.InitialAssignment(steps=11))
    ),
    "atss": Kind(
        schema.AtssHead(**_SHARED),
        schema.FasterRcnnBoxCoder(max_log_ratio=float(np.log(1000 / 16))),
        schema.QualityLoss(
            classification=schema.SigmoidFocalLoss(alpha=0.25),
            class_targets="one",
            box_weights="centerness",
            distribution_weight=0.0,
            centerness_weight=1.0,
        ),
        schema.AtssMatcher(),
        _TOWERS,
    ),
    "gfl": _GFL,
    "retinanet_v2": Kind(
        schema.WeightSharedHead(depth=32, layers_before=4, conv=TOWER),
        schema.FasterRcnnBoxCoder(
            **dict.fromkeys(("y_scale", "x_scale", "height_scale", "width_scale"), 1.0),
            max_log_ratio=float(np.log(1000 / 16)),
        ),
        schema.Loss(
            classification=schema.SigmoidFocalLoss(gamma=2.0, alpha=0.25),
            localization=schema.GiouLoss(),
            normalize_per_image=True,
            encode_background_as_zeros=True,
        ),
        schema.ArgmaxMatcher(unmatched_threshold=0.4, keep_best_of_each_row=True),
        {
            r"(cls|classification_head\.cls)_logits\.weight": "class_.kernel",
            r"(cls|classification_head\.cls)_logits\.bias": "class_.bias",
            r"regression_head\.bbox_reg\.weight": "box.kernel",
            r"regression_head\.bbox_reg\.bias": "box.bias",
            **{
                rf"{theirs}_head\.conv\.(\d+)\.{index}": rf"{ours}_tower.layer_\1.{path}"
                for theirs, ours in (("classification", "class"), ("regression", "box"))
                for index, path in (
                    (r"0\.weight", "conv.kernel"),
                    (r"1\.weight", "norm.scale"),
                    (r"1\.bias", "norm.bias"),
                )
            },
        },
    ),
    "ld": _GFL._replace(loss=schema.QualityLoss(least_box_weight=1e-6)),
}
# Channels of the original's box codes, in our order of edges.
_FLIPPED = [1, 0, 3, 2]


def order_of(name: str, channels: int) -> np.ndarray:
    """Returns where our channels of a parameter's output are in the original's order."""
    module = name.rpartition(".")[0]
    if module.endswith("bbox_reg"):
        return np.arange(channels).reshape(-1, 4)[:, _FLIPPED].ravel()
    if module.endswith("_reg") or module == "reg_offset_module.2":
        return np.arange(channels).reshape(4, -1)[_FLIPPED].ravel()
    return np.arange(channels)


def converted(kind: str, name: str, value: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns our path of a parameter, and its value in our layout."""
    for pattern, path in KINDS[kind].names.items():
        if re.fullmatch(pattern, name):
            if value.ndim:
                value = value[order_of(name, len(value))]
            if value.ndim == 4:
                value = value.transpose(2, 3, 1, 0)
            return re.sub(pattern, path, name), value.astype(np.float32)
    raise KeyError(name)


def model_of(kind: Kind, nms: schema.Nms | None = None) -> schema.OneStage:
    return schema.OneStage(
        num_classes=CLASSES,
        resizer=schema.FixedShapeResizer(height=SIZE[0], width=SIZE[1]),
        background_class=False,
        head=kind.head,
        box_coder=kind.coder,
        matcher=kind.matcher,
        loss=kind.loss,
        postprocessing=schema.Postprocessing(
            score_converter="sigmoid", nms=nms if nms is not None else schema.Nms()
        ),
    )


def anchors_of(kind: str) -> tuple[np.ndarray, tuple[int, ...]]:
    boxes, sizes = torchvision_anchors() if kind == "retinanet_v2" else mmdet_anchors()
    return (flipped(boxes) / np.array(SIZE * 2)).astype(np.float32), tuple(sizes)


def mmdet_anchors() -> tuple[np.ndarray, list[int]]:
    anchors: tuple[np.ndarray, list[int]] = rules()["anchors"](*SIZE, STRIDES)
    return anchors


def torchvision_anchors() -> tuple[np.ndarray, list[int]]:
    """Returns nine anchors at a location: three sizes, and three ratios of height to width."""
    levels = []
    for stride in STRIDES:
        least = 4 * stride
        sizes = np.array([least, int(least * 2 ** (1 / 3)), int(least * 2 ** (2 / 3))])
        roots = np.sqrt([0.5, 1.0, 2.0])
        sides = np.stack([np.outer(1 / roots, sizes), np.outer(roots, sizes)], axis=-1)
        half = np.round(sides.reshape(-1, 2) / 2)
        rows, columns = (np.arange(-(-side // stride)) * stride for side in SIZE)
        centers = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 1, 2)
        boxes = np.concatenate([centers - half, centers + half], axis=-1)
        levels.append(boxes.reshape(-1, 4))
    return np.concatenate(levels), [len(level) for level in levels]


@cache
def graph_of(kind: str) -> tuple[Structure[Any], dict[str, tuple[int, ...]]]:
    """Returns a head without its parameters, and their shapes by path."""
    setup = KINDS[kind]
    count = 9 if kind == "retinanet_v2" else 1
    outputs = Outputs((count,) * len(STRIDES), CLASSES, setup.coder.code_size)
    options = BuildOptions(jnp.float32, freeze_norm=False, rng=np.random.default_rng(0))
    head = implementation_of(setup.head)(setup.head, (32,) * len(STRIDES), outputs, options)
    graph, params, _ = split_detector(head)
    return graph, {path: array.shape for path, array in params.items()}


def predict(kind: str, params: Any, maps: Any) -> Predictions:
    head = bind_detector(graph_of(kind)[0], params, {})
    predictions: Predictions = head(maps, train=True, dropout_key=None)
    return predictions


def inputs_of(
    kind: str, inputs: dict[str, Any]
) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]:
    """Returns the parameters and the feature maps of a case, in our layout."""
    drawn_values = drawn(inputs["parameters"])
    params = dict(converted(kind, name, value) for name, value in drawn_values.items())
    assert graph_of(kind)[1] == {path: value.shape for path, value in params.items()}
    maps = drawn(inputs["features"])
    return params, tuple(array.transpose(0, 2, 3, 1).astype(np.float32) for array in maps)


def batch_of(inputs: dict[str, Any]) -> Batch:
    shape = len(inputs["gts"]), 30
    boxes, classes, weights = np.zeros((*shape, 4)), np.zeros(shape), np.zeros(shape)
    for image, spec in enumerate(inputs["gts"]):
        corners, labels = drawn(spec)
        boxes[image, : len(corners)] = flipped(corners) / np.array(SIZE * 2)
        classes[image, : len(corners)], weights[image, : len(corners)] = labels, 1.0
    count = len(inputs["gts"])
    return Batch(
        images=np.zeros((count, *SIZE, 3), np.uint8),
        boxes=boxes.astype(np.float32),
        classes=classes.astype(np.int32),
        weights=weights.astype(np.float32),
        true_sizes=np.tile(np.array(SIZE, np.int32), (count, 1)),
        image_weights=np.ones(count, np.float32),
        records=np.arange(count),
    )


def teacher_of(inputs: dict[str, Any]) -> np.ndarray | None:
    """Returns the drawn logits of a teacher, `[B, 4K, H, W]` for each map, as `[B, A, 4K]`."""
    if inputs.get("teacher") is None:
        return None
    maps = [drawn(maps_of_level) for maps_of_level in inputs["teacher"]]
    order = np.arange(maps[0].shape[1]).reshape(4, -1)[_FLIPPED].ravel()
    rows = [level[:, order].reshape(*level.shape[:2], -1).transpose(0, 2, 1) for level in maps]
    return np.concatenate(rows, axis=1).astype(np.float32)


TERMS = {
    "loss_cls": "classification_loss",
    "loss_bbox": "localization_loss",
    "loss_dfl": "distribution_loss",
    "loss_centerness": "centerness_loss",
    "loss_ld": "distillation_loss",
    "classification": "classification_loss",
    "bbox_regression": "localization_loss",
}
# Losses with a teacher and with TOOD's first matcher are compiled for seconds, and are slow.
LOSSES = [
    pytest.param(kind, name, id=name, marks=marks)
    for kind, piece, marks in [
        ("atss", "head_loss_atss", ()),
        ("gfl", "head_loss_gfl", ()),
        ("ld", "head_loss_ld", pytest.mark.slow),
        ("tood_initial", "head_loss_tood_initial", pytest.mark.slow),
        ("tood", "head_loss_tood", ()),
        ("retinanet_v2", "head_retinanet_v2", ()),
    ]
    for name in names(piece)
]


@cache
def losses_of(kind: str, temperature: float | None) -> Any:
    """Returns the losses and their gradients as a function that is compiled for all its cases."""
    model = model_of(KINDS[kind])
    anchors, sizes = anchors_of(kind)

    def total(params: Any, maps: Any, batch: Batch, teacher: Any) -> Any:
        taught = None if teacher is None else Taught(teacher, 0.25, temperature)
        losses = implementation_of(model.loss)(
            model.loss,
            model,
            predict(kind, params, maps),
            anchors,
            sizes,
            LossInputs(batch, step=jnp.int32(10), taught=taught),
        )
        return sum(losses.terms.values()), losses.terms

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))


@pytest.mark.parametrize(("kind", "name"), LOSSES)
def test_losses_and_gradients_are_those_of_the_original(kind, name):
    case = cases()[name]
    (value, terms), (of_params, of_maps) = losses_of(kind, case["inputs"].get("T"))(
        *inputs_of(kind, case["inputs"]), batch_of(case["inputs"]), teacher_of(case["inputs"])
    )
    for theirs, ours in TERMS.items():
        if theirs in case["out"]["losses"]:
            wanted = np.sum(case["out"]["losses"][theirs])
            np.testing.assert_allclose(terms[ours], wanted, rtol=2e-5, atol=1e-6, err_msg=ours)
    np.testing.assert_allclose(value, case["out"]["total"], rtol=1e-5)
    theirs = case["out"]["gradient_l2_sum_dot"]
    largest = max(abs(numbers[0]) for numbers in theirs.values())
    for parameter, numbers in theirs.items():
        if parameter.startswith("feature_"):
            gradient = np.asarray(of_maps[int(parameter[-1])]).transpose(0, 3, 1, 2)
        else:
            gradient = their_layout(kind, parameter, of_params)
        probe = rules()["probe"](parameter, gradient.shape)
        ours = [np.linalg.norm(gradient), gradient.sum(), (gradient * probe).sum()]
        np.testing.assert_allclose(ours, numbers, rtol=1e-4, atol=2e-5 * largest, err_msg=parameter)


def their_layout(kind: str, name: str, params: Any) -> np.ndarray:
    for pattern, path in KINDS[kind].names.items():
        if re.fullmatch(pattern, name):
            value = np.asarray(params[re.sub(pattern, path, name)], np.float64)
            value = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value
            return value[np.argsort(order_of(name, len(value)))] if value.ndim else value
    raise KeyError(name)


PREDICTIONS = [
    pytest.param(kind, name, id=name)
    for kind, piece in [("atss", "predict_atss"), ("gfl", "predict_gfl"), ("tood", "predict_tood")]
    for name in names(piece)
]


@cache
def detections_of(kind: str, nms: schema.Nms) -> Any:
    """Returns the detections as a function that is compiled for all cases of one suppression."""
    model = model_of(KINDS[kind], nms)
    anchors, sizes = anchors_of(kind)

    def detect(params: Any, maps: Any, true_sizes: Any) -> Detections:
        return postprocess(predict(kind, params, maps), anchors, true_sizes, model, sizes)

    return jax.jit(detect)


def detected(kind: str, inputs: dict[str, Any], nms: schema.Nms) -> Detections:
    true_sizes = np.array(inputs["image_shapes"], np.int32)
    detections: Detections = detections_of(kind, nms)(*inputs_of(kind, inputs), true_sizes)
    return detections


@pytest.mark.parametrize("name", names("head_retinanet_v2"))
def test_detections_are_those_of_torchvision(name):
    case, kind = cases()[name], "retinanet_v2"
    nms = schema.Nms(
        score_threshold=0.05,
        iou_threshold=0.5,
        max_candidates_per_level=1000,
        max_total=300,
        max_per_class=300,
        change_coordinate_frame=False,
        clip_first=True,
        empty_boxes="keep",
    )
    detections = detected(kind, case["inputs"], nms)
    for image, out in enumerate(case["out"]["detections"]):
        scores, boxes = expected(out["scores"]), expected(out["boxes"])
        assert detections.count[image] == out["count"]
        np.testing.assert_allclose(detections.scores[image, : len(scores)], scores, rtol=2e-5)
        ours = flipped(np.asarray(detections.boxes[image, : len(boxes)]) * np.array(SIZE * 2))
        np.testing.assert_allclose(ours, boxes, atol=2e-3)


@pytest.mark.parametrize(("kind", "name"), PREDICTIONS)
def test_detections_are_those_of_the_original(kind, name):
    case = cases()[name]
    test = case["inputs"]["test_cfg"]
    nms = schema.Nms(
        score_threshold=test["score_thr"],
        iou_threshold=test["nms"]["iou_threshold"],
        max_candidates_per_level=test["nms_pre"],
        max_total=test["max_per_img"],
        max_per_class=test["max_per_img"],
        change_coordinate_frame=False,
        clip=kind != "tood",
        clip_first=kind != "tood",
        empty_boxes="drop",
    )
    detections = detected(kind, case["inputs"], nms)
    for image, out in enumerate(case["out"]["images"]):
        count = out["count"]
        assert detections.count[image] == count
        np.testing.assert_allclose(
            detections.scores[image, :count], expected(out["scores"])[:count], rtol=2e-5, atol=1e-6
        )
        assert np.array_equal(detections.classes[image, :count], expected(out["labels"])[:count])
        factors = np.array(case["inputs"]["scale_factors"][image] * 2)
        scale = np.array(SIZE * 2) / (factors if case["inputs"]["rescale"] else 1.0)
        boxes = flipped(np.asarray(detections.boxes[image, :count]) * scale)
        np.testing.assert_allclose(boxes, expected(out["boxes"])[:count], atol=2e-3)

import json
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from stillbox.checkpoints.name_tables import rules
from stillbox.checkpoints.names import parts_without_names, reference_names
from stillbox.experiment import schema
from stillbox.models.build import abstract_detector, build_detector
from tests.checkpoints.detectors import ssd, ssd_mobilenet_shapes
from tests.tpu_detection import retinanet

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "checkpoints"
MODEL = schema.OneStage()


def _arrays(shapes):
    return {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}


def test_all_199_variables_of_the_original_are_named_with_their_shapes():
    shapes = ssd_mobilenet_shapes()
    ours = {name: list(shapes[path]) for path, name in _names(shapes).items()}
    golden = GOLDENS / "ssd_mobilenet_v1_300x300_coco14_sync_variables.json"
    theirs = dict(json.loads(golden.read_text()))
    assert len(theirs) == 199
    assert ours == theirs


def _names(shapes, **options):
    return reference_names(MODEL, _arrays(shapes), **options)


def test_ranges_are_named_after_the_operations():
    shapes = ssd_mobilenet_shapes() | {
        f"{layer}.{rounding}.{end}": ()
        for layer in ("backbone.conv_0", "neck.extra_2_1x1", "head.map_0.box")
        for rounding in ("weights_quant", "act_quant")
        for end in ("min", "max")
    }
    names = _names(shapes)
    # As in the tensors of the published coco_ssd_mobilenet_v1_1.0_quant: slim's MobileNet v1 opens
    # its scope twice, once for the variables and once more for the operations.
    first = "FeatureExtractor/MobilenetV1/MobilenetV1/Conv2d_0"
    assert names["backbone.conv_0.act_quant.max"] == f"{first}/act_quant/max"
    assert names["neck.extra_2_1x1.weights_quant.min"] == (
        "FeatureExtractor/MobilenetV1/Conv2d_13_pointwise_1_Conv2d_2_1x1_256/weights_quant/min"
    )
    assert (
        names["head.map_0.box.act_quant.min"] == "BoxPredictor_0/BoxEncodingPredictor/act_quant/min"
    )


def test_extra_layers_are_named_after_their_own_channels():
    names = _names(ssd_mobilenet_shapes(multiplier=0.75))
    root = "FeatureExtractor/MobilenetV1/Conv2d_13_pointwise"
    # 512 * .75 = 384 and half of it; 128 * .75 / 2 = 48.
    assert names["neck.extra_2_1x1.kernel"] == f"{root}_1_Conv2d_2_1x1_192/weights"
    assert names["neck.extra_2_3x3.kernel"] == f"{root}_2_Conv2d_2_3x3_s2_384/weights"
    assert names["neck.extra_5_1x1.norm.var"] == (
        f"{root}_1_Conv2d_5_1x1_48/BatchNorm/moving_variance"
    )


def test_a_classifier_names_the_backbone_without_the_detectors_prefix():
    names = _names(ssd_mobilenet_shapes(), scope="classification")
    assert names["backbone.conv_0.kernel"] == "MobilenetV1/Conv2d_0/weights"
    assert names["backbone.conv_7_depthwise.kernel"] == (
        "MobilenetV1/Conv2d_7_depthwise/depthwise_weights"
    )
    # 27 convolutions with a kernel and the four arrays of batch norm.
    assert len(names) == 27 * 5


def test_layers_before_the_head_are_named_after_their_channels():
    names = _names(ssd_mobilenet_shapes(before=2))
    assert names["head.map_4.before_1.kernel"] == "BoxPredictor_4/Conv2d_1_1x1_64/weights"
    assert names["head.map_4.before_1.norm.bias"] == (
        "BoxPredictor_4/Conv2d_1_1x1_64/BatchNorm/beta"
    )


def test_a_layer_without_batch_norm_has_biases():
    arrays = {"backbone.conv_0.kernel": (3, 3, 3, 32), "backbone.conv_0.bias": (32,)}
    assert _names(arrays)["backbone.conv_0.bias"] == "FeatureExtractor/MobilenetV1/Conv2d_0/biases"


def test_a_single_feature_map_has_no_scope_of_its_own():
    shapes = {p: s for p, s in ssd_mobilenet_shapes().items() if p.startswith("head.map_0")}
    assert _names(shapes)["head.map_0.box.bias"] == "BoxEncodingPredictor/biases"


def test_what_the_original_does_not_have_gets_no_name():
    assert _names({"head.map_0.mask.kernel": (1, 1, 4, 4), "backbone.conv_0.gain": (3,)}) == {}


def _detector_names(model):
    detector = nnx.eval_shape(lambda: build_detector(model))
    state = nnx.to_flat_state(nnx.state(detector))
    return reference_names(model, {".".join(map(str, p)): v for p, v in state})


def test_mobilenet_v2_is_named_as_slim_names_it():
    conv = schema.ConvHyperparams(batch_norm=schema.BatchNorm(scale=True))
    model = schema.OneStage(
        backbone=schema.MobileNetV2(conv=conv),
        neck=schema.SsdExtraLayers(taps=("block_13_expand", "conv_1"), depthwise=True, conv=conv),
        head=schema.ConvolutionalHead(depthwise=True, kernel_size=3, conv=conv),
    )
    names = _detector_names(model)
    root = "FeatureExtractor/MobilenetV2"
    assert names["backbone.conv_0.kernel"] == f"{root}/Conv/weights"
    assert names["backbone.conv_1.norm.mean"] == f"{root}/Conv_1/BatchNorm/moving_mean"
    depthwise = f"{root}/expanded_conv/depthwise/depthwise_weights"
    assert names["backbone.block_0_depthwise.kernel"] == depthwise
    assert names["backbone.block_16_project.norm.scale"] == (
        f"{root}/expanded_conv_16/project/BatchNorm/gamma"
    )
    # A depthwise layer is called after the channels of the 1x1 behind it, not its own 256.
    assert names["neck.extra_2_1x1.kernel"] == f"{root}/layer_19_1_Conv2d_2_1x1_256/weights"
    halved = f"{root}/layer_19_2_Conv2d_2_3x3_s2_512"
    assert names["neck.extra_2_depthwise.kernel"] == f"{halved}_depthwise/depthwise_weights"
    assert names["neck.extra_2_3x3.kernel"] == f"{halved}/weights"
    assert names["head.map_3.class_depthwise.norm.bias"] == (
        "BoxPredictor_3/ClassPredictor_depthwise/BatchNorm/beta"
    )
    assert names["head.map_3.class_.bias"] == "BoxPredictor_3/ClassPredictor/biases"


def test_a_separable_pyramid_and_head_are_named_as_slim_names_them():
    conv = schema.ConvHyperparams(batch_norm=schema.BatchNorm())
    model = schema.OneStage(
        resizer=schema.FixedShapeResizer(height=64, width=64),
        backbone=schema.MobileNetV2(conv=conv, last_depth=256),
        neck=schema.Fpn(depthwise=True, conv=conv),
        head=schema.WeightSharedHead(depthwise=True, share_tower=True, conv=conv),
        anchors=schema.MultiscaleAnchors(),
    )
    names = _detector_names(model)
    fpn = "FeatureExtractor/MobilenetV2/fpn"
    assert names["neck.smoothing_1.depthwise_kernel"] == f"{fpn}/smoothing_1/depthwise_weights"
    assert names["neck.smoothing_1.kernel"] == f"{fpn}/smoothing_1/pointwise_weights"
    assert names["neck.coarse_2.norm.bias"] == f"{fpn}/bottom_up_Conv2d_21/BatchNorm/beta"
    head = "WeightSharedConvolutionalBoxPredictor"
    tower = f"{head}/PredictionTower/conv2d_3"
    assert names["head.tower.layer_3.conv.kernel"] == f"{tower}/pointwise_weights"
    assert names["head.tower.layer_3.norm_4.var"] == (
        f"{tower}/BatchNorm/feature_4/moving_variance"
    )
    assert names["head.class_.depthwise_kernel"] == f"{head}/ClassPredictor/depthwise_weights"


@dataclass(frozen=True, kw_only=True)
class _OwnBackbone(schema.MobileNetV1, kind="own_backbone"):
    pass


@dataclass(frozen=True, kw_only=True)
class _OwnNeck(schema.SsdExtraLayers, kind="own_neck"):
    pass


# Otherwise they would be part of the schema in all tests of this process.
del schema.Backbone.variants["own_backbone"]
del schema.Neck.variants["own_neck"]


def test_a_part_without_a_table_has_no_names_and_the_others_keep_theirs():
    shapes = ssd_mobilenet_shapes()
    names = reference_names(replace(MODEL, neck=_OwnNeck()), _arrays(shapes))
    assert names == {p: n for p, n in _names(shapes).items() if not p.startswith("neck.")}
    model = replace(MODEL, neck=_OwnNeck())
    assert parts_without_names(model, shapes, names) == ["neck 'own_neck'"]


@pytest.mark.parametrize("scope", ["detection", "classification"])
def test_without_a_table_of_the_backbone_nothing_has_a_name(scope):
    model = replace(MODEL, backbone=_OwnBackbone())
    assert reference_names(model, _arrays(ssd_mobilenet_shapes()), scope=scope) == {}


def test_a_model_of_another_architecture_has_no_names():
    model, shapes = schema.Model(), ssd_mobilenet_shapes()
    assert reference_names(model, _arrays(shapes)) == {}
    assert parts_without_names(model, shapes, _names(shapes)) == []


def test_a_registered_table_is_used(monkeypatch):
    monkeypatch.setitem(rules.BACKBONES, _OwnBackbone, ())
    monkeypatch.setitem(rules.PARTS, ("own", schema.SsdExtraLayers), ())
    table = rules.BackboneTable(
        convention=rules.SLIM,
        roots={"classification": ("own",), "detection": ("own",)},
        rules=(rules.LayerRule(r"backbone\.conv_(\d+)", "{root}/layer{0:+1}"),),
        codebase="own",
    )
    rules.register_backbone(_OwnBackbone, table)
    rules.register_part(
        "own", schema.SsdExtraLayers, (rules.LayerRule(r"neck\.extra_2_1x1", "own/{tap}"),)
    )
    names = reference_names(
        replace(MODEL, backbone=_OwnBackbone()), _arrays(ssd_mobilenet_shapes())
    )
    assert names["backbone.conv_0.kernel"] == "own/layer1/weights"
    assert names["neck.extra_2_1x1.kernel"] == "own/conv_13_pointwise/weights"
    assert not [path for path in names if path.startswith("head.")]


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        ssd(),
        retinanet(),
        retinanet(schema.Identity(), schema.SPINENET_SIZES["49S"]),
        retinanet(schema.Identity(), schema.SPINENET_MBCONV_SIZES["49"], depthwise=True),
    ],
    ids=["mobilenet", "resnet34", "resnet50", "spinenet", "spinenet_mbconv"],
)
def test_parameters_without_moving_statistics_keep_their_names(model):
    _, params, stats = abstract_detector(model, "float32")
    names = reference_names(model, params | stats)
    assert reference_names(model, params) == {path: names[path] for path in params}


def test_extra_layers_are_named_by_their_kernels():
    """As `embedded_ssd_mobilenet_v1` of the original, whose 184 names and shapes these equal."""
    neck = schema.SsdExtraLayers(
        extra_depths=(512, 256, 256), extra_kernel_sizes=(3, 3, 2), depth_multiplier=0.125
    )
    model = schema.OneStage(
        backbone=schema.MobileNetV1(depth_multiplier=0.125),
        neck=neck,
        anchors=schema.SsdAnchors(num_layers=5),
    )
    _, params, _ = abstract_detector(model, "float32")
    names = reference_names(model, params)
    root = "FeatureExtractor/MobilenetV1/Conv2d_13_pointwise_2_Conv2d"
    assert names["neck.extra_3_3x3.kernel"] == f"{root}_3_3x3_s2_32/weights"
    assert names["neck.extra_4_3x3.kernel"] == f"{root}_4_2x2_s2_32/weights"
    assert params["neck.extra_4_3x3.kernel"].shape == (2, 2, 16, 32)

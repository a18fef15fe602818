"""Imported layers compute what the framework of their weights computes.

The other side of the comparison reads the arrays as they are in the file, with the paddings of
TensorFlow and PyTorch written out.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.checkpoints.name_tables import rules
from stillbox.checkpoints.names import parts_without_names, reference_names
from stillbox.experiment import schema
from stillbox.models.build import abstract_detector, build_detector
from stillbox.models.paths import variables_of
from tests.checkpoints.detectors import Holder, random_arrays, ssd, ssd_mobilenet_shapes
from tests.checkpoints.tf_writer import write_checkpoint
from tests.checkpoints.torch_writer import state_dict, write_zip
from tests.tpu_detection import retinanet

CONV = replace(schema.ResNet().conv, batch_norm=schema.BatchNorm(epsilon=1e-5, scale=True))
CONFIG = schema.ResNet(depth=10, conv=CONV)
# Size, inputs, outputs and stride; a block has projection, first and second convolution.
STEM = (7, 3, 64, 2)
PLAIN = ((3, 64, 64, 1), (3, 64, 64, 1))
STRIDED = ((1, 64, 128, 2), (3, 64, 128, 2), (3, 128, 128, 1))


class World(NamedTuple):
    """A framework: its names of a convolution and of batch norm, kernels, pooling, file."""

    layers: tuple
    arrays: tuple
    kernel: str
    pool: tuple
    write: object


def _write_torch(path, arrays):
    write_zip(path, state_dict(arrays))


WORLDS = {
    "same": World(
        layers=tuple(
            (f"conv2d{number}/", f"batch_normalization{number}/")
            for number in ("", "_1", "_2", "_3", "_4", "_5")
        ),
        arrays=("kernel", "gamma", "beta", "moving_mean", "moving_variance"),
        kernel="HWIO",
        # Of 16 x 16 the least padding is one pixel, which TensorFlow puts at the end.
        pool=(0, 1),
        write=write_checkpoint,
    ),
    "symmetric": World(
        layers=(
            ("conv1.", "bn1."),
            ("layer1.0.conv1.", "layer1.0.bn1."),
            ("layer1.0.conv2.", "layer1.0.bn2."),
            ("layer2.0.downsample.0.", "layer2.0.downsample.1."),
            ("layer2.0.conv1.", "layer2.0.bn1."),
            ("layer2.0.conv2.", "layer2.0.bn2."),
        ),
        arrays=("weight", "weight", "bias", "running_mean", "running_var"),
        kernel="OIHW",
        pool=(1, 1),
        write=_write_torch,
    ),
}


def _arrays(world):
    shapes = {}
    for (conv, norm), spec in zip(world.layers, (STEM, *PLAIN, *STRIDED), strict=True):
        size, inputs, outputs, _ = spec
        axes = {"H": size, "W": size, "I": inputs, "O": outputs}
        kernel, *others = world.arrays
        shapes[conv + kernel] = tuple(axes[axis] for axis in world.kernel)
        shapes |= {norm + name: (outputs,) for name in others}
    arrays = random_arrays(shapes)
    # Variances are positive; small kernels keep the sums small.
    return {
        name: np.abs(array) + 0.5 if "var" in name else array * 0.05 if array.ndim == 4 else array
        for name, array in arrays.items()
    }


def _network(world, arrays, x, pool):
    """Stem, pooling, a plain block and a strided one: `[B, H, W, 3]` to `[B, H/8, W/8, 128]`."""
    layers = iter(zip(world.layers, (STEM, *PLAIN, *STRIDED), strict=True))

    def layer(x):
        (conv, norm), (size, _, _, stride) = next(layers)
        kernel, scale, shift, mean, variance = (
            arrays[scope + name]
            for scope, name in zip((conv, *[norm] * 4), world.arrays, strict=True)
        )
        pad, axes = (size // 2, size // 2), ("NHWC", world.kernel, "NHWC")
        x = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), (pad, pad), dimension_numbers=axes
        )
        return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift

    relu = jax.nn.relu
    window, strides, pads = (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), pool, pool, (0, 0))
    x = jax.lax.reduce_window(relu(layer(x)), -np.inf, jax.lax.max, window, strides, pads)
    x = relu(x + layer(relu(layer(x))))
    projected = layer(x)
    return relu(projected + layer(relu(layer(x))))


@pytest.mark.parametrize("padding", WORLDS)
def test_imported_layers_compute_what_their_framework_computes(tmp_path, padding):
    world = WORLDS[padding]
    arrays, config = _arrays(world), replace(CONFIG, pool_padding=padding)
    world.write(tmp_path / "weights.pth", arrays)
    holder = Holder(config, "group_2")
    model = schema.OneStage(backbone=config, neck=schema.SsdExtraLayers(taps=("group_2",)))
    options = ImportOptions(scope="classification", load_heads=False)
    report = import_weights(holder, model, tmp_path / "weights.pth", options)
    assert len(report.loaded) == 6 * 5
    assert not report.notes and not report.skipped
    images = np.random.default_rng(2).standard_normal((1, 32, 32, 3), np.float32)
    (ours,) = holder.backbone(images, train=False)
    theirs = _network(world, arrays, images, world.pool)
    assert ours.shape == (1, 4, 4, 128)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    # With the other framework's padding the numbers are others.
    (other,) = {(0, 1), (1, 1)} - {world.pool}
    assert np.abs(_network(world, arrays, images, other) - theirs).max() > 0.1


GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "checkpoints"
MODEL = schema.OneStage()


def _zeros(shapes):
    return {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}


def test_all_199_variables_of_the_original_are_named_with_their_shapes():
    shapes = ssd_mobilenet_shapes()
    ours = {name: list(shapes[path]) for path, name in _names(shapes).items()}
    golden = GOLDENS / "ssd_mobilenet_v1_300x300_coco14_sync_variables.json"
    theirs = dict(json.loads(golden.read_text()))
    assert len(theirs) == 199
    assert ours == theirs


def _names(shapes, **options):
    return reference_names(MODEL, _zeros(shapes), **options)


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
    return reference_names(model, variables_of(detector))


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
    names = reference_names(replace(MODEL, neck=_OwnNeck()), _zeros(shapes))
    assert names == {p: n for p, n in _names(shapes).items() if not p.startswith("neck.")}
    model = replace(MODEL, neck=_OwnNeck())
    assert parts_without_names(model, shapes, names) == ["neck 'own_neck'"]


@pytest.mark.parametrize("scope", ["detection", "classification"])
def test_without_a_table_of_the_backbone_nothing_has_a_name(scope):
    model = replace(MODEL, backbone=_OwnBackbone())
    assert reference_names(model, _zeros(ssd_mobilenet_shapes()), scope=scope) == {}


def test_a_model_of_another_architecture_has_no_names():
    model, shapes = schema.Model(), ssd_mobilenet_shapes()
    assert reference_names(model, _zeros(shapes)) == {}
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
    names = reference_names(replace(MODEL, backbone=_OwnBackbone()), _zeros(ssd_mobilenet_shapes()))
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
    """The same 184 names and shapes as `embedded_ssd_mobilenet_v1` of the original."""
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

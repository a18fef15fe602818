import json
from pathlib import Path

import jax
import jax.numpy as jnp

from stillbox.checkpoints.names import reference_names
from stillbox.experiment import schema
from tests.checkpoints.detectors import ssd_mobilenet_shapes

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "checkpoints"
MODEL = schema.Model()


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

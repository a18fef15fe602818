"""What must hold between backbone, neck, head, anchors and the image."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.overrides import apply_overrides
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check

PYRAMID = (
    "model.resizer={height: 640, width: 640}",
    "model.neck={kind: fpn}",
    "model.anchors={kind: multiscale}",
)


def refused(*overrides):
    with pytest.raises(UserError) as caught:
        check(apply_overrides(schema.Experiment(), overrides, {}), {})
    return caught.value


def accepted(*overrides):
    check(apply_overrides(schema.Experiment(), overrides, {}), {})


@pytest.mark.parametrize(
    ("overrides", "where", "what", "fix"),
    [
        (
            ["train.quantization={}", *PYRAMID, "model.neck={kind: nas_fpn}"],
            "train.quantization",
            "the neck 'nas_fpn' cannot be quantised",
            "take one of ssd_layers, fpn, ppn, identity, mnasfpn",
        ),
        (
            ["train.quantization={}", "model={kind: faster_rcnn}", "model.resizer.height=800"],
            "train.quantization",
            "a model of kind faster_rcnn cannot be quantised",
            "set it to null",
        ),
        (
            [*PYRAMID, "model.resizer.height=600"],
            "model.resizer.height",
            "a side of 600 pixels does not fit",
            "576 and 608",
        ),
        (
            [*PYRAMID, "model.resizer={kind: keep_aspect_ratio, max_dimension: 1000}"],
            "model.resizer.max_dimension",
            "1000 pixels does not fit",
            "992 and 1024",
        ),
        (
            [*PYRAMID, "model.anchors.min_level=4"],
            "model.anchors.min_level",
            "anchors of min_level 4 for a pyramid of min_level 3",
            "set it to 3",
        ),
        (
            [*PYRAMID, "model.neck.min_level=6", "model.anchors.min_level=6"],
            "model.neck.min_level",
            "the backbone has the levels 2 to 5",
            "from 2 to 5",
        ),
        (
            [*PYRAMID, "model.neck.max_level=2", "model.anchors.max_level=2"],
            "model.neck.min_level",
            "min_level 3 is above max_level 2",
            "lower it, or raise max_level",
        ),
        (
            [*PYRAMID, "model.backbone={kind: resnet_v1, depth: 34}"],
            "model.backbone.depth",
            "no resnet_v1 with 34 layers",
            "50, 101, 152",
        ),
        (
            [*PYRAMID, "model.backbone={kind: resnet_v1}", "model.resizer={height: 128}"],
            "model.resizer.height",
            "128 pixels is too small for resnet_v1",
            "at least 129",
        ),
        (
            ["model.neck={kind: ppn, tap: conv_11_pointwis}"],
            "model.neck.tap",
            "mobilenet_v1 has no layer 'conv_11_pointwis'",
            "conv_11_pointwise",
        ),
        (
            ["model.neck={kind: ppn, num_maps: 4}"],
            "model.anchors.num_layers",
            "anchors for 6 feature maps, but the neck makes 4",
            "4 maps",
        ),
        (
            ["model.backbone.last_layer=conv_14_pointwise"],
            "model.backbone.last_layer",
            "no layer 'conv_14_pointwise'",
            "conv_13_pointwise",
        ),
        (
            ["model.backbone.last_depths=[512]"],
            "model.backbone.last_depths",
            "last_depths has 1 numbers",
            "give two",
        ),
        (
            ["model.head.depthwise=true"],
            "model.head.depthwise",
            "kernel_size 1 reads single pixels",
            "set kernel_size to 3",
        ),
        (
            ["model.head={kind: weight_shared}"],
            "model.anchors.reduce_boxes_in_lowest_layer",
            "as many anchors on every map",
            "set it to false",
        ),
        (
            ["model.backbone={kind: mobilenet_v2}"],
            "model.neck.taps",
            "mobilenet_v2 has no layer 'conv_11_pointwise'",
            "conv_0 ... conv_1",
        ),
    ],
)
def test_contradictions_are_refused_with_a_remedy(overrides, where, what, fix):
    error = refused(*overrides)
    assert error.where == where
    assert what.replace("a side", "an image side") in error.what
    assert fix in error.fix


def test_a_pyramid_takes_any_size_that_is_padded_to_its_stride():
    accepted(*PYRAMID, "model.resizer.height=600", "model.pad_to_multiple=32")
    accepted(*PYRAMID, "model.resizer.height=600", "model.neck.explicit_padding=true")
    # Levels above the backbone's are strided convolutions, which take any size.
    accepted(*PYRAMID, "model.resizer.height=608")


def test_a_coarse_pyramid_needs_smaller_multiples():
    levels = ["model.neck.max_level=4", "model.anchors.max_level=4"]
    accepted(*PYRAMID, *levels, "model.resizer.height=624")


@pytest.mark.parametrize("recipe", ["ssd_mobilenet_v1_fpn_640x640", "ssd_resnet50_v1_fpn_640x640"])
def test_a_recipe_takes_another_backbone_in_one_word(recipe):
    for kind in ("mobilenet_v1", "mobilenet_v2", "resnet_v1"):
        experiment = resolve(recipe, [f"model.backbone.kind={kind}"]).experiment
        assert experiment.model.backbone.kind == kind

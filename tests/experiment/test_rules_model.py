"""What must hold between backbone, neck, head, anchors and the image.

SpineNet's blocks make a network, and the network the maps that are read.

Rules about the neck, and the backbone, input and anchors that fit it.
"""

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check
from stillbox.experiment.updating import apply_changes
from tests.helpers import refusal

PYRAMID = (
    "model.resizer={height: 640, width: 640}",
    "model.neck={kind: fpn}",
    "model.anchors={kind: multiscale}",
)


def refused(*overrides):
    caught = refusal(check, apply_changes(schema.Experiment(), changes_of(overrides), {}), {})
    return caught


def accepted(*overrides):
    check(apply_changes(schema.Experiment(), changes_of(overrides), {}), {})


@pytest.mark.parametrize(("overrides", "where", "sentence", "fix"), [
    (["train.quantization={}", *PYRAMID, "model.neck={kind: nas_fpn}"], "train.quantization",
     "the neck 'nas_fpn' cannot be quantised",
     "take one of ssd_layers, fpn, ppn, identity, mnasfpn"),
    (["train.quantization={}", *PYRAMID, "model.neck={kind: bifpn}"], "train.quantization",
     "sums of the kind 'fast_attention' cannot be quantised", "model.neck.combine=sum"),
    (["train.quantization={}", *PYRAMID,
     "model.backbone={kind: efficientnet_lite, se_ratio: 0.25}"], "train.quantization",
     "gates cannot be quantised", "model.backbone.se_ratio=0"),
    (["train.quantization={}", "model={kind: faster_rcnn}", "model.resizer.height=800"],
     "train.quantization", "a model of kind faster_rcnn cannot be quantised", "set it to null"),
    ([*PYRAMID, "model.backbone={kind: resnet, group_strides: []}"],
     "model.backbone.group_strides", "group_strides has 0 numbers", "give four"),
    ([*PYRAMID, "model.resizer.height=600"], "model.resizer.height",
     "a side of 600 pixels does not fit", "576 and 608"),
    ([*PYRAMID, "model.resizer={kind: keep_aspect_ratio, max_dimension: 1000}"],
     "model.resizer.max_dimension", "1000 pixels does not fit", "992 and 1024"),
    (["model={kind: faster_rcnn, backbone: {kind: spinenet}, neck: {min_level: 3, max_level: 7}, "
      "proposals: {anchors: {kind: multiscale}}}", "model.resizer.height=608"],
     "model.resizer.height", "608 pixels does not fit spinenet", "512 and 640"),
    ([*PYRAMID, "model.head={kind: task_aligned, depth: 4}"], "model.head.depth", "depth is 4",
     "at least 8"),
    ([*PYRAMID, "model.anchors.min_level=4"], "model.anchors.min_level",
     "anchors of min_level 4 for a pyramid of min_level 3", "set it to 3"),
    ([*PYRAMID, "model.neck.min_level=6", "model.anchors.min_level=6"], "model.neck.min_level",
     "the backbone has the levels 2 to 5", "from 2 to 5"),
    ([*PYRAMID, "model.neck.max_level=2", "model.anchors.max_level=2"], "model.neck.min_level",
     "min_level 3 is above max_level 2", "lower it, or raise max_level"),
    ([*PYRAMID, "model.backbone={kind: resnet_v1, depth: 34}"], "model.backbone.depth",
     "no resnet_v1 with 34 layers", "50, 101, 152"),
    ([*PYRAMID, "model.backbone={kind: resnet_v1}", "model.resizer={height: 128}"],
     "model.resizer.height", "128 pixels is too small for resnet_v1", "at least 129"),
    (["model.neck={kind: ppn, tap: conv_11_pointwis}"], "model.neck.tap",
     "mobilenet_v1 has no layer 'conv_11_pointwis'", "conv_11_pointwise"),
    (["model.neck={kind: ppn, num_maps: 4}"], "model.anchors.num_layers",
     "anchors for 6 feature maps, but the neck makes 4", "4 maps"),
    (["model.backbone.last_layer=conv_14_pointwise"], "model.backbone.last_layer",
     "no layer 'conv_14_pointwise'", "conv_13_pointwise"),
    (["model.backbone.last_depths=[512]"], "model.backbone.last_depths",
     "last_depths has 1 number", "give two"),
    (["model.head.depthwise=true"], "model.head.depthwise", "kernel_size 1 reads single pixels",
     "set kernel_size to 3"),
    (["model.head={kind: weight_shared}"], "model.anchors.reduce_boxes_in_lowest_layer",
     "as many anchors on every map", "set it to false"),
    (["model.backbone={kind: mobilenet_v2}"], "model.neck.taps",
     "mobilenet_v2 has no layer 'conv_11_pointwise'", "conv_0 ... conv_1"),
])  # fmt: skip
def test_contradictions_are_refused_with_a_remedy(overrides, where, sentence, fix):
    error = refused(*overrides)
    assert error.where == where
    assert sentence.replace("a side", "an image side") in error.what
    assert fix in error.fix


def test_padded_and_coarse_pyramids_take_more_sizes():
    accepted(*PYRAMID, "model.resizer.height=600", "model.pad_to_multiple=32")
    accepted(*PYRAMID, "model.resizer.height=600", "model.neck.explicit_padding=true")
    # Levels above the backbone's are strided convolutions, which take any size.
    accepted(*PYRAMID, "model.resizer.height=608")
    levels = ["model.neck.max_level=4", "model.anchors.max_level=4"]
    accepted(*PYRAMID, *levels, "model.resizer.height=624")


@pytest.mark.parametrize("recipe", ["ssd_mobilenet_v1_fpn_640x640", "ssd_resnet50_v1_fpn_640x640"])
def test_a_recipe_takes_another_backbone_in_one_word(recipe):
    for kind in ("mobilenet_v1", "mobilenet_v2", "resnet_v1"):
        experiment = resolve(recipe, changes_of([f"model.backbone.kind={kind}"])).experiment
        assert experiment.model.backbone.kind == kind


BASE = (
    "model.backbone={kind: spinenet}",
    "model.neck={kind: identity}",
    "model.anchors={kind: multiscale}",
    "model.resizer={height: 640, width: 640}",
)


def taken(*overrides):
    experiment = apply_changes(schema.Experiment(), changes_of([*BASE, *overrides]), {})
    check(experiment, {})
    return experiment.model


def refused_spinenet(*overrides):
    caught = refusal(taken, *overrides)
    return caught


@pytest.mark.parametrize("kind", ["spinenet", "spinenet_mbconv"])
def test_the_published_blocks_are_allowed(kind):
    backbone = taken(f"model.backbone={{kind: {kind}}}").backbone
    # The outputs, from the first to the last; node 11 of SpineNet and node 12 of the other are read
    # by nothing else and join the next output of their level.
    outputs = [block.level for block in backbone.blocks if block.output]
    joins = {i: joined for i, joined in enumerate(backbone.joined()) if joined}
    if kind == "spinenet":
        assert (outputs, joins) == ([4, 3, 5, 7, 6], {12: (11,)})
    else:
        assert (outputs, joins) == ([4, 3, 5, 7, 6], {13: (12,)})


def test_other_sound_blocks_are_accepted():
    blocks = "[{level: 4}, {level: 3, inputs: [1, 2], output: true}]"
    levels = "model.backbone={min_level: 3, max_level: 3}"
    others = [f"model.{part}={{min_level: 3, max_level: 3}}" for part in ("neck", "anchors")]
    assert len(taken(f"model.backbone.blocks={blocks}", levels, *others).backbone.blocks) == 2


@pytest.mark.parametrize(
    ("override", "where", "sentence", "fix"),
    [
        ("blocks.3.inputs=[2]", "blocks.3.inputs", "block 3 has 1 inputs", "[0, 1]"),
        ("blocks.3.inputs=[2, 5]", "blocks.3.inputs", "node 5", "nodes from 0 to 4"),
        ("blocks.3.inputs=[-1, 0]", "blocks.3.inputs", "is -1", "at least 0"),
        ("blocks.3.level=8", "blocks.3.level", "is 8", "at most 7"),
        ("blocks.10.output=false", "blocks", "0 blocks of level 4 are outputs", "one for each"),
        ("blocks.0.output=true", "blocks.0.output", "output of level 2", "false"),
        ("blocks.3.output=true", "blocks", "2 blocks of level 4 are outputs", "one for each"),
        # Node 9, residual, is read by block 8 alone; the output of its level is a bottleneck.
        ("blocks.8.inputs=[8, 8]", "blocks.7", "nothing reads block 7", "leave it out"),
        ("min_level=8", "min_level", "8", "at most 7"),
        ("max_level=2", "min_level", "min_level 3 is above max_level 2", "lower it"),
        ("repeats=0", "repeats", "is 0", "at least 1"),
        ("drop_connect_rate=1", "drop_connect_rate", "is 1", "below 1"),
    ],
)
def test_what_makes_no_network_is_refused(override, where, sentence, fix):
    path, _, value = override.partition("=")
    error = refused_spinenet(f"model.backbone.{path}={value}")
    assert error.where == f"model.backbone.{where}"
    assert sentence in error.what
    assert fix in error.fix


def test_spinenet_needs_fitting_levels_and_sides():
    levels = [f"model.{part}={{min_level: 3, max_level: 6}}" for part in ("neck", "anchors")]
    error = refused_spinenet(*levels)
    assert "level_7" in error.what
    assert "levels 3 to 7" in error.fix
    error = refused_spinenet("model.resizer.height=608")
    assert "an image side of 608 pixels does not fit spinenet" in error.what
    assert "512 and 640" in error.fix
    assert taken("model.resizer.height=608", "model.pad_to_multiple=128").pad_to_multiple == 128


RECIPE = "ssd_resnet50_v1_fpn_640x640"


def with_levels(low, high):
    return [
        f"model.{part}.{name}={level}"
        for part in ("neck", "anchors")
        for name, level in (("min_level", low), ("max_level", high))
    ]


def refused_neck(*overrides):
    caught = refusal(
        check, apply_changes(resolve(RECIPE).experiment, changes_of(overrides), {}), {}
    )
    return caught


def test_an_identity_neck_takes_levels_that_the_backbone_has():
    neck = resolve(
        RECIPE, changes_of(["model.neck.kind=identity", *with_levels(4, 5)])
    ).experiment.model.neck
    assert neck.count_maps() == 2
    error = refused_neck("model.neck.kind=identity")
    assert error.where == "model.neck.max_level"
    assert "max_level 7:" in error.what
    assert "at most 5" in error.fix


NAS = ("model.neck.kind=nas_fpn",)
SMALL = (
    "model.neck={kind: nas_fpn, min_level: 4, max_level: 5}",
    "model.anchors={min_level: 4, max_level: 5}",
)
NODES = "model.neck.cell=[{level: 4, inputs: [0, 1], output: true}, %s]"


@pytest.mark.parametrize(("overrides", "where", "sentence", "fix"), [
    (["model.neck.kind=retinanet_fpn", "model.resizer.height=600"], "model.resizer.height",
     "600 pixels does not fit a feature pyramid that hands down a map of stride 32", "576 and 608"),
    ([*NAS, "model.resizer={kind: fixed_shape, height: 608, width: 640}"], "model.resizer.height",
     "608 pixels does not fit a feature pyramid that hands down a map of stride 128",
     "512 and 640"),
    (["model.neck.kind=retinanet_fpn", "model.neck.depth=0"], "model.neck.depth", "0 channels",
     "256"),
    (["model.neck.kind=mnasfpn", "model.neck.max_level=7"], "model.neck.max_level",
     "mnasfpn from min_level 3 to max_level 7", "four levels: set it to 6"),
    (["model.neck.kind=mnasfpn", "model.anchors.max_level=6", "model.resizer.width=608"],
     "model.resizer.width",
     "608 pixels does not fit a feature pyramid that hands down a map of stride 64", "576 and 640"),
    ([*NAS, "model.neck.drop_connect_rate=0.2"], "model.neck.drop_connect_rate",
     "0.2 leaves out blocks beside a shortcut", "bottleneck"),
    ([*NAS, "model.neck.block_conv={activation: swish}"], "model.neck.block_conv",
     "block is conv", "block to bottleneck"),
    ([*SMALL, NODES % "{level: 5, inputs: [0, 3], output: true}"], "model.neck.cell.1.inputs",
     "node 3 of the cell has the inputs [0, 3]", "two numbers from 0 to 2"),
    ([*SMALL, NODES % "{level: 5, inputs: [0, 1, 2], output: true}"],
     "model.neck.cell.1.inputs", "has the inputs [0, 1, 2]", "two numbers"),
    ([*SMALL, NODES % "{level: 6, inputs: [0, 1], output: true}"], "model.neck.cell.1.level",
     "makes level 6", "from 4 to 5"),
    ([*SMALL, NODES % "{level: 5, inputs: [0, 1]}"], "model.neck.cell",
     "0 nodes of the cell are the output of level 5", "output: true"),
    ([*NAS, "model.neck.num_repeats=0"], "model.neck.num_repeats", "num_repeats is 0",
     "at least 1"),
])  # fmt: skip
def test_contradictions_of_necks_are_refused_with_a_remedy(overrides, where, sentence, fix):
    error = refused_neck(*overrides)
    assert error.where == where
    assert sentence in error.what
    assert fix in error.fix


def test_the_published_cell_is_sound():
    neck = resolve(RECIPE, changes_of(NAS)).experiment.model.neck
    assert [node.level for node in neck.cell if node.output] == [3, 4, 5, 7, 6]


# ---- Rules about the loss `quality` and its heads, matchers and box coders -----------------------


CASES = [
    ("gfl_resnet50", "model.loss.kind=matched", "the box coder distribution writes a box as"),
    ("atss_resnet50", "model.loss.kind=matched", "the head atss predicts centerness"),
    ("retinanet", "model.matcher.kind=task_aligned", "the matcher task_aligned compares boxes"),
    ("retinanet", "model.box_coder.kind=distribution", "writes a box as distributions"),
    ("gfl_resnet50", "model.loss.class_targets=alignment", "class_targets alignment with the mat"),
    ("gfl_resnet50", "model.loss.box_weights=alignment", "box_weights alignment with the matche"),
    ("gfl_resnet50", "model.box_coder.kind=distances", "distribution_weight 0.25 with the box"),
    ("gfl_resnet50", "model.head.kind=atss", "whose centerness would not be trained"),
    ("gfl_resnet50", "model.loss.centerness_weight=1", "centerness_weight 1 with the head gfl"),
    ("gfl_resnet50", "model.background_class=true", "has no class for the background, whose ta"),
    ("gfl_resnet50", "model.similarity.kind=ioa", "the matcher atss compares boxes by iou"),
    ("tood_resnet50", "model.similarity.kind=ioa", "the matcher task_aligned compares boxes by"),
    ("tood_resnet50", "model.box_coder.kind=faster_rcnn", "a task_aligned head predicts distances"),
    ("tood_resnet50", "model.anchors.anchor_scale=4", "requires square anchors of"),
    ("tood_resnet50", "model.anchors.aspect_ratios=[2]", "requires square anchors of"),
    ("tood_resnet50", "model.anchors={kind: ssd, num_layers: 5, aspect_ratios: [1]}",
     "needs anchors of strides, and the kind is ssd"),
    ("gfl_resnet50", "model.loss.localization.kind=smooth_l1", "smooth_l1 compares codes"),
    ("gfl_resnet50", "model.loss.classification.kind=softmax", "the loss softmax has a class for"),
    ("gfl_resnet50", "model.loss.classification.kind=sigmoid_focal", "class_targets overlap with"),
    ("tood_resnet50", "model.loss.initial.classification.kind=softmax", "the loss softmax has a c"),
    ("tood_resnet50", "model.loss.initial.box_weights=alignment", "the first steps compare no pr"),
    ("gfl_resnet50", "model.head.conv.batch_norm={}", "group_norm beside batch_norm"),
    ("gfl_resnet50", "train.quantization={}", "group norm cannot be folded into kernels"),
    ("tood_resnet50", "train.quantization={}", "the head 'task_aligned' cannot be quantised"),
    ("gfl_resnet50", "model.head.conv.group_norm.groups=0", "groups is 0"),
    ("tood_resnet50", "train.distillation={}", "the box coder distances has no distributions"),
    ("faster_rcnn_resnet101_coco", "train.distillation={}", "a faster_rcnn has no distributions"),
    ("gfl_resnet50", "train.distillation.weight=0", "weight is 0"),
    ("faster_rcnn_resnet50_v1_640x640", "model.proposals.matcher.kind=task_aligned",
     "task_aligned chooses among the anchors of the feature maps"),
    ("faster_rcnn_resnet50_v1_640x640", "model.boxes.box_coder.kind=distribution",
     "the box coder distribution belongs to the loss quality"),
    ("faster_rcnn_resnet50_v1_640x640", "model.boxes.postprocessing.nms.max_candidates_per_level=9",
     "whose boxes have no levels"),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "change", "message"), CASES)
def test_contradictions_are_refused(recipe, change, message):
    assert message in str(refusal(resolve, recipe, changes_of([change])))


def test_group_norm_and_masked_padding_exclude_each_other():
    changes = [
        "model.mask_padding=true",
        "model.backbone.conv.batch_norm=null",
        "model.backbone.conv.group_norm={}",
    ]
    error = refusal(resolve, "faster_rcnn_resnet101_coco", changes_of(changes))
    assert "group_norm counts padding" in str(error)


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (["model.pixels={channels: 4, mean: [1, 2, 3, 4]}", "model.pixels.channels=3"],
         "model.pixels.mean"),
        (["model.pixels.channels=1", "train.augmentations=[{kind: autoaugment}]"],
         "train.augmentations.0"),
        (["model.pixels.bits=12", "train.augmentations=[{kind: autoaugment}]"],
         "train.augmentations.0"),
        (["model.pixels.bits=12", "train.augmentations=[{kind: random_jpeg_quality}]"],
         "train.augmentations.0"),
        (["model.pixels.bits=12", "data.pixels=uint8"], "data.pixels"),
    ],
)  # fmt: skip
def test_what_takes_images_of_one_kind_is_refused_for_others(overrides, where):
    assert where in str(refused(*overrides))


def test_numbers_of_colours_follow_the_channels():
    model = resolve("gfl_mobile", changes_of(["model.pixels.channels=1"])).experiment.model
    assert len(model.pixels.mean) == len(model.pixels.std) == 1
    accepted("model.pixels.channels=4", "train.augmentations=[{kind: random_distort_color}]")
    accepted("model.pixels.channels=1", "train.augmentations=[{kind: random_jpeg_quality}]")

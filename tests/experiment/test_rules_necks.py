"""Rules about the neck, and the backbone, input and anchors that fit it."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment.overrides import apply_overrides
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check

RECIPE = "ssd_resnet50_v1_fpn_640x640"


def with_levels(low, high):
    return [
        f"model.{part}.{name}={level}"
        for part in ("neck", "anchors")
        for name, level in (("min_level", low), ("max_level", high))
    ]


def refused(*overrides):
    with pytest.raises(UserError) as caught:
        check(apply_overrides(resolve(RECIPE).experiment, overrides, {}), {})
    return caught.value


def test_the_backbones_levels_are_taken_as_they_are():
    neck = resolve(RECIPE, ["model.neck.kind=identity", *with_levels(4, 5)]).experiment.model.neck
    assert neck.count_maps() == 2


def test_the_backbone_has_every_level_that_is_taken_as_it_is():
    error = refused("model.neck.kind=identity")
    assert error.where == "model.neck.max_level"
    assert "max_level 7: the backbone's levels end at 5" in error.what
    assert "at most 5" in error.fix


NAS = ("model.neck.kind=nas_fpn",)
SMALL = (
    "model.neck={kind: nas_fpn, min_level: 4, max_level: 5}",
    "model.anchors={min_level: 4, max_level: 5}",
)
NODES = "model.neck.cell=[{level: 4, inputs: [0, 1], output: true}, %s]"


@pytest.mark.parametrize(
    ("overrides", "where", "what", "fix"),
    [
        (
            ["model.neck.kind=retinanet_fpn", "model.resizer.height=600"],
            "model.resizer.height",
            "600 pixels does not fit a feature pyramid that hands down a map of stride 32",
            "576 and 608",
        ),
        (
            [*NAS, "model.resizer={kind: fixed_shape, height: 608, width: 640}"],
            "model.resizer.height",
            "608 pixels does not fit a feature pyramid that hands down a map of stride 128",
            "512 and 640",
        ),
        (
            ["model.neck.kind=retinanet_fpn", "model.neck.depth=0"],
            "model.neck.depth",
            "0 channels",
            "256",
        ),
        (
            ["model.neck.kind=mnasfpn", "model.neck.max_level=7"],
            "model.neck.max_level",
            "mnasfpn from min_level 3 to max_level 7",
            "four levels: set it to 6",
        ),
        (
            ["model.neck.kind=mnasfpn", "model.anchors.max_level=6", "model.resizer.width=608"],
            "model.resizer.width",
            "608 pixels does not fit a feature pyramid that hands down a map of stride 64",
            "576 and 640",
        ),
        (
            [*NAS, "model.neck.drop_connect_rate=0.2"],
            "model.neck.drop_connect_rate",
            "0.2 leaves out blocks beside a shortcut",
            "bottleneck",
        ),
        (
            [*NAS, "model.neck.block_conv={activation: swish}"],
            "model.neck.block_conv",
            "block is conv",
            "block to bottleneck",
        ),
        (
            [*SMALL, NODES % "{level: 5, inputs: [0, 3], output: true}"],
            "model.neck.cell.1.inputs",
            "node 3 of the cell has the inputs [0, 3]",
            "two numbers from 0 to 2",
        ),
        (
            [*SMALL, NODES % "{level: 5, inputs: [0, 1, 2], output: true}"],
            "model.neck.cell.1.inputs",
            "has the inputs [0, 1, 2]",
            "two numbers",
        ),
        (
            [*SMALL, NODES % "{level: 6, inputs: [0, 1], output: true}"],
            "model.neck.cell.1.level",
            "makes level 6",
            "from 4 to 5",
        ),
        (
            [*SMALL, NODES % "{level: 5, inputs: [0, 1]}"],
            "model.neck.cell",
            "0 nodes of the cell are the output of level 5",
            "output: true",
        ),
        (
            [*NAS, "model.neck.num_repeats=0"],
            "model.neck.num_repeats",
            "num_repeats is 0",
            "at least 1",
        ),
    ],
)
def test_contradictions_are_refused_with_a_remedy(overrides, where, what, fix):
    error = refused(*overrides)
    assert error.where == where
    assert what in error.what
    assert fix in error.fix


def test_the_published_cell_is_sound():
    neck = resolve(RECIPE, NAS).experiment.model.neck
    assert [node.level for node in neck.cell if node.output] == [3, 4, 5, 7, 6]

"""SpineNet's blocks make a network, and the network the maps that are read."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.overrides import apply_overrides
from stillbox.experiment.rules import check

BASE = (
    "model.backbone={kind: spinenet}",
    "model.neck={kind: identity}",
    "model.anchors={kind: multiscale}",
    "model.resizer={height: 640, width: 640}",
)


def taken(*overrides):
    experiment = apply_overrides(schema.Experiment(), [*BASE, *overrides], {})
    check(experiment, {})
    return experiment.model


def refused(*overrides):
    with pytest.raises(UserError) as caught:
        taken(*overrides)
    return caught.value


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
    ("override", "where", "what", "fix"),
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
def test_what_makes_no_network_is_refused(override, where, what, fix):
    path, _, value = override.partition("=")
    error = refused(f"model.backbone.{path}={value}")
    assert error.where == f"model.backbone.{where}"
    assert what in error.what
    assert fix in error.fix


def test_a_neck_reads_all_that_is_made():
    levels = [f"model.{part}={{min_level: 3, max_level: 6}}" for part in ("neck", "anchors")]
    error = refused(*levels)
    assert "the neck does not read level_7 of spinenet" in error.what
    assert "levels 3 to 7" in error.fix


def test_sides_are_multiples_of_the_coarsest_stride():
    error = refused("model.resizer.height=608")
    assert "an image side of 608 pixels does not fit spinenet" in error.what
    assert "512 and 640" in error.fix
    assert taken("model.resizer.height=608", "model.pad_to_multiple=128").pad_to_multiple == 128

"""Rules about SpineNet: that its blocks make a network, and the network the maps that are read."""

from collections import Counter
from collections.abc import Iterator

from stillbox.experiment.rules.broken import Broken, OneStageRule
from stillbox.experiment.rules.input_sides import input_sides
from stillbox.experiment.schema import OneStage, SpineNet, SpineNetMbConv

_PATH = "model.backbone"
_BLOCKS = f"{_PATH}.blocks"


def blocks_have_two_inputs(model: OneStage) -> Iterator[Broken]:
    """A block sums two nodes that exist when it is computed."""
    backbone = model.backbone
    if not isinstance(backbone, SpineNet | SpineNetMbConv):
        return
    for index, block in enumerate(backbone.blocks):
        number, path = index + len(backbone.stem), f"{_BLOCKS}.{index}.inputs"
        late = [node for node in block.inputs if node >= number]
        if len(block.inputs) != 2:
            what = f"block {index} has {len(block.inputs)} inputs"
            yield Broken(path, what, "give two, such as [0, 1]")
        elif late:
            yield Broken(
                path,
                f"block {index}, which is node {number}, has node {late[0]} as an input",
                f"give nodes from 0 to {number - 1}: 0 and 1 are the stem's, the first block is 2",
            )


def levels_have_one_output(model: OneStage) -> Iterator[Broken]:
    """Every level that a neck may read is made by one block, and no other block makes one."""
    backbone = model.backbone
    if not isinstance(backbone, SpineNet | SpineNetMbConv):
        return
    low, high = backbone.min_level, backbone.max_level
    if low > high:
        what = f"min_level {low} is above max_level {high}"
        yield Broken(f"{_PATH}.min_level", what, "lower it, or raise max_level")
        return
    outputs = Counter(block.level for block in backbone.blocks if block.output)
    for level in backbone.levels:
        if outputs[level] != 1:
            yield Broken(
                _BLOCKS,
                f"{outputs[level]} blocks of level {level} are outputs",
                f"one for each level from min_level {low} to max_level {high}",
            )
    for index, block in enumerate(backbone.blocks):
        if block.output and not low <= block.level <= high:
            yield Broken(
                f"{_BLOCKS}.{index}.output",
                f"block {index} is an output of level {block.level}, which is not between "
                f"min_level {low} and max_level {high}",
                "set it to false, or move the levels",
            )


def blocks_are_read(model: OneStage) -> Iterator[Broken]:
    """What nothing reads would be trained by nothing but its penalty."""
    backbone = model.backbone
    if not isinstance(backbone, SpineNet | SpineNetMbConv):
        return
    read = {node for block in backbone.blocks for node in block.inputs}
    read |= {node for joined in backbone.joined() for node in joined}
    for index, block in enumerate(backbone.blocks):
        if not block.output and index + len(backbone.stem) not in read:
            yield Broken(
                f"{_BLOCKS}.{index}",
                f"nothing reads block {index}, and it is no output",
                "make it an input of a later block, or leave it out",
            )


def neck_reads_all_levels(model: OneStage) -> Iterator[Broken]:
    """Likewise for the maps."""
    backbone, neck = model.backbone, model.neck
    if not isinstance(backbone, SpineNet | SpineNetMbConv):
        return
    idle = [name for name in backbone.layers if name not in neck.taps_of(backbone)]
    if idle:
        low, high = backbone.min_level, backbone.max_level
        what = f"the neck does not read {idle[0]} of {backbone.kind}"
        fix = f"a neck of kind identity with the levels {low} to {high} reads them all"
        yield Broken("model.neck", what, fix)


def levels_fit_the_image(model: OneStage) -> Iterator[Broken]:
    """Nodes of any two levels are summed, so sides are multiples of the coarsest stride."""
    if not isinstance(model.backbone, SpineNet | SpineNetMbConv) or model.pad_to_multiple < 1:
        return
    coarsest = max((block.level for block in model.backbone.blocks), default=0)
    # Levels beyond any image are the limits' to report.
    stride = 2 ** min(max(coarsest, 0), 15)
    for path, side in input_sides(model):
        if side >= 1 and (side + -side % model.pad_to_multiple) % stride:
            below = max(side // stride, 1) * stride
            yield Broken(
                path,
                f"an image side of {side} pixels does not fit {model.backbone.kind}, whose "
                f"coarsest map has a stride of {stride}",
                f"the nearest sides that do are {below} and {below + stride}; "
                f"or set model.pad_to_multiple to {stride}",
            )


SPINENET_RULES: tuple[OneStageRule, ...] = (
    blocks_have_two_inputs,
    levels_have_one_output,
    blocks_are_read,
    neck_reads_all_levels,
    levels_fit_the_image,
)
"""All of them."""

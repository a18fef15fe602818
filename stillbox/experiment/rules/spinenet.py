"""Rules about SpineNet: its blocks form a network, and all maps of the network are read."""

from collections import Counter
from collections.abc import Iterator

from stillbox.experiment.rules.rule import Broken, fit_stride, rule
from stillbox.experiment.schema import OneStage
from stillbox.experiment.schema.spinenet import ScalePermuted


@rule(ScalePermuted)
def blocks_have_two_inputs(backbone: ScalePermuted) -> Iterator[Broken]:
    """A block sums two nodes before it."""
    for index, block in enumerate(backbone.blocks):
        number, path = index + len(backbone.stem), f"blocks.{index}.inputs"
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


@rule(ScalePermuted)
def levels_have_one_output(backbone: ScalePermuted) -> Iterator[Broken]:
    """Every level that a neck may read is the output of one block; there are no other outputs."""
    low, high = backbone.min_level, backbone.max_level
    if low > high:
        return
    outputs = Counter(block.level for block in backbone.blocks if block.output)
    for level in backbone.levels:
        if outputs[level] != 1:
            what = f"{outputs[level]} blocks of level {level} are outputs"
            fix = f"one for each level from min_level {low} to max_level {high}"
            yield Broken("blocks", what, fix)
    for index, block in enumerate(backbone.blocks):
        if block.output and not low <= block.level <= high:
            yield Broken(
                f"blocks.{index}.output",
                f"block {index} is an output of level {block.level}, which is not between "
                f"min_level {low} and max_level {high}",
                "set it to false, or move the levels",
            )


@rule(ScalePermuted)
def blocks_are_read(backbone: ScalePermuted) -> Iterator[Broken]:
    """A block that is not read gets no gradient but that of its penalty."""
    read = {node for block in backbone.blocks for node in block.inputs}
    read |= {node for joined in backbone.joined() for node in joined}
    for index, block in enumerate(backbone.blocks):
        if not block.output and index + len(backbone.stem) not in read:
            what = f"nothing reads block {index}, and it is no output"
            fix = "make it an input of a later block, or leave it out"
            yield Broken(f"blocks.{index}", what, fix)


@rule(OneStage)
def neck_reads_all_levels(model: OneStage) -> Iterator[Broken]:
    """Neither does an output that the neck does not read."""
    backbone, neck = model.backbone, model.neck
    if not isinstance(backbone, ScalePermuted):
        return
    idle = [name for name in backbone.layers if name not in neck.taps_of(backbone)]
    if idle:
        what = f"the neck does not read {idle[0]} of {backbone.kind}"
        low, high = backbone.min_level, backbone.max_level
        fix = f"a neck of kind identity with the levels {low} to {high} reads them all"
        yield Broken("neck", what, fix)


@rule(OneStage)
def levels_fit_the_image(model: OneStage) -> Iterator[Broken]:
    """Nodes of any two levels are summed, so that sides are multiples of the coarsest stride."""
    if isinstance(model.backbone, ScalePermuted):
        coarsest = max((block.level for block in model.backbone.blocks), default=0)
        # Levels that no image has are reported as out of range.
        stride = 2 ** min(max(coarsest, 0), 15)
        yield from fit_stride(model, stride, f"{model.backbone.kind}, whose coarsest map is")

"""Rules about resizer, backbone, neck and head, and how they fit each other."""

from collections import Counter
from collections.abc import Mapping

from stillbox.errors import nearest
from stillbox.experiment import schema
from stillbox.experiment.rules.rule import (
    Remark,
    Remarks,
    fit_stride,
    input_sides,
    padding_multiple,
    rule,
)
from stillbox.references import Setting

# The original's Faster R-CNN has no coarser map than the proposals', and so a smaller one.
_PROPOSALS_MIN_SIDE = 33
_RESNET_V1_DEPTHS = (50, 101, 152)
_RESNET_DEPTHS = (10, 14, 18, 26, 34, 50, 101, 152, 200)


@rule(schema.CanvasResizer)
def canvas_is_given(resizer: schema.CanvasResizer) -> Remarks:
    """A resizer that leaves sizes as they are needs the one shape of the network input."""
    path = "model.resizer.canvas"
    if not resizer.canvas:
        yield Remark(
            "canvas",
            f"the resizer {resizer.kind} gives images of many shapes, and the network has one",
            f"{Setting(path, ['HEIGHT', 'WIDTH'])}, pixels that every image fits into; it is "
            "padded to that",
        )
    elif isinstance(resizer, schema.PadToMultipleResizer) and resizer.multiple >= 1:
        legal = [-(-side // resizer.multiple) * resizer.multiple for side in resizer.canvas]
        if legal != list(resizer.canvas):
            problem = f"canvas {list(resizer.canvas)} is no multiple of {resizer.multiple}"
            yield Remark("canvas", problem, f"{Setting(path, f'[{legal[0]},{legal[1]}]')}")


@rule(schema.OneStage, schema.FasterRcnn)
def image_is_large_enough(model: schema.OneStage | schema.FasterRcnn) -> Remarks:
    """A backbone has a least side."""
    backbone, least = model.backbone, model.backbone.min_side
    if isinstance(model, schema.FasterRcnn) and isinstance(backbone, schema.ResNetV1):
        least = _PROPOSALS_MIN_SIDE
    for path, side in input_sides(model):
        # Sides below 1 are reported as out of range, or as a missing canvas.
        if 1 <= side < least:
            problem = f"an image side of {side} pixels is too small for {backbone.kind}"
            yield Remark(path, problem, f"at least {least}")


@rule(schema.ResNetV1, schema.ResNet)
def resnet_exists(backbone: schema.ResNetV1 | schema.ResNet) -> Remarks:
    """The depth is one of the published ones."""
    depths = _RESNET_DEPTHS if isinstance(backbone, schema.ResNet) else _RESNET_V1_DEPTHS
    if backbone.depth not in depths:
        problem = f"there is no {backbone.kind} with {backbone.depth} layers"
        yield Remark("depth", problem, f"one of {', '.join(map(str, depths))}")


@rule(schema.OneStage, schema.FasterRcnn)
def last_layer_exists(model: schema.OneStage | schema.FasterRcnn) -> Remarks:
    """The backbone ends with one of its layers."""
    backbone = model.backbone
    if backbone.last_layer and backbone.last_layer not in backbone.layers:
        problem = f"{backbone.kind} has no layer {backbone.last_layer!r}"
        fix = nearest(backbone.last_layer, backbone.layers)
        yield Remark("backbone.last_layer", problem, fix)


@rule(schema.OneStage, schema.FasterRcnn)
def stem_folds_the_image(model: schema.OneStage | schema.FasterRcnn) -> Remarks:
    """Blocks of two by two pixels cover images of even sides, and begin at the first pixel."""
    if not isinstance(model.backbone, schema.ResNet) or not model.backbone.space_to_depth_stem:
        return
    if not model.backbone.explicit_padding:
        problem = "space_to_depth_stem pads both sides equally, and explicit_padding is false"
        fix = "set explicit_padding to true, or space_to_depth_stem to false"
        yield Remark("backbone.space_to_depth_stem", problem, fix)
    multiple = padding_multiple(model)
    for path, side in input_sides(model):
        if side >= 1 and multiple >= 1 and (side + -side % multiple) % 2:
            problem = f"space_to_depth_stem requires an even image side, not {side}"
            yield Remark(path, problem, f"such as {side + 1}, or set space_to_depth_stem to false")


@rule(schema.ConvolutionalHead, schema.WeightSharedHead)
def depthwise_kernels_span_pixels(
    head: schema.ConvolutionalHead | schema.WeightSharedHead,
) -> Remarks:
    """A depthwise kernel of one pixel only scales a channel."""
    if head.depthwise and head.kernel_size == 1:
        problem = "a depthwise head with kernel_size 1 reads single pixels of single channels"
        yield Remark("depthwise", problem, "set kernel_size to 3, or depthwise to false")


@rule(schema.OneStage)
def shared_head_has_equal_anchors(model: schema.OneStage) -> Remarks:
    """One kernel for all maps predicts equally many anchors on each."""
    if not isinstance(model.head, schema.WeightSharedHead) or not isinstance(
        model.anchors, schema.SsdAnchors
    ):
        return
    if isinstance(model.head, schema.PerMapHead):
        return
    if model.anchors.reduce_boxes_in_lowest_layer:
        yield Remark(
            "anchors.reduce_boxes_in_lowest_layer",
            "a weight_shared head predicts as many anchors on every map, but the finest has three",
            "set it to false",
        )


@rule(schema.OneStage, schema.FasterRcnn)
def pyramid_fits_the_image(model: schema.OneStage | schema.FasterRcnn) -> Remarks:
    """Maps are doubled on the way down, so that sides are multiples of the coarsest stride."""
    neck, top = model.neck, None
    if isinstance(neck, schema.NasFpn | schema.MnasFpn | schema.Pan):
        top = neck.max_level
    elif isinstance(neck, schema.RetinaNetFpn) or (
        isinstance(neck, schema.Fpn) and not neck.explicit_padding
    ):
        top = min(neck.max_level, max(model.backbone.levels, default=neck.max_level))
    if top is not None:
        yield from fit_stride(model, 2**top, "a feature pyramid that hands down a map")


@rule(schema.OneStage, schema.FasterRcnn)
def taps_exist(model: schema.OneStage | schema.FasterRcnn) -> Remarks:
    """The neck taps layers of the backbone, from fine to coarse."""
    backbone, neck = model.backbone, model.neck
    taps, names = neck.taps_of(backbone), backbone.layers
    path = "neck.tap" if isinstance(neck, schema.Ppn) else "neck.taps"
    if isinstance(neck, schema.Pyramid):
        # A backbone without levels breaks a rule of its own.
        if backbone.levels:
            yield from _levels_exist(neck, backbone.levels)
        return
    for tap in taps:
        if tap not in names:
            problem = f"{backbone.kind} has no layer {tap!r}"
            fix = f"{nearest(tap, names)}; it has {names[0]} ... {names[-1]}"
            yield Remark(path, problem, fix)
    # A set drops repetitions, so one comparison finds both mistakes.
    positions = [names.index(tap) for tap in taps if tap in names]
    if positions != sorted(set(positions)):
        yield Remark(path, "the taps are not in order", "name each once, from fine to coarse")
    if not taps:
        yield Remark(path, "the neck taps nothing", f"for example [{names[-1]}]")


def _levels_exist(neck: schema.Pyramid, levels: Mapping[int, str]) -> Remarks:
    finest, coarsest = min(levels), max(levels)
    if not finest <= neck.min_level <= coarsest:
        problem = f"min_level {neck.min_level}: the backbone has the levels {finest} to {coarsest}"
        yield Remark("neck.min_level", problem, f"give one from {finest} to {coarsest}")
    elif missing := [level for level in range(neck.min_level, coarsest) if level not in levels]:
        problem = (
            f"the backbone has no map of level {missing[0]} (a stride of {2 ** missing[0]} pixels)"
        )
        yield Remark("backbone", problem, "a pyramid needs every level, from group_strides of 2")
    elif isinstance(neck, schema.Identity) and neck.max_level > coarsest:
        problem = f"max_level {neck.max_level}: the backbone's levels end at {coarsest}"
        fix = f"at most {coarsest}, or a neck that makes coarser maps, such as fpn"
        yield Remark("neck.max_level", problem, fix)


@rule(schema.OneStage, schema.FasterRcnn)
def every_map_has_anchors(model: schema.OneStage | schema.FasterRcnn) -> Remarks:
    """There are as many feature maps as maps of anchors."""
    anchors = model.anchor_stage.anchors
    path = "proposals.anchors" if isinstance(model, schema.FasterRcnn) else "anchors"
    maps, described = model.neck.count_maps(), anchors.count_maps()
    if isinstance(model.neck, schema.Pyramid) and isinstance(anchors, schema.MultiscaleAnchors):
        for name in ("min_level", "max_level"):
            level, wanted = getattr(anchors, name), getattr(model.neck, name)
            if level != wanted:
                problem = f"anchors of {name} {level} for a pyramid of {name} {wanted}"
                yield Remark(f"{path}.{name}", problem, f"set it to {wanted}")
    elif described != maps:
        yield Remark(
            f"{path}.num_layers" if isinstance(anchors, schema.SsdAnchors) else path,
            f"anchors for {described} feature maps, but the neck makes {maps}",
            f"describe anchors for {maps} maps, or change the neck",
        )


@rule(schema.SsdExtraLayers)
def extra_maps_have_strides_and_sizes(neck: schema.SsdExtraLayers) -> Remarks:
    """Strides and kernels are given for all extra maps or for none."""
    depths = len(neck.extra_depths)
    for name in ("extra_strides", "extra_kernel_sizes"):
        if (count := len(getattr(neck, name))) not in (0, depths):
            problem = f"{count} {name} for {depths} extra_depths"
            yield Remark(name, problem, "give one for each, or none")


@rule(schema.RetinaNetFpn, schema.NasFpn)
def pyramid_has_channels(neck: schema.RetinaNetFpn | schema.NasFpn) -> Remarks:
    """Only in other necks a depth of 0 means an absent layer."""
    if neck.depth == 0:
        yield Remark("depth", "a pyramid of 0 channels", "such as 256")


@rule(schema.MnasFpn)
def cell_has_four_levels(neck: schema.MnasFpn) -> Remarks:
    """The cell was found for four levels."""
    top = neck.min_level + 3
    if neck.max_level != top:
        problem = f"mnasfpn from min_level {neck.min_level} to max_level {neck.max_level}"
        yield Remark("max_level", problem, f"its cell has four levels: set it to {top}")


@rule(schema.NasFpn)
def bottlenecks_exist(neck: schema.NasFpn) -> Remarks:
    """Hyperparameters of bottlenecks have no effect on nodes that are convolutions."""
    if neck.block == "bottleneck":
        return
    if neck.drop_connect_rate:
        problem = (
            f"drop_connect_rate {neck.drop_connect_rate:g} leaves out blocks beside a shortcut, "
            "and a convolution has none"
        )
        fix = f"{Setting('model.neck.drop_connect_rate', 0)}, or set block to bottleneck"
        yield Remark("drop_connect_rate", problem, fix)
    if neck.block_conv is not None:
        problem = "block_conv describes the convolutions of bottlenecks, and block is conv"
        fix = f"{Setting('model.neck.block_conv', None)}, or set block to bottleneck"
        yield Remark("block_conv", problem, fix)


@rule(schema.NasFpn)
def cell_is_sound(neck: schema.NasFpn) -> Remarks:
    """Every node reads two maps before it, and one map of every level is an output."""
    levels = range(neck.min_level, neck.max_level + 1)
    for index, node in enumerate(neck.cell):
        before = len(levels) + index
        if len(node.inputs) != 2 or not all(0 <= number < before for number in node.inputs):
            problem = f"node {before} of the cell has the inputs {list(node.inputs)}"
            yield Remark(f"cell.{index}.inputs", problem, f"two numbers from 0 to {before - 1}")
        if node.level not in levels:
            problem = f"node {before} of the cell makes level {node.level}"
            fix = f"one from {neck.min_level} to {neck.max_level}"
            yield Remark(f"cell.{index}.level", problem, fix)
    outputs = [node.level for node in neck.cell if node.output]
    for level in levels:
        if outputs.count(level) != 1:
            problem = f"{outputs.count(level)} nodes of the cell are the output of level {level}"
            yield Remark("cell", problem, "mark one node of every level by output: true")


@rule(schema.ScalePermuted)
def blocks_have_two_inputs(backbone: schema.ScalePermuted) -> Remarks:
    """A block sums two nodes before it."""
    for index, block in enumerate(backbone.blocks):
        number, path = index + len(backbone.stem), f"blocks.{index}.inputs"
        late = [node for node in block.inputs if node >= number]
        if len(block.inputs) != 2:
            problem = f"block {index} has {len(block.inputs)} inputs"
            yield Remark(path, problem, "give two, such as [0, 1]")
        elif late:
            problem = f"block {index}, which is node {number}, has node {late[0]} as an input"
            fix = f"give nodes from 0 to {number - 1}: 0 and 1 are the stem's, the first block is 2"
            yield Remark(path, problem, fix)


@rule(schema.ScalePermuted)
def levels_have_one_output(backbone: schema.ScalePermuted) -> Remarks:
    """Every level that a neck may read is the output of one block; there are no other outputs."""
    low, high = backbone.min_level, backbone.max_level
    if low > high:
        return
    outputs = Counter(block.level for block in backbone.blocks if block.output)
    for level in backbone.levels:
        if outputs[level] != 1:
            problem = f"{outputs[level]} blocks of level {level} are outputs"
            fix = f"one for each level from min_level {low} to max_level {high}"
            yield Remark("blocks", problem, fix)
    for index, block in enumerate(backbone.blocks):
        if block.output and not low <= block.level <= high:
            problem = (
                f"block {index} is an output of level {block.level}, which is not between "
                f"min_level {low} and max_level {high}"
            )
            yield Remark(f"blocks.{index}.output", problem, "set it to false, or move the levels")


@rule(schema.ScalePermuted)
def blocks_are_read(backbone: schema.ScalePermuted) -> Remarks:
    """A block that is not read gets no gradient but from its penalty."""
    read = {node for block in backbone.blocks for node in block.inputs}
    read |= {node for joined in backbone.joined() for node in joined}
    for index, block in enumerate(backbone.blocks):
        if not block.output and index + len(backbone.stem) not in read:
            problem = f"nothing reads block {index}, and it is no output"
            fix = "make it an input of a later block, or leave it out"
            yield Remark(f"blocks.{index}", problem, fix)


@rule(schema.OneStage)
def neck_reads_all_levels(model: schema.OneStage) -> Remarks:
    """An output that the neck does not read gets no gradient but from its penalty."""
    backbone, neck = model.backbone, model.neck
    if not isinstance(backbone, schema.ScalePermuted):
        return
    idle = [name for name in backbone.layers if name not in neck.taps_of(backbone)]
    if idle:
        problem = f"the neck does not read {idle[0]} of {backbone.kind}"
        low, high = backbone.min_level, backbone.max_level
        fix = f"a neck of kind identity with the levels {low} to {high} reads them all"
        yield Remark("neck", problem, fix)


@rule(schema.OneStage, schema.FasterRcnn)
def levels_fit_the_image(model: schema.OneStage | schema.FasterRcnn) -> Remarks:
    """Nodes of any two levels are summed, so that sides are multiples of the coarsest stride."""
    if isinstance(model.backbone, schema.ScalePermuted):
        coarsest = max((block.level for block in model.backbone.blocks), default=0)
        # Levels that no image has are reported as out of range.
        stride = 2 ** min(max(coarsest, 0), 15)
        yield from fit_stride(model, stride, f"{model.backbone.kind}, whose coarsest map is")


@rule(schema.CropAndResize)
def pooling_fits_the_crop(crop: schema.CropAndResize) -> Remarks:
    """Max pooling is not padded."""
    if crop.pool_size > crop.size >= 1:
        problem = f"pool_size {crop.pool_size} is more than the crop's {crop.size} rows and columns"
        yield Remark("pool_size", problem, f"at most {crop.size}")

"""RetinaNet of TensorFlow Model Garden in TF2 checkpoints.

A trainer saves the parts of a model as `backbone`, `decoder` and `head`. Backbones and decoders are
functional networks of Keras. Their layers with weights are called `layer_with_weights-0`, `-1`, ...
A block is one layer, and its convolutions and norms are attributes.

Keras sorts layers by their depth, the longest way to an output, the deepest first. Layers of one
depth are in the order in which a search from the outputs finds them.

Sources: in `official/vision/modeling` of tf-models-official 2.15.0: `backbones`, `decoders`,
`heads/dense_prediction_heads.py` and `layers/nn_blocks.py`; `keras/src/engine/functional.py`,
`_map_graph_network` (Keras 2.15).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stillbox.checkpoints.name_tables.rules import (
    KERAS,
    ArrayShapes,
    BackboneTable,
    Context,
    LayerRule,
    register_object_paths,
    register_part,
    register_scopes,
)
from stillbox.experiment import schema
from stillbox.experiment.schema.searched_backbones import ScalePermuted
from stillbox.models.necks.nas_fpn import plan_cell


@dataclass(frozen=True, eq=False)
class KerasLayer:
    """A layer that is called once."""

    inputs: tuple["KerasLayer", ...] = ()
    name: str = ""
    """Empty for a layer without weights."""


def chain(start: KerasLayer, *names: str) -> KerasLayer:
    """Returns the last of layers that are called one after the other."""
    for name in names:
        start = KerasLayer((start,), name)
    return start


def number_layers(outputs: Sequence[KerasLayer]) -> dict[str, int]:
    """Numbers the layers that have a name; `outputs` are in the order of their own names."""
    layers, sorted_layers = _search(outputs)
    depths = dict.fromkeys(layers, 0)
    for layer in reversed(sorted_layers):
        for source in layer.inputs:
            depths[source] = max(depths[source], depths[layer] + 1)
    named = [layer for layer in layers if layer.name]
    named.sort(key=lambda layer: -depths[layer])
    return {layer.name: number for number, layer in enumerate(named)}


def _search(outputs: Sequence[KerasLayer]) -> tuple[list[KerasLayer], list[KerasLayer]]:
    """Returns all layers as a search in depth finds them, and each behind its inputs."""
    visited: dict[KerasLayer, None] = {}
    done: dict[KerasLayer, None] = {}
    for output in outputs:
        stack = [(output, iter(output.inputs))] if output not in visited else []
        visited.setdefault(output)
        while stack:
            layer, sources = stack[-1]
            source = next((candidate for candidate in sources if candidate not in visited), None)
            if source is None:
                done.setdefault(layer)
                stack.pop()
            else:
                visited[source] = None
                stack.append((source, iter(source.inputs)))
    return list(visited), list(done)


_CODEBASE = "model_garden"
register_scopes(
    _CODEBASE, schema.OneStage, {"backbone": "backbone/", "neck": "decoder/", "head": "head/"}
)
Network = Callable[[Context], Sequence[KerasLayer]]
"""Returns the outputs of a network; its layers are called by their paths in our detector."""

# Our name of a convolution in a block -> the block's attributes for it and for the norm behind it.
_SQUEEZE = "_squeeze_excitation/"
_BLOCK = {
    "": ("_conv0", "_norm0"),
    "shortcut": ("_shortcut", "_norm0"),
    "conv_1": ("_conv1", "_norm1"),
    "conv_2": ("_conv2", "_norm2"),
    "conv_3": ("_conv3", "_norm3"),
    "expand": ("_conv0", "_norm0"),
    "depthwise": ("_conv1", "_norm1"),
    "squeeze": (f"{_SQUEEZE}_se_reduce", ""),
    "excite": (f"{_SQUEEZE}_se_expand", ""),
    "project": ("_conv2", "_norm2"),
}
_TUCKER = {"reduce": _BLOCK["expand"], "expand": _BLOCK["depthwise"], "project": _BLOCK["project"]}
_SEPARABLE = {"depthwise": ("_dwconv0", "_norm0"), "pointwise": ("_conv1", "_norm1")}
_IN_BLOCK = re.compile(r"(.*?(?:block|conv)_\d+)(?:[._](\w+))?")
_MOBILE = re.compile(r"(backbone\.(?:block|conv)_\d+)(?:[._]\w+)?")


def _functional(context: Context, network: Network) -> Iterator[LayerRule]:
    """Yields a rule for each convolution of a functional network."""
    numbers = number_layers(network(context))
    paths = {path.removesuffix(".kernel") for path in context.shapes if path.endswith(".kernel")}
    for path in sorted(paths):
        if f"{path}.norm" in numbers:
            depthwise = bool(re.search(r"halve_\d+$", path))
            yield _layer(path, numbers[path], numbers[f"{path}.norm"], depthwise=depthwise)
        elif (match := _IN_BLOCK.fullmatch(path)) and match[1] in numbers:
            scopes = _attributes(match[1], context.shapes)[match[2] or ""]
            scope = f"{{root}}layer_with_weights-{numbers[match[1]]}/"
            depthwise = match[2] == "depthwise"
            yield LayerRule(re.escape(path), scope + scopes[0], scope + scopes[1], depthwise)


def _layer(path: str, number: int, norm: int | str, *, depthwise: bool = False) -> LayerRule:
    layer = "{root}layer_with_weights-"
    return LayerRule(re.escape(path), f"{layer}{number}", f"{layer}{norm}", depthwise)


def _attributes(block: str, shapes: ArrayShapes) -> Mapping[str, tuple[str, str]]:
    if f"{block}.reduce.kernel" in shapes:
        return _TUCKER
    return _SEPARABLE if f"{block}_pointwise.kernel" in shapes else _BLOCK


def _register_backbone(config: type, network: Network) -> None:
    table = BackboneTable(
        convention=KERAS,
        roots={"detection": ("{scope}",), "classification": ("{scope}",)},
        rules=lambda context: tuple(_functional(context, network)),
        codebase=_CODEBASE,
    )
    register_object_paths(config, table)


_INPUT = KerasLayer()


def _resnet(context: Context) -> Sequence[KerasLayer]:
    """Stem, norm, activation, pooling, and one block after the other."""
    blocks: dict[str, None] = {}
    for path in context.shapes:
        if match := re.match(r"backbone\.group_\d+\.block_\d+(?=\.)", path):
            blocks[match[0]] = None
    blocks_in_order = sorted(blocks, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])
    return [chain(_INPUT, "backbone.stem", "backbone.stem.norm", *blocks_in_order)]


def _mobile(context: Context) -> Sequence[KerasLayer]:
    """One block after the other; the first convolution is one too."""
    blocks = {match[1] for path in context.shapes if (match := _MOBILE.match(path))}

    def place(name: str) -> tuple[bool, int]:
        kind, _, number = name.rpartition("_")
        # In MobileNet v1 all blocks are called so, from 0.
        return kind.endswith("block"), int(number)

    return [chain(_INPUT, *sorted(blocks, key=place))]


_register_backbone(schema.ResNet, _resnet)
for _config in (
    schema.MobileNetV1,
    schema.MobileNetV2,
    schema.MobileNetV3Large,
    schema.MobileNetV3Small,
    schema.MobileNetEdgeTpu,
    schema.MobileNetMulti,
    schema.MobileDetCpu,
    schema.MobileDetDsp,
    schema.MobileDetEdgeTpu,
    schema.MobileDetGpu,
):
    _register_backbone(_config, _mobile)


def _upsampled(x: KerasLayer) -> KerasLayer:
    """Returns the last of the operations that repeat pixels: shape, its items, reshape, tile."""
    size = chain(x, "", "")
    tiled = chain(KerasLayer((x, size)), "")
    return KerasLayer((tiled, chain(size, "")))


def _spinenet(context: Context) -> Sequence[KerasLayer]:
    """A block adds resampled maps, activates the sum, and repeats its layer."""
    config: ScalePermuted = context.parts["backbone"]
    mobile = isinstance(config, schema.SpineNetMbConv)
    start = ("backbone.stem", "backbone.stem.norm", *("",) * (1 if mobile else 2))
    maps = [_blocks(chain(_INPUT, *start), "backbone.node_0", config.repeats)]
    maps.append(_blocks(maps[0], "backbone.node_1", config.repeats))
    nodes, ends = [*config.stem, *config.blocks], {}
    for number, (block, joined) in enumerate(
        zip(config.blocks, config.joined(), strict=True), start=len(maps)
    ):
        path = f"backbone.node_{number}"
        parts = [
            _resampled(maps[n], f"{path}.resample_{i}", block.level - nodes[n].level, mobile=mobile)
            for i, n in enumerate(block.inputs)
        ]
        parts += [maps[n] for n in joined]
        total = KerasLayer((parts[0], parts[1])) if mobile else KerasLayer(tuple(parts))
        for part in parts[2:] if mobile else ():
            total = KerasLayer((total, part))
        maps.append(_blocks(chain(total, ""), f"{path}.group", config.repeats))
        if block.output:
            name = f"backbone.endpoint_{block.level}"
            ends[block.level] = chain(maps[-1], name, f"{name}.norm", "")
    return [ends[level] for level in sorted(ends)]


def _blocks(x: KerasLayer, path: str, repeats: int) -> KerasLayer:
    """Returns a layer of another name behind the blocks."""
    return chain(x, *(f"{path}.block_{number}" for number in range(1, repeats + 1)), "")


def _resampled(x: KerasLayer, path: str, steps: int, *, mobile: bool) -> KerasLayer:
    last = "match" if mobile else "expand"
    if not mobile:
        x = chain(x, f"{path}.squeeze", f"{path}.squeeze.norm", "")
    if mobile:
        for step in range(1, steps + 1):
            x = chain(x, f"{path}.halve_{step}", f"{path}.halve_{step}.norm", "")
    elif steps > 0:
        x = chain(x, f"{path}.halve", f"{path}.halve.norm", "", *("",) * (steps - 1))
    if steps < 0:
        x = _upsampled(x)
    return chain(x, f"{path}.{last}", f"{path}.{last}.norm")


_register_backbone(schema.SpineNet, _spinenet)
_register_backbone(schema.SpineNetMbConv, _spinenet)


def _fpn(context: Context) -> Sequence[KerasLayer]:
    """Lateral convolutions, sums from coarse to fine, convolutions, coarser levels, norms."""
    neck: schema.RetinaNetFpn = context.parts["neck"]
    top = neck.min_level + len(neck.taps_of(context.parts["backbone"])) - 1
    levels = range(neck.min_level, neck.max_level + 1)
    lateral = {
        level: KerasLayer((KerasLayer(),), f"neck.lateral_{level}")
        for level in range(neck.min_level, top + 1)
    }
    sums = {top: lateral[top]}
    for level in range(top - 1, neck.min_level - 1, -1):
        sums[level] = KerasLayer((_upsampled(sums[level + 1]), lateral[level]))
    maps = {level: chain(sums[level], f"neck.output_{level}") for level in sums}
    for level in range(top + 1, neck.max_level + 1):
        above = maps[level - 1] if level == top + 1 else chain(maps[level - 1], "")
        maps[level] = chain(above, f"neck.coarse_{level}")
    return [chain(maps[level], f"neck.norm_{level}") for level in levels]


def _fpn_rules(context: Context) -> tuple[LayerRule, ...]:
    numbers, first = number_layers(_fpn(context)), context.parts["neck"].min_level
    rules = [_layer(name, number, "") for name, number in numbers.items() if ".norm_" not in name]
    # Norms are the outputs, and the last. They belong to the neck, each with the number of a level.
    offset = numbers[f"neck.norm_{first}"] - first
    rules.append(LayerRule("neck", "", norm=f"{{root}}layer_with_weights-{{norm:{offset:+}}}"))
    return tuple(rules)


def _nas_fpn(context: Context) -> Sequence[KerasLayer]:
    """Projections and pooled levels, then cells of combined, activated and convolved maps."""
    neck: schema.NasFpn = context.parts["neck"]
    taps = len(neck.taps_of(context.parts["backbone"]))
    maps: list[KerasLayer] = []
    for index, level in enumerate(range(neck.min_level, neck.max_level + 1)):
        if index >= taps:
            maps.append(chain(maps[-1], ""))
            continue
        name = f"neck.resample_{level}"
        projected = (name, f"{name}.norm") if f"{name}.kernel" in context.shapes else ()
        maps.append(chain(KerasLayer(), *projected))
    steps, outputs = plan_cell(neck)
    for cell in range(neck.num_repeats):
        maps, levels = list(maps), list(range(neck.min_level, neck.max_level + 1))
        for number, step in enumerate(steps, start=len(maps)):
            first, second, *joined = (
                _at_level(maps[n], step.level - levels[n]) for n in (*step.inputs, *step.joined)
            )
            total = _combined(first, second, step.gate)
            for part in joined:
                total = KerasLayer((total, part))
            name = f"neck.cell_{cell}.node_{number}.block"
            maps.append(chain(total, "", name, f"{name}.norm"))
            levels.append(step.level)
        maps = [maps[number] for number in outputs]
    return maps


def _at_level(x: KerasLayer, steps: int) -> KerasLayer:
    if steps < 0:
        return _upsampled(x)
    return chain(x, "") if steps else x


def _combined(first: KerasLayer, second: KerasLayer, gate: int | None) -> KerasLayer:
    if gate is None:
        return KerasLayer((first, second))
    gating, gated = (second, first) if gate else (first, second)
    return KerasLayer((gating, KerasLayer((gated, chain(gating, "", "")))))


register_part(_CODEBASE, schema.RetinaNetFpn, _fpn_rules)
register_part(_CODEBASE, schema.NasFpn, lambda context: tuple(_functional(context, _nas_fpn)))


def _head(part: str, place: str, layer: str, norm: str) -> tuple[LayerRule, ...]:
    """Returns the rules of convolutions and norms by their numbers in lists of the original."""
    rules = [
        LayerRule(rf"{part}class_", f"{{root}}_classifier{place}"),
        LayerRule(rf"{part}box", f"{{root}}_box_regressor{place}"),
    ]
    for ours, theirs in (("class_tower", "cls"), ("box_tower", "box")):
        rules.append(
            LayerRule(
                rf"{part}{ours}\.layer_(\d+)(?:\.conv)?",
                f"{{root}}_{theirs}_convs/{layer}",
                norm=f"{{root}}_{theirs}_norms/{norm}",
            )
        )
    return tuple(rules)


# Convolutions are shared by levels, and norms are lists by level and by layer.
register_part(_CODEBASE, schema.WeightSharedHead, _head(r"head\.", "", "{0}", "{norm}/{0}"))
# Convolutions are lists by level too.
register_part(
    _CODEBASE, schema.PerMapHead, _head(r"head\.map_(\d+)\.", "/{0}", "{0}/{1}", "{0}/{1}")
)

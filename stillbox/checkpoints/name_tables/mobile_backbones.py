"""MobileNet v3 and MobileNet for Edge TPUs of TF-slim, MobileDet of the Object Detection API.

Source: `research/slim/nets/mobilenet` and
`object_detection/models/ssd_mobiledet_feature_extractor.py`.
"""

from collections import Counter
from collections.abc import Iterator

from stillbox.checkpoints.name_tables.rules import Context, LayerRule
from stillbox.checkpoints.name_tables.slim import register_network
from stillbox.experiment import schema
from stillbox.models.backbones.mobile_blocks import Block
from stillbox.models.backbones.mobiledet import mobiledet_blocks


def _slim_blocks() -> Iterator[LayerRule]:
    # The first block has no number.
    for ours, theirs in (
        (r"backbone\.block_0\.()", "{root}/expanded_conv/"),
        (r"backbone\.block_(\d+)\.", "{root}/expanded_conv_{0}/"),
    ):
        yield LayerRule(ours + "depthwise", theirs + "depthwise", depthwise=True)
        yield LayerRule(ours + "(expand|project)", theirs + "{1}")
        yield LayerRule(ours + "squeeze", theirs + "squeeze_excite/Conv")
        yield LayerRule(ours + "excite", theirs + "squeeze_excite/Conv_1")


def _slim_tap(tap: str, last: str) -> str:
    """Layers are counted from 1: the root, the blocks, the last convolution."""
    if tap == "conv_1":
        return last
    block, _, part = tap.removeprefix("block_").partition("_")
    return f"layer_{int(block) + 2}" + ("/expansion_output" if part else "")


for _config, _root, _last in (
    (schema.MobileNetV3Large, "MobilenetV3", "layer_17"),
    (schema.MobileNetV3Small, "MobilenetV3", "layer_13"),
    (schema.MobileNetEdgeTpu, "MobilenetEdgeTPU", "layer_24"),
):
    register_network(
        _config,
        root=_root,
        rules=(
            LayerRule(r"backbone\.conv_0", "{root}/Conv"),
            LayerRule(r"backbone\.conv_1", "{root}/Conv_1"),
            *_slim_blocks(),
        ),
        tap_name=lambda tap, last=_last: _slim_tap(tap, last),  # type: ignore[misc]
        # The original has no pyramid on these networks.
        coarse_layer="Conv2d_{0}",
    )


def _mobiledet(context: Context) -> tuple[LayerRule, ...]:
    """Names layers by default names: blocks of a kind are numbered, and convolutions."""
    rules, counts = [LayerRule(r"backbone\.conv_0", "{root}/Conv")], Counter[str]()
    for index, block in enumerate(mobiledet_blocks(context.parts["backbone"])):
        kind = _kind(block)
        scope = f"{{root}}/{kind}_{counts[kind]}" if counts[kind] else f"{{root}}/{kind}"
        counts[kind] += 1
        ours = rf"backbone\.block_{index}\."
        gate = f"{scope}/SqueezeExcite/Conv"
        rules += [
            *(LayerRule(ours + name, f"{scope}/{conv}") for name, conv in _CONVOLUTIONS[kind]),
            LayerRule(ours + "depthwise", f"{scope}/SeparableConv2d", depthwise=True),
            LayerRule(ours + "squeeze", gate),
            LayerRule(ours + "excite", f"{gate}_1"),
        ]
    return tuple(rules)


def _kind(block: Block) -> str:
    if block.form == "inverted":
        return "IBN" if block.wide > block.inputs else "IBNNoExpansion"
    return {"fused": "FusedConv", "tucker": "TuckerConv"}[block.form]


_CONVOLUTIONS = {
    "IBN": (("expand", "Conv"), ("project", "Conv_1")),
    "IBNNoExpansion": (("project", "Conv"),),
    "FusedConv": (("expand", "Conv"), ("project", "Conv_1")),
    "TuckerConv": (("reduce", "Conv"), ("expand", "Conv_1"), ("project", "Conv_2")),
}
for _network, _root in (
    (schema.MobileDetCpu, "MobileDetCPU"),
    (schema.MobileDetGpu, "MobileDetGPU"),
    (schema.MobileDetDsp, "MobileDetDSP"),
    (schema.MobileDetEdgeTpu, "MobileDetEdgeTPU"),
):
    # Maps are called after their levels.
    _names = {layer: f"C{level}" for level, layer in _network.levels.items()}
    register_network(
        _network,
        root=_root,
        rules=_mobiledet,
        tap_name=lambda tap, names=_names: names.get(tap, tap),  # type: ignore[misc]
        coarse_layer="Conv2d_{0}",
    )

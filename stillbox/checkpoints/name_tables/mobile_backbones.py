"""MobileNet v3 and MobileNet for Edge TPUs of TF-slim (`research/slim/nets/mobilenet`)."""

from collections.abc import Iterator

from stillbox.checkpoints.name_tables.rules import LayerRule
from stillbox.checkpoints.name_tables.slim import register_network
from stillbox.experiment import schema


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

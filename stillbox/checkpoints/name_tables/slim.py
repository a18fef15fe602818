"""MobileNet v1, v2, ResNet v1, Inception v2 and v3 of TF-slim (`research/slim/nets`)."""

from collections.abc import Callable

from stillbox.checkpoints.name_tables.rules import (
    SLIM,
    BackboneTable,
    LayerRule,
    Rules,
    register_backbone,
)
from stillbox.experiment import schema


def register_network(
    config: type,
    root: str,
    rules: Rules,
    tap_name: Callable[[str], str],
    coarse_layer: str = "",
) -> None:
    """Registers the names of a network of the first generation.

    Args:
        config: the backbone's class of configuration.
        root: scope of the network.
        rules: of its layers; `{root}` is the scope with what is around it.
        tap_name: returns the original's name of a tap.
        coarse_layer: see `BackboneTable`.
    """
    table = BackboneTable(
        convention=SLIM,
        roots={"classification": (root,), "detection": (f"{{scope}}{root}",)},
        rules=rules,
        codebase="object_detection",
        tap_name=tap_name,
        coarse_layer=coarse_layer,
        expected={"neck.top_down": "sum"},
    )
    register_backbone(config, table)


def _mobilenet_v1(pattern: str, name: str, *, depthwise: bool = False) -> LayerRule:
    # Its operations are twice in the network's scope.
    return LayerRule(
        pattern, f"{{root}}/{name}", depthwise=depthwise, operations=f"{{root}}/MobilenetV1/{name}"
    )


register_network(
    schema.MobileNetV1,
    root="MobilenetV1",
    rules=(
        _mobilenet_v1(r"backbone\.conv_0", "Conv2d_0"),
        _mobilenet_v1(r"backbone\.conv_(\d+)_depthwise", "Conv2d_{0}_depthwise", depthwise=True),
        _mobilenet_v1(r"backbone\.conv_(\d+)_pointwise", "Conv2d_{0}_pointwise"),
    ),
    # conv_13_pointwise is called Conv2d_13_pointwise.
    tap_name=lambda tap: tap.replace("conv_", "Conv2d_", 1),
    coarse_layer="Conv2d_{0:+13}",
)


def _mobilenet_v2_tap(tap: str) -> str:
    """Layers are counted from 1: the root, 17 blocks, the last convolution."""
    if tap == "conv_1":
        return "layer_19"
    block, _, part = tap.removeprefix("block_").partition("_")
    return f"layer_{int(block) + 2}" + ("/expansion_output" if part == "expand" else "")


_BLOCK = r"backbone\.block_(\d+)_"
register_network(
    schema.MobileNetV2,
    root="MobilenetV2",
    rules=(
        LayerRule(r"backbone\.conv_0", "{root}/Conv"),
        LayerRule(r"backbone\.conv_1", "{root}/Conv_1"),
        # The first block has no number.
        LayerRule(r"backbone\.block_0_depthwise", "{root}/expanded_conv/depthwise", depthwise=True),
        LayerRule(r"backbone\.block_0_project", "{root}/expanded_conv/project"),
        LayerRule(_BLOCK + "depthwise", "{root}/expanded_conv_{0}/depthwise", depthwise=True),
        LayerRule(_BLOCK + "(expand|project)", "{root}/expanded_conv_{0}/{1}"),
        LayerRule(_BLOCK + "sum", "{root}/expanded_conv_{0}/post_activation_bypass_quant"),
    ),
    tap_name=_mobilenet_v2_tap,
    coarse_layer="Conv2d_{0:+19}",
)

# The second stage of a detector continues the network that its backbone begins.
_NETWORK = r"(?:backbone|box_head)\."
_UNIT = _NETWORK + r"block_(\d+)\.unit_(\d+)\."
_BOTTLENECK = "{root}/block{0}/unit_{1}/bottleneck_v1"
register_network(
    schema.ResNetV1,
    root="resnet_v1_{depth}",
    rules=(
        LayerRule(r"backbone\.root", "{root}/conv1"),
        LayerRule(_UNIT + "shortcut", _BOTTLENECK + "/shortcut"),
        LayerRule(_UNIT + r"conv_(\d)", _BOTTLENECK + "/conv{2}"),
    ),
    # block_4 is called block4.
    tap_name=lambda tap: tap.replace("_", ""),
    coarse_layer="block{0:+4}",
)

register_network(
    schema.InceptionV2,
    root="InceptionV2",
    rules=(
        LayerRule(r"backbone\.conv_1a", "{root}/Conv2d_1a_7x7"),
        LayerRule(r"backbone\.conv_2b", "{root}/Conv2d_2b_1x1"),
        LayerRule(r"backbone\.conv_2c", "{root}/Conv2d_2c_3x3"),
        LayerRule(
            _NETWORK + r"mixed_(\w+)\.branch_(\d)\.conv_(\w+)",
            "{root}/Mixed_{0}/Branch_{1}/Conv2d_{2}",
        ),
    ),
    # mixed_5c is called Mixed_5c.
    tap_name=str.capitalize,
)

_INSIDE = r"backbone\.mixed_(\w+)\.branch_(\d)\."
_BRANCH = "{root}/Mixed_{0}/Branch_{1}/"
register_network(
    schema.InceptionV3,
    root="InceptionV3",
    rules=(
        LayerRule(r"backbone\.conv_3b", "{root}/Conv2d_3b_1x1"),
        LayerRule(r"backbone\.conv_(\w+)", "{root}/Conv2d_{0}_3x3"),
        # The original's slips.
        LayerRule(r"backbone\.mixed_(5c)\.branch_(1)\.conv_0a_1x1", _BRANCH + "Conv2d_0b_1x1"),
        LayerRule(r"backbone\.mixed_(5c)\.branch_(1)\.conv_0b_5x5", _BRANCH + "Conv_1_0c_5x5"),
        LayerRule(r"backbone\.mixed_(6a)\.branch_(\d)\.conv_1a_3x3", _BRANCH + "Conv2d_1a_1x1"),
        LayerRule(r"backbone\.mixed_(7b)\.branch_(1)\.conv_0c_3x1", _BRANCH + "Conv2d_0b_3x1"),
        LayerRule(_INSIDE + r"conv_(\w+)", _BRANCH + "Conv2d_{2}"),
    ),
    # mixed_7c is called Mixed_7c.
    tap_name=str.capitalize,
)

"""EfficientNet-Lite of its authors, and of the PyTorch package `efficientnet-lite-pytorch`.

Sources: `tpu/models/official/efficientnet/efficientnet_model.py`, whose blocks number their layers
of a kind from the second on, and that package's `model.py`. Both number the blocks of all stacks
through, from 0.
"""

import re
from collections.abc import Iterator

from stillbox.checkpoints.name_tables.rules import (
    TF_LAYERS,
    TORCH,
    BackboneTable,
    Context,
    LayerRule,
    register_backbone,
)
from stillbox.experiment import schema

_UNUSED = "layer behind the last that this model uses"


def _blocks(context: Context) -> Iterator[tuple[str, int, bool]]:
    """Yields pattern and number of each block, and whether it has an expansion."""
    backbone: schema.EfficientNetLite = context.parts["backbone"]
    for number, name in enumerate(backbone.layers[1:]):
        path = f"backbone.{name}"
        yield re.escape(path), number, f"{path}.expand.kernel" in context.shapes


def _tensorflow_rules(context: Context) -> tuple[LayerRule, ...]:
    norm = "tpu_batch_normalization"
    rules = [LayerRule(r"backbone\.stem", "{root}stem/conv2d", norm=f"{{root}}stem/{norm}")]
    for pattern, number, expanded in _blocks(context):
        scope = f"{{root}}blocks_{number}"
        second, third = ("_1", "_2") if expanded else ("", "_1")
        last = "_1" if expanded else ""
        rules += [
            LayerRule(rf"{pattern}\.expand", f"{scope}/conv2d", norm=f"{scope}/{norm}"),
            LayerRule(
                rf"{pattern}\.depthwise",
                f"{scope}/depthwise_conv2d",
                norm=f"{scope}/{norm}{second}",
                depthwise=True,
            ),
            LayerRule(
                rf"{pattern}\.project", f"{scope}/conv2d{last}", norm=f"{scope}/{norm}{third}"
            ),
        ]
    return tuple(rules)


def _torch_rules(context: Context) -> tuple[LayerRule, ...]:
    rules = [LayerRule(r"backbone\.stem", "{root}_conv_stem", norm="{root}_bn0")]
    for pattern, number, _ in _blocks(context):
        scope = f"{{root}}_blocks.{number}"
        rules += [
            LayerRule(
                rf"{pattern}\.{layer}",
                f"{scope}._{layer}_conv",
                norm=f"{scope}._bn{index}",
                depthwise=layer == "depthwise",
            )
            for index, layer in enumerate(("expand", "depthwise", "project"))
        ]
    return tuple(rules)


_ROOTS = ("", *(f"efficientnet-{size}/" for size in schema.EFFICIENTNET_LITE_SIZES))

register_backbone(
    schema.EfficientNetLite,
    BackboneTable(
        convention=TF_LAYERS,
        roots={"classification": _ROOTS, "detection": _ROOTS},
        rules=_tensorflow_rules,
        ignored={
            r"(.*/)?head/dense/(kernel|bias)": "classifier's logits",
            r"(.*/)?(head|blocks_\d+)/.*": _UNUSED,
        },
    ),
    BackboneTable(
        convention=TORCH,
        roots={"classification": ("",), "detection": ("",)},
        rules=_torch_rules,
        any_prefix=True,
        ignored={
            r"(.*\.)?num_batches_tracked": "count of batches, which nothing here uses",
            r"(.*\.)?_fc\.(weight|bias)": "classifier's logits",
            r"(.*\.)?(_conv_head|_bn1|_blocks\.\d+)\..*": _UNUSED,
            r"optimizer\..*": "optimizer slot",
        },
    ),
)

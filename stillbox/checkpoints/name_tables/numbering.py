"""Default names of `tf.layers`, which numbers the layers of a scope in order of creation."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from stillbox.checkpoints.name_tables.rules import LayerRule, Shapes


class Layer(NamedTuple):
    """A convolution."""

    place: tuple[int, ...]
    """Sorts the layers of a model by creation in the other codebase."""
    scope: str
    """Below `{root}`, with a slash at its end unless empty."""
    path: str
    """In our detector."""
    depthwise: bool = False


def number_layers(layers: Iterable[Layer], shapes: Shapes) -> tuple[LayerRule, ...]:
    """Returns a rule for each layer.

    Convolutions, depthwise convolutions and batch norms of a scope are counted apart.

    Args:
        layers: in any order.
        shapes: of all arrays by path; they tell which layers have a batch norm.
    """
    counts: Counter[str] = Counter()

    def number(name: str) -> str:
        counts[name] += 1
        return f"{{root}}{name}_{counts[name] - 1}" if counts[name] > 1 else f"{{root}}{name}"

    rules = []
    for layer in sorted(layers):
        conv = number(layer.scope + ("depthwise_conv2d" if layer.depthwise else "conv2d"))
        # Training names parameters alone, without moving statistics.
        parts = ("scale", "bias", "mean")
        normalized = any(f"{layer.path}.norm.{part}" in shapes for part in parts)
        norm = number(layer.scope + "batch_normalization") if normalized else ""
        rules.append(LayerRule(re.escape(layer.path), conv, norm, layer.depthwise))
    return tuple(rules)

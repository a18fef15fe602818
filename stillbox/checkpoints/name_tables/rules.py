"""The form of a name table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

Shapes = Mapping[str, tuple[int, ...]]

DEPTHWISE_KERNEL = "depthwise_weights"
"""What slim calls the kernel of a depthwise convolution."""


@dataclass(frozen=True)
class LayerName:
    """Names one kind of layer.

    Attributes:
        pattern: matches the layer's whole path in our detector.
        template: its TF1 scope; `{0}`, `{1}` stand for the pattern's groups, and the names that
            `format_scope` is given for themselves. `{channels}` is the layer's own count.
        kernel: what the layer's kernel is called there.
        norm: what its batch norm is called; `{norm}` stands for the feature map.
        counted: pattern's replacement that names the layer whose channels count, where that is
            another one.
    """

    pattern: str
    template: str
    kernel: str = "weights"
    norm: str = "BatchNorm"
    counted: str | None = None

    def format_scope(self, layer: str, shapes: Shapes, fields: Mapping[str, object]) -> str | None:
        """Returns the scope of a layer, or None where this rule is not about it."""
        match = re.fullmatch(self.pattern, layer)
        if match is None:
            return None
        counted = match.expand(self.counted) if self.counted else layer
        channels = shapes.get(f"{counted}.kernel", (0,))[-1]
        return self.template.format(*match.groups(), channels=channels, **fields)


# slim's names of what a layer owns, beside its kernel.
_NORM_VARIABLES: Mapping[str, str] = {
    "scale": "gamma",
    "bias": "beta",
    "mean": "moving_mean",
    "var": "moving_variance",
}


def variable_name(rule: LayerName, variable: str, *, separable: bool) -> str | None:
    """Returns what slim calls a layer's variable, such as `norm_2.mean` or `kernel`.

    Args:
        rule: of the layer.
        variable: its path inside the layer.
        separable: the layer has a depthwise kernel beside its own.
    """
    norm = re.fullmatch(r"norm(?:_(\d+))?\.(\w+)", variable)
    if norm:
        return f"{rule.norm.format(norm=norm[1])}/{_NORM_VARIABLES[norm[2]]}"
    kernel = "pointwise_weights" if separable else rule.kernel
    return {"kernel": kernel, "depthwise_kernel": DEPTHWISE_KERNEL, "bias": "biases"}.get(variable)

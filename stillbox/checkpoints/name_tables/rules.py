"""The form of a name table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerName:
    """Names one kind of layer.

    Attributes:
        pattern: matches the layer's whole path in our detector.
        template: its TF1 scope; `{0}`, `{1}` stand for the pattern's groups, and the names that
            `format_scope` is given for themselves.
        kernel: what the layer's kernel is called there.
    """

    pattern: str
    template: str
    kernel: str = "weights"

    def format_scope(self, layer: str, fields: Mapping[str, object]) -> str | None:
        """Returns the scope of a layer, or None where this rule is not about it."""
        match = re.fullmatch(self.pattern, layer)
        return match and self.template.format(*match.groups(), **fields)


# slim's names of what a layer owns, beside its kernel.
VARIABLES: Mapping[str, str] = {
    "bias": "biases",
    "norm.scale": "BatchNorm/gamma",
    "norm.bias": "BatchNorm/beta",
    "norm.mean": "BatchNorm/moving_mean",
    "norm.var": "BatchNorm/moving_variance",
}

"""The form of a name table."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from stillbox.experiment import schema

Shapes = Mapping[str, tuple[int, ...]]
Scope = Literal["classification", "detection"]
Library = Literal["tensorflow", "torch"]

DEPTHWISE_KERNEL = "depthwise_weights"
"""What slim calls the kernel of a depthwise convolution."""

_NORM_VARIABLE = re.compile(r"norm(?:_(\d+))?\.(\w+)")


@dataclass(frozen=True)
class Spelling:
    """What a library calls that which a layer owns.

    Attributes:
        library: the one that weights of such names are written with.
        variables: by our name; `pointwise_kernel` is the kernel beside a depthwise one.
        norm: the same of a batch norm.
        separator: between the parts of a name.
        kernel_axes: order in which a kernel of the library gives one of `[k, k, in, out]`.
    """

    library: Library
    variables: Mapping[str, str]
    norm: Mapping[str, str]
    separator: str = "/"
    kernel_axes: tuple[int, int, int, int] = (0, 1, 2, 3)


_TF1_NORM = {"scale": "gamma", "bias": "beta", "mean": "moving_mean", "var": "moving_variance"}
SLIM = Spelling(
    library="tensorflow",
    variables={
        "kernel": "weights",
        "depthwise_kernel": DEPTHWISE_KERNEL,
        "pointwise_kernel": "pointwise_weights",
        "bias": "biases",
    },
    norm=_TF1_NORM,
)
TF_LAYERS = Spelling(
    library="tensorflow",
    variables={
        "kernel": "kernel",
        "depthwise_kernel": "depthwise_kernel",
        "pointwise_kernel": "pointwise_kernel",
        "bias": "bias",
    },
    norm=_TF1_NORM,
)
# Kernels of torch are [out, in, k, k].
TORCH = Spelling(
    library="torch",
    variables={"kernel": "weight", "bias": "bias"},
    norm={"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"},
    separator=".",
    kernel_axes=(2, 3, 1, 0),
)


@dataclass(frozen=True)
class LayerName:
    """Names one kind of layer.

    Attributes:
        pattern: matches the layer's whole path in our detector.
        template: its scope there; `{0}`, `{1}` stand for the pattern's groups, and the fields that
            `name_of` is given for themselves. `{channels}` is the layer's own count.
        kernel: what the layer's kernel is called, where not as usual.
        norm: scope of its batch norm; `{scope}` stands for the layer's, `{norm}` for the feature
            map.
        first_norm: what feature map 0 counts as there.
        counted: pattern's replacement that names the layer whose channels count, where that is
            another one.
        spelling: of what the layer owns.
    """

    pattern: str
    template: str
    kernel: str | None = None
    norm: str = "{scope}/BatchNorm"
    first_norm: int = 0
    counted: str | None = None
    spelling: Spelling = SLIM

    def name_of(
        self, layer: str, variable: str, shapes: Shapes, fields: Mapping[str, object]
    ) -> str | None:
        """Returns the name of a layer's variable, such as `norm_2.mean` or `kernel`.

        None where this rule is not about the layer, or the original has no such variable.
        """
        match = re.fullmatch(self.pattern, layer)
        if match is None:
            return None
        counted = match.expand(self.counted) if self.counted else layer
        channels = shapes.get(f"{counted}.kernel", (0,))[-1]
        scope = self.template.format(*match.groups(), channels=channels, **fields)
        norm = _NORM_VARIABLE.fullmatch(variable)
        if norm:
            number = int(norm[1]) + self.first_norm if norm[1] else None
            scope = self.norm.format(*match.groups(), scope=scope, norm=number, **fields)
            name = self.spelling.norm.get(norm[2])
        elif variable != "kernel":
            name = self.spelling.variables.get(variable)
        elif f"{layer}.depthwise_kernel" in shapes:
            name = self.spelling.variables["pointwise_kernel"]
        else:
            name = self.kernel or self.spelling.variables["kernel"]
        return scope + self.spelling.separator + name if name else None


@dataclass(frozen=True)
class BackboneNames:
    """What one library calls a backbone.

    Attributes:
        spelling: of what its layers own.
        roots: what `{root}` may stand for, the usual one first, by what kind of model the weights
            are of; `{depth}` is the backbone's.
        layers: rules of its own layers.
        family: of the tables for necks and heads around it.
        any_root: other roots are accepted too, where all names are found behind one.
        tap_name: name of a tap, in tables that derive others from it.
        coarse: template of the layers that a pyramid adds, and the number of the first of them.
        trained_with: fields of the backbone that published weights of these names ask for.
        unwanted: reason by pattern of names that are in such weights and in no model of ours.
    """

    spelling: Spelling
    roots: Mapping[Scope, tuple[str, ...]]
    layers: "Table"
    family: "Family"
    any_root: bool = False
    tap_name: Callable[[str], str] = str
    coarse: tuple[str, int] = ("", 0)
    trained_with: Mapping[str, str] = field(default_factory=dict)
    unwanted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What the rules of a part may depend on."""

    model: schema.Model
    backbone: BackboneNames
    shapes: Shapes


Table = Callable[[Context], tuple[LayerName, ...]]


@dataclass(frozen=True)
class Family:
    """Tables of the parts around a backbone, by the class of their description."""

    necks: Mapping[type, Table] = field(default_factory=dict)
    heads: Mapping[type, Table] = field(default_factory=dict)


def fixed(layers: tuple[LayerName, ...]) -> Table:
    """Returns the table whose rules are always the same."""
    return lambda _: layers


def slim_roots(root: str) -> Mapping[Scope, tuple[str, ...]]:
    """Returns the roots of a backbone that detectors of slim keep in a scope of their own."""
    return {"classification": (root,), "detection": (f"FeatureExtractor/{root}",)}

"""The form of a name table, and the registry of all tables.

A table is optional: a part without one is trained, saved and loaded under its own paths.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

ArrayShapes = Mapping[str, tuple[int, ...]]
Scope = Literal["classification", "detection"]
Library = Literal["tensorflow", "torch", "keras"]
"""`keras`: TF2's object-based checkpoints; names are paths from object to object."""


@dataclass(frozen=True)
class Convention:
    """Names and layouts of a layer's variables in a library."""

    library: Library
    """The library that writes such weights."""
    variables: Mapping[str, str]
    """By our name; `pointwise_kernel` is the kernel beside a depthwise one."""
    norm: Mapping[str, str]
    """The same of a batch norm."""
    separator: str = "/"
    """Between the parts of a name."""
    kernel_axes: tuple[int, int, int, int] = (0, 1, 2, 3)
    """Transposes the library's kernels to `[k, k, in, out]`."""
    depthwise_axes: tuple[int, int, int, int] = (0, 1, 2, 3)
    """Transposes the library's depthwise kernels to `[k, k, channels, 1]`."""


_TF1_NORM = {"scale": "gamma", "bias": "beta", "mean": "moving_mean", "var": "moving_variance"}
SLIM = Convention(
    library="tensorflow",
    variables={
        "kernel": "weights",
        "depthwise_kernel": "depthwise_weights",
        "pointwise_kernel": "pointwise_weights",
        "bias": "biases",
        "min": "min",
        "max": "max",
    },
    norm=_TF1_NORM,
)
TF_LAYERS = Convention(
    library="tensorflow",
    variables={name: name for name in ("kernel", "depthwise_kernel", "pointwise_kernel", "bias")},
    norm=_TF1_NORM,
)
KERAS = replace(
    TF_LAYERS,
    library="keras",
    variables={**TF_LAYERS.variables, "weights": "bifpn_combine_weights"},
)
# Kernels of torch are [out, in, k, k], depthwise ones [channels, 1, k, k].
TORCH = Convention(
    library="torch",
    variables={"kernel": "weight", "depthwise_kernel": "weight", "bias": "bias"},
    norm={"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"},
    separator=".",
    kernel_axes=(2, 3, 1, 0),
    depthwise_axes=(2, 3, 0, 1),
)


@dataclass(frozen=True)
class LayerRule:
    """Names one kind of layer.

    In templates, `{0}` and `{1}` are the groups of `pattern`; `{0:+3}` adds 3 to a group that is a
    number. `{root}` is the scope of the network that the part is of, `{tap}` the name of the
    backbone's last tap, and `{channels}` the layer's number of output channels.
    """

    pattern: str
    """Matches the layer's whole path in our detector."""
    template: str
    """The layer's scope in the other codebase."""
    norm: str = "{scope}/BatchNorm"
    """Scope of its batch norm; `{scope}` is the layer's, `{norm}` the number of the feature map."""
    depthwise: bool = False
    """The layer's kernel has the name of a depthwise one."""
    channels_of: str | None = None
    """Path of the layer that `{channels}` counts, if another; expands the groups of `pattern`."""
    operations: str = "{scope}"
    """Scope of the operations, by which `tf.contrib.quantize` names ranges; `{scope}` is the scope
    of the variables."""


@dataclass(frozen=True)
class Context:
    """What rules can be computed from."""

    parts: Mapping[str, Any]
    """Configurations of the model's parts by name."""
    table: "BackboneTable"
    shapes: ArrayShapes
    """The shapes of all arrays by path."""
    roots: Mapping[str, str] = field(default_factory=dict)
    """`{root}` by part."""


Rules = tuple[LayerRule, ...] | Callable[[Context], tuple[LayerRule, ...]]


@dataclass(frozen=True)
class BackboneTable:
    """Names of a backbone's layers in one codebase."""

    convention: Convention
    """The convention of all layers, in neck and head too."""
    roots: Mapping[Scope, tuple[str, ...]]
    """Candidates for `{root}` by the kind of model that weights are of, the usual one first.
    `{depth}` is the backbone's, `{scope}` is what `register_scopes` has for the part."""
    rules: Rules
    codebase: str = ""
    """Where the names of necks and heads around this backbone are from, see `register_part`."""
    any_prefix: bool = False
    """Names may follow any common prefix."""
    tap_name: Callable[[str], str] = str
    """Returns `{tap}` by our name of the layer."""
    coarse_layer: str = ""
    """Template of the layers that `Fpn` adds, counted from 1 as `{0}`."""
    extra_layers: str = ""
    """What contains the layers that `SsdExtraLayers` adds."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """Fields of the model's parts with which such weights were trained, as `neck.top_down`."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Reason by pattern, of names in such weights that no model uses."""


BACKBONES: dict[type, tuple[BackboneTable, ...]] = {}
"""Tables by class of configuration, the original codebase's first."""
OBJECT_PATHS: dict[type, list[BackboneTable]] = {}
"""The tables of TF2 checkpoints by class of configuration, in the order of their modules."""
PARTS: dict[tuple[str, type], Rules] = {}
"""Rules of necks and heads by codebase and class of configuration."""
Scopes = Mapping[str, str] | Callable[[Mapping[str, Any]], Mapping[str, str]]
SCOPES: dict[tuple[str, type], Scopes] = {}
"""Scopes by part, by codebase and class of a model's configuration."""


def register_backbone(config: type, *tables: BackboneTable) -> None:
    """Registers the tables of a backbone, the original codebase's first."""
    BACKBONES[config] = tables


def register_object_paths(config: type, table: BackboneTable) -> None:
    """Registers a table of a backbone in TF2 checkpoints."""
    OBJECT_PATHS.setdefault(config, []).append(table)


def register_part(codebase: str, config: type, rules: Rules) -> None:
    """Registers the rules of a neck or head for the backbones of a codebase."""
    PARTS[codebase, config] = rules


def register_scopes(codebase: str, config: type, scopes: Scopes) -> None:
    """Registers where a codebase keeps the networks that a model's parts are of.

    Args:
        scopes: by name of a part, with a slash at the end; or what returns them for the
            configurations of the parts.
    """
    SCOPES[codebase, config] = scopes


def has_norm(path: str, shapes: ArrayShapes) -> bool:
    """Whether a layer has a batch norm, by the shapes of all arrays."""
    # Training names only parameters, not moving statistics.
    return any(f"{path}.norm.{part}" in shapes for part in ("scale", "bias", "mean"))

"""Learning rate and weight decay of single parameters, as factors by path.

Which parameters are norms, biases and level scales follows from their paths: `norm.scale` and
`norm.bias` of a layer (`norm_k` of level k), `bias` of a layer, `scale_k` of a head.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.textformat.name_patterns import found_in

_WHERE = "train.optimizer.groups"
_LEVEL_SCALE = re.compile(r"scale_\d+")
# Convolutions of one block, which backbones keep side by side.
_OPERATION = re.compile(r"_(expand|depthwise|pointwise|project)$")
_BLOCK = re.compile(r"(block|unit)_\d+")


def is_bias(path: str) -> bool:
    """Returns whether a parameter is what TF1 calls `biases`.

    The shift of a batch norm is its `beta`, and no bias.
    """
    return path.rpartition(".")[2] == "bias" and not is_norm(path)


def is_norm(path: str) -> bool:
    """Returns whether a parameter is scale or bias of a batch norm or group norm."""
    return path.rpartition(".")[0].rpartition(".")[2].startswith("norm")


def is_level_scale(path: str) -> bool:
    """Returns whether a parameter is the number that a head multiplies the maps of a level by."""
    return _LEVEL_SCALE.fullmatch(path.rpartition(".")[2]) is not None


def groups_of(
    optimizer: schema.Optimizer, paths: Iterable[str]
) -> dict[str, schema.ParameterGroup]:
    """Returns the first group whose pattern is found in a path, for each path that has one."""
    left = dict.fromkeys(paths, "")
    chosen: dict[str, schema.ParameterGroup] = {}
    for group in optimizer.groups:
        ((_, found),) = found_in([group.pattern], left, _WHERE)
        if not found:
            raise UserError(
                f"the pattern {group.pattern!r} matches no parameter that is trained and in no "
                "earlier group",
                where=_WHERE,
                fix=f"paths look like {', '.join(sorted(left)[:3])}",
            )
        chosen |= dict.fromkeys(found, group)
        left = {path: "" for path in left if path not in found}
    return chosen


def has_rate_factors(optimizer: schema.Optimizer) -> bool:
    """Returns whether any factor of a learning rate may differ from 1."""
    factors = (optimizer.backbone_multiplier, optimizer.backbone_layer_decay)
    return factors != (1, 1) or bool(optimizer.groups)


def rate_factors(
    optimizer: schema.Optimizer, paths: Iterable[str], layers: Sequence[str]
) -> dict[str, float]:
    """Returns the factor of the learning rate of each parameter.

    Args:
        layers: `Backbone.layers` of the model, in the order of their computation.
    """
    paths = list(paths)
    groups = groups_of(optimizer, paths)
    depths = _depths(paths, layers) if optimizer.backbone_layer_decay != 1 else {}
    last = max(depths.values(), default=0)
    factors = {}
    for path in paths:
        factor = groups[path].learning_rate_multiplier if path in groups else 1.0
        if path.startswith("backbone."):
            below = last - depths.get(path, last)
            factor *= optimizer.backbone_multiplier * optimizer.backbone_layer_decay**below
        factors[path] = factor
    return factors


def _depths(paths: Iterable[str], layers: Sequence[str]) -> dict[str, int]:
    """Returns the number of the layer of each parameter of a backbone, from 0 at the image.

    A layer is a block, or a convolution outside of blocks.
    """
    order: dict[str, int] = {}
    for layer in layers:
        order.setdefault(_OPERATION.sub("", layer), len(order))
    places = {}
    for path in paths:
        part, *names = path.split(".")
        if part == "backbone":
            block = names[1] if _BLOCK.fullmatch(names[1]) else "block_0"
            number = int(block.rpartition("_")[2])
            places[path] = (order[_OPERATION.sub("", names[0])], number)
    ranks = {place: rank for rank, place in enumerate(sorted(set(places.values())))}
    return {path: ranks[place] for path, place in places.items()}


def decay_factors(optimizer: schema.AdamW, paths: Iterable[str]) -> Mapping[str, float]:
    """Returns the factor of the weight decay of each parameter.

    A group with a factor of its own takes the place of those of norms, biases and level scales, as
    `custom_keys` do in mmengine (`optim/optimizer/default_constructor.py`).
    """
    paths = list(paths)
    groups = groups_of(optimizer, paths)
    factors = {}
    for path in paths:
        own = groups[path].decay_multiplier if path in groups else None
        factors[path] = _decay_of_kind(optimizer, path) if own is None else own
    return factors


def _decay_of_kind(optimizer: schema.AdamW, path: str) -> float:
    if is_norm(path):
        return optimizer.norm_decay_multiplier
    if is_bias(path):
        return optimizer.bias_decay_multiplier
    return optimizer.scale_decay_multiplier if is_level_scale(path) else 1.0

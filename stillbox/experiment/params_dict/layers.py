"""Batch norm, activation and penalties: what the convolutions of a part have in common.

Source: TPU detection fact sheet 3 and 5. In 2020 every block had these keys for itself.
"""

import re
from typing import Any, Literal, get_args

from stillbox.errors import UserError
from stillbox.experiment.params_dict.keys import KEYS
from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.schema import (
    L2,
    Activation,
    BatchNorm,
    ConvHyperparams,
    DropBlock,
    Initializer,
    VarianceScaling,
)
from stillbox.experiment.values import Plain

VARIANCE_SCALING = VarianceScaling(factor=1.0, mode="fan_in", exact_cut=True)
"""`tf.variance_scaling_initializer()`, which the backbones have."""
GLOROT_UNIFORM = VarianceScaling(factor=1.0, uniform=True, mode="fan_avg")
"""What TensorFlow's layers take where nothing is said."""
_COMMON = "batch_norm_activation"
_SYNC = "use_sync_bn"
_REGEX = "train.regularization_variable_regex"
# Names of variables by what they are, from every part of a detector (fact sheet 9).
_VARIABLES = {
    "kernel": (
        "resnet50/conv2d_7/kernel:0",
        "spinenet/sub_policy3/scale_permuted_block_5/conv2d_1/kernel:0",
        "fpn/l3/kernel:0",
        "fpn_cells/cell_0/sub_policy0/op_after_combine5/conv/kernel:0",
        "retinanet/class_net/class-predict/kernel:0",
        "retinanet/box_net/box-1/pointwise_kernel:0",
    ),
    "depthwise": (
        "spinenet_mbconv/mbconv_block/depthwise_conv2d/depthwise_kernel:0",
        "fpn/p6/depthwise_kernel:0",
        "retinanet/box_net/box-1/depthwise_kernel:0",
    ),
    "bias": ("fpn/l3/bias:0", "fpn/post_hoc_d5/bias:0", "retinanet/class_net/class-0/bias:0"),
    "norm": (
        "resnet50/batch_normalization_3/gamma:0",
        "resnet50/batch_normalization_3/beta:0",
        "fpn/p4-bn/gamma:0",
        "retinanet/box_net/box-1-5/beta:0",
    ),
}


def read_conv(
    reading: Reading,
    block: str,
    path: str,
    *,
    initializer: Initializer,
    biased: bool = False,
    norm: bool = True,
) -> ConvHyperparams:
    """Reads what a part's convolutions have in common.

    Args:
        reading: the dictionary.
        block: its section, which had keys of its own in 2020.
        path: the part's place in the experiment.
        initializer: of its kernels.
        biased: its convolutions have a bias in front of batch norm.
        norm: it has batch norm.
    """
    batch_norm = _read_norm(reading, block, f"{path}.conv.batch_norm")
    return ConvHyperparams(
        activation=_read_activation(reading, block, f"{path}.conv.activation"),
        initializer=initializer,
        batch_norm=batch_norm if norm else None,
        force_bias=biased and norm,
        **_read_penalty(reading, f"{path}.conv"),
    )


def own_or_common(reading: Reading, block: str, own: str, common: str) -> str:
    """Returns the key that a block follows: its own of 2020 where it was given, or everybody's."""
    path = f"{block}.{own}"
    return path if path in reading.params.given and path in KEYS else common


def freezes_norm(reading: Reading, block: str) -> bool:
    """Says whether scale and offset of a block's batch norm stay as they are."""
    name = "batch_norm_trainable"
    path = own_or_common(reading, block, f"batch_norm.{name}", f"{_COMMON}.{name}")
    return not reading.take(path, "train.freeze")


def _read_norm(reading: Reading, block: str, path: str) -> BatchNorm:
    def take(name: str, field: str) -> Plain:
        key = own_or_common(reading, block, f"batch_norm.{name}", f"{_COMMON}.{name}")
        return reading.take(key, f"{path}.{field}")

    return BatchNorm(
        decay=take("batch_norm_momentum", "decay"),
        epsilon=take("batch_norm_epsilon", "epsilon"),
        center=True,
        scale=True,
        train=take("batch_norm_trainable", "train"),
        statistics=_read_statistics(reading, block, f"{path}.statistics"),
    )


def _read_statistics(reading: Reading, block: str, path: str) -> Literal["global", "per_replica"]:
    """Reads whose statistics batch norm takes: those of a replica, unless it is synchronised.

    The original synchronises over more than 8 replicas only, without saying so. Its published runs
    with `use_sync_bn` had 32, so that the key means all replicas here, however many they are.
    """
    key = own_or_common(reading, block, f"batch_norm.{_SYNC}", f"{_COMMON}.{_SYNC}")
    return "global" if reading.take(key, path) else "per_replica"


def _read_activation(reading: Reading, block: str, path: str) -> Plain:
    # The final dictionary knows a block's own activation only in nasfpn, where null follows.
    key = f"{block}.activation"
    if key not in KEYS or reading.params.value(key) is None:
        key = f"{_COMMON}.activation"
    if block == "fpn":
        return "relu"
    return reading.choose(key, get_args(Activation), path)


def _read_penalty(reading: Reading, path: str) -> dict[str, Any]:
    weight = reading.take("train.l2_weight_decay", f"{path}.regularizer.weight")
    regex = reading.take(_REGEX, f"{path}.regularize_bias", f"{path}.regularize_norm")
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise UserError(
            f"{_REGEX} = {regex!r} is no regular expression: {error}",
            where=reading.params.where(_REGEX),
            fix=f"the default is {KEYS[_REGEX].default!r}",
        ) from error
    # As in the original: from the start of the name on.
    found = {
        kind: {bool(pattern.match(name)) for name in names} for kind, names in _VARIABLES.items()
    }
    if found["kernel"] != {True} or any(len(answers) > 1 for answers in found.values()):
        reading.refuse(
            _REGEX,
            "kernels are penalised in all parts of the model alike, and biases, batch norm and "
            "depthwise kernels in all or in none",
            f"leave it at {KEYS[_REGEX].default!r} and set the regularizer of a part: "
            "--set model.head.conv.regularizer=null",
        )
    return {
        "regularizer": L2(weight=weight) if weight else None,
        "regularize_bias": found["bias"] == {True},
        "regularize_norm": found["norm"] == {True},
        "regularize_depthwise": found["depthwise"] == {True},
    }


def read_drop_block(reading: Reading, block: str, path: str) -> DropBlock | None:
    """Reads DropBlock, which is on where its share is given."""
    keep, size = (
        own_or_common(reading, block, f"dropblock.{name}", f"dropblock.{name}")
        for name in ("dropblock_keep_prob", "dropblock_size")
    )
    share = reading.take(keep, f"{path}.keep_probability")
    if share is None:
        return None
    side = reading.take(size, f"{path}.block_size")
    if side is None:
        reading.refuse(keep, "it needs dropblock_size, the side of a block", f"{size}=7")
    return DropBlock(keep_probability=share, block_size=side)


def note_statistics(reading: Reading) -> None:
    """Says once whose statistics batch norm takes."""
    name = f"{_COMMON}.{_SYNC}"
    if not reading.take(name):
        place = reading.params.where(name)
        reading.notes.append(
            f"{place + ': ' if place else ''}{name} is false: batch norm takes the statistics of "
            "one replica, which is what a device has of the batch; --set devices.replicas=8 makes "
            "the eight of the published runs on any number of devices"
        )

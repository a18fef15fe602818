"""Batch norm, activation and penalties of convolutions. In 2020 every block had keys of its own."""

from typing import Any, get_args

from stillbox.errors import UserError
from stillbox.experiment.params_dict.keys import KEYS
from stillbox.experiment.params_dict.section import KeySection
from stillbox.experiment.schema import (
    L2,
    Activation,
    BatchNorm,
    ConvHyperparams,
    DropBlock,
    Initializer,
    VarianceScaling,
)
from stillbox.textformat.name_patterns import NamePattern

VARIANCE_SCALING = VarianceScaling(factor=1.0, mode="fan_in", exact_cut=True)
"""`tf.variance_scaling_initializer()`, the initialiser of the backbones."""
GLOROT_UNIFORM = VarianceScaling(factor=1.0, uniform=True, mode="fan_avg")
"""The default initialiser of TensorFlow's layers."""
_COMMON = "batch_norm_activation"
_REGEX = "train.regularization_variable_regex"
# Names of variables of each kind, from every part of a detector.
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
    root: KeySection,
    block: str,
    path: str,
    *,
    initializer: Initializer,
    biased: bool = False,
    norm: bool = True,
) -> ConvHyperparams:
    """Reads the hyperparameters of a part's convolutions.

    Args:
        root: the dictionary.
        block: its section, which had keys of its own in 2020.
        path: the part's place in the experiment.
        initializer: of its kernels.
        biased: its convolutions have a bias in front of batch norm.
        norm: it has batch norm.
    """
    batch_norm = _read_norm(root, block, f"{path}.conv.batch_norm")
    return ConvHyperparams(
        activation=_read_activation(root, block, f"{path}.conv.activation"),
        initializer=initializer,
        batch_norm=batch_norm if norm else None,
        force_bias=biased and norm,
        **_read_penalty(root, f"{path}.conv"),
    )


def freezes_norm(root: KeySection, block: str) -> bool:
    """Says whether scale and offset of a block's batch norm are frozen."""
    return not root.value(_norm_key(root, block, "batch_norm_trainable"), "train.freeze")


def _norm_key(root: KeySection, block: str, name: str) -> str:
    return _own_or_common(root, f"{block}.batch_norm.{name}", f"{_COMMON}.{name}")


def _own_or_common(root: KeySection, own: str, common: str) -> str:
    """Returns the key that a block follows: its own of 2020 if it is given, or the common one."""
    return own if root.has(own) else common


def _read_norm(root: KeySection, block: str, path: str) -> BatchNorm:
    """Reads batch norm, over the images of a replica unless it is synchronised.

    The original silently synchronises over more than 8 replicas only. Its published runs with
    `use_sync_bn` had 32, so that the key always means all replicas here.
    """
    keys = {
        field: _norm_key(root, block, f"batch_norm_{name}")
        for field, name in (("decay", "momentum"), ("epsilon", "epsilon"), ("train", "trainable"))
    }
    synchronised = root.value(_norm_key(root, block, "use_sync_bn"), f"{path}.statistics")
    return BatchNorm(
        center=True,
        scale=True,
        statistics="global" if synchronised else "per_replica",
        **root.fill(path, **keys),
    )


def _read_activation(root: KeySection, block: str, path: str) -> Any:  # noqa: ANN401
    # In the last version only nasfpn has an activation of its own; null follows the common one.
    key = f"{block}.activation"
    if key not in KEYS or root.get(key) is None:
        key = f"{_COMMON}.activation"
    return "relu" if block == "fpn" else root.choose(key, get_args(Activation), path)


def _read_penalty(root: KeySection, path: str) -> dict[str, Any]:
    weight = root.value("train.l2_weight_decay", f"{path}.regularizer.weight")
    root.value(_REGEX, f"{path}.regularize_bias", f"{path}.regularize_norm")
    pattern = compile_regex(root, _REGEX, f"the default is {KEYS[_REGEX].default!r}")
    # As in the original: from the start of the name on.
    found = {kind: set(pattern.match(names)) for kind, names in _VARIABLES.items()}
    if found["kernel"] != {True} or any(len(matches) > 1 for matches in found.values()):
        root.refuse(
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


def compile_regex(root: KeySection, key: str, fix: str) -> NamePattern:
    """Returns the regular expression of a key.

    Raises:
        UserError: it is none, or one that could take for ever.
    """
    try:
        return NamePattern(root.get(key))
    except UserError as error:
        raise UserError(f"{key}: {error.what}", where=root.where(key), fix=fix) from error


def read_drop_block(root: KeySection, block: str, path: str) -> DropBlock | None:
    """Reads DropBlock, which is on if its share is given."""
    keep, size = (
        _own_or_common(root, f"{block}.dropblock.{name}", f"dropblock.{name}")
        for name in ("dropblock_keep_prob", "dropblock_size")
    )
    share = root.value(keep, f"{path}.keep_probability")
    if share is None:
        return None
    side = root.value(size, f"{path}.block_size")
    if side is None:
        root.refuse(keep, "it needs dropblock_size, the side of a block", f"{size}=7")
    return DropBlock(keep_probability=share, block_size=side)


def note_statistics(root: KeySection) -> None:
    """Notes, once, whose statistics batch norm takes."""
    name = f"{_COMMON}.use_sync_bn"
    if not root.value(name):
        root.note(
            name,
            f"{name} is false: batch norm takes the statistics of one replica, a device's part of "
            "the batch; --set devices.replicas=8 gives the eight of the published runs on any "
            "number of devices",
        )

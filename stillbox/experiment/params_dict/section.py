"""The parameter dictionary as sections, its keys without effect, and its convolutions.

A key in `NO_EFFECT`, or one that `idle_keys` returns, leaves a note if it is given with another
value than its default. Every other key that is not read is refused; `REFUSED` has the reasons.

All sections read batch norm, activation and penalties of convolutions alike. In 2020 every block
had keys of its own for them.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self, get_args

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.params_dict.keys import BACKBONES, KEYS, NECKS
from stillbox.experiment.params_dict.merging import Params, spell
from stillbox.experiment.reading import FieldReader, ReadTracker, Section, Unread
from stillbox.experiment.values import Value
from stillbox.references import Command, Setting
from stillbox.textformat.name_patterns import NamePattern

_DEVICES = "all devices that JAX finds run one synchronous program"
_OWN_WORDS = f"{Command('train', model_dir=True)} gives it"
_LAYOUT = "XLA chooses how arrays lie in memory"
_FOLLOWING = f"{Command('retinanet', mode='eval')} reads it, which watches a model directory"
_COPY_PASTE = "mixing two data sets for copy and paste is not supported"
_MASKS = "it scores masks, and stillbox detects boxes"
_LVIS = "LVIS has metrics of its own, which are not computed"
_RECORDS = "records are TFRecords"

NO_EFFECT: dict[str, str] = {
    "model_dir": _OWN_WORDS,
    "isolate_session_state": "there are no sessions",
    "enable_summary": "metrics are always logged (train.log_every, train.summary_every)",
    "tpu_job_name": _DEVICES,
    "platform.eval_master": _DEVICES,
    "platform.tpu": _DEVICES,
    "platform.tpu_zone": _DEVICES,
    "platform.gcp_project": _DEVICES,
    "train.num_shards": _DEVICES,
    "train.iterations_per_loop": "every step is one call; train.log_every is the interval of logs",
    "train.transpose_input": _LAYOUT,
    "spinenet.use_native_resize_op": "pixels are repeated either way",
    "spinenet_mbconv.use_native_resize_op": "pixels are repeated either way",
    "eval.min_eval_interval": _FOLLOWING,
    "eval.eval_timeout": _FOLLOWING,
    "eval.suffix": "`stillbox retinanet` reads it, which names its folder of results so",
    "eval.skip_eval_loss": "evaluation computes no loss",
    "predict.predict_batch_size": "eval.eval_batch_size is the number of images of a program",
    "retinanet_parser.regenerate_source_id": "an image without an id gets one, and an id may be "
    "any text",
}

REFUSED: dict[str, str] = {
    "architecture.backbone=efficientnet": "EfficientNet is not supported",
    "eval.type=box_and_mask": _MASKS,
    "eval.type=shapemask_box_and_mask": _MASKS,
    "eval.type=lvis_box": _LVIS,
    "eval.type=lvis_box_and_mask": _LVIS,
    "train.train_dataset_type=sstable": _RECORDS,
    "eval.eval_dataset_type=sstable": _RECORDS,
    "architecture.pre_parser": _COPY_PASTE,
    "architecture.output_flat_fpn_features": "it belongs to other detectors",
    "train.pre_parser_dataset.file_pattern": _COPY_PASTE,
    "train.pre_parser_dataset.dataset_type": _COPY_PASTE,
    "postprocess.apply_nms": "detections are the result of non-maximum suppression",
}


def idle_keys(params: Params) -> dict[str, str]:
    """Returns the keys without effect because of other keys, each with the reason."""
    return dict(_idle(params))


def _idle(params: Params) -> Iterator[tuple[str, str]]:
    used = params.used_blocks()
    for blocks, chooser in (
        (BACKBONES, "architecture.backbone"),
        (NECKS, "architecture.multilevel_features"),
    ):
        for block in blocks:
            if block not in used:
                reason = f"{chooser} is {params.value(chooser)}"
                yield from ((path, reason) for path in KEYS if path.startswith(f"{block}."))
    if params.value("train.learning_rate.type") == "cosine":
        for name in ("levels", "steps"):
            yield f"train.learning_rate.learning_rate_{name}", "the learning rate is a cosine"
    optimizer = params.value("train.optimizer.type")
    if optimizer not in ("momentum", "rmsprop"):
        yield "train.optimizer.momentum", f"the optimiser is {optimizer}"
    if not params.value("eval.use_json_file"):
        yield "eval.val_json_file", "use_json_file is false, so the records' boxes are the truth"
    # A policy that is in use has become aug_policy.
    yield "retinanet_parser.autoaugment_policy_name", "use_autoaugment is false or not given"
    version = params.value("postprocess.nms_version")
    if version == "batched" or params.value("postprocess.use_batched_nms"):
        yield "postprocess.pre_nms_num_boxes", "batched suppression compares all boxes"
    yield from _idle_in_blocks(params, used)


def _idle_in_blocks(params: Params, used: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for block in ("", "resnet.", "nasfpn."):
        keep, size = (f"{block}dropblock.dropblock_{name}" for name in ("keep_prob", "size"))
        if "resnet" not in used and "nasfpn" not in used:
            reason = "resnet and nasfpn have DropBlock, other blocks have none in the original"
            yield from ((path, reason) for path in (keep, size))
        elif params.value(keep) is None and params.value("dropblock.dropblock_keep_prob") is None:
            yield size, "dropblock_keep_prob is null"
    if params.value("nasfpn.block_fn") == "conv" and "nasfpn" in used:
        yield "nasfpn.init_drop_connect_rate", "nasfpn.block_fn is conv, which has no shortcut"


class KeySection(Section):
    """A section of the dictionary, or all of it; names of inner keys are dotted paths."""

    refused: ClassVar[Mapping[str, str]] = REFUSED
    """Key, or key and value as `key=value` -> why it is refused."""

    def __init__(self, params: Params, log: ReadTracker, prefix: str = "") -> None:
        super().__init__(log)
        self.params, self._prefix = params, prefix

    def key(self, name: str) -> Hashable:
        """Returns the key's path."""
        return self.label(name)

    def label(self, name: str) -> str:
        """Returns the key's path."""
        return f"{self._prefix}{name}"

    def is_scalar(self, name: str) -> bool:
        """Returns whether there is such a key."""
        return self.label(name) in self.params.keys

    def has(self, name: str) -> bool:
        """Returns whether a key is given."""
        return self.label(name) in self.params.given

    def where(self, name: str = "") -> str | None:
        """Returns where a key is given, None for a default."""
        return self.params.where(self.label(name))

    def get(self, name: str) -> Value:
        """Returns the value of a key, or its default."""
        return self.params.value(self.label(name))

    def spell(self, value: Value) -> str:
        """Returns a value as the dictionary's YAML writes it."""
        return spell(value)

    def child(self, name: str) -> Self:
        """Returns an inner section."""
        return type(self)(self.params, self.log, f"{self.label(name)}.")

    def read_inner(self, name: str, reader: FieldReader, path: str) -> Value:
        """Returns the result of `reader` for an inner section."""
        return reader(self.child(name), path)

    def choose(
        self,
        name: str,
        valid: Iterable[Value],
        *paths: str,
        reasons: Mapping[str, str] | None = None,
    ) -> Value:
        """Returns a word that has to be one of the valid ones; as `Section.choose`."""
        if reasons is None:
            start = f"{self.label(name)}="
            known = (label for label in self.refused if label.startswith(start))
            reasons = {label.removeprefix(start): self.refused[label] for label in known}
        return super().choose(name, valid, *paths, reasons=reasons)

    def finish(self, used: Collection[str] = ()) -> None:
        """Notes keys that are given without effect; the caller reads the `used` ones itself.

        Raises:
            UserError: a key is given that is not read, with another value than its default.
        """
        self.log.finish(self._unread(used), self.refused, together=True)

    def no_effect(self) -> Mapping[str, str]:
        """Returns why keys have no effect, by path."""
        return NO_EFFECT | idle_keys(self.params)

    def _unread(self, used: Collection[str]) -> Iterator[Unread]:
        reasons = self.no_effect()
        for path, entry in self.params.given.items():
            if not self.params.differs(path) or path in used:
                continue
            if path in reasons or path not in self.log.read:
                yield Unread(
                    label=path,
                    where=entry.where,
                    value=spell(entry.value),
                    default=spell(self.params.keys[path].default),
                    no_effect=reasons.get(path),
                )


VARIANCE_SCALING = schema.VarianceScaling(factor=1.0, mode="fan_in", exact_cut=True)
"""`tf.variance_scaling_initializer()`, the initialiser of the backbones."""
GLOROT_UNIFORM = schema.VarianceScaling(factor=1.0, uniform=True, mode="fan_avg")
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
    initializer: schema.Initializer,
    biased: bool = False,
    norm: bool = True,
) -> schema.ConvHyperparams:
    """Reads the hyperparameters of a part's convolutions.

    `block` is the section that had keys of its own in 2020; a `biased` part has biases in front of
    its batch norm.
    """
    batch_norm = _read_norm(root, block, f"{path}.conv.batch_norm")
    return schema.ConvHyperparams(
        activation=_read_activation(root, block, f"{path}.conv.activation"),
        initializer=initializer,
        batch_norm=batch_norm if norm else None,
        force_bias=biased and norm,
        **_read_penalty(root, f"{path}.conv"),
    )


def freezes_norm(root: KeySection, block: str) -> bool:
    """Returns whether scale and offset of a block's batch norm are frozen."""
    return not root.value(_norm_key(root, block, "batch_norm_trainable"), "train.freeze")


def _norm_key(root: KeySection, block: str, name: str) -> str:
    return _own_or_common(root, f"{block}.batch_norm.{name}", f"{_COMMON}.{name}")


def _own_or_common(root: KeySection, specific: str, common: str) -> str:
    """Returns the key that a block follows: its own of 2020 if it is given, or the common one."""
    return specific if root.has(specific) else common


def _read_norm(root: KeySection, block: str, path: str) -> schema.BatchNorm:
    """Reads batch norm, over the images of a replica unless it is synchronised.

    The original silently synchronises over more than 8 replicas only, and on TPUs. Its published
    runs with `use_sync_bn` had 32. Here the key means all replicas wherever `use_tpu` is true.
    """
    keys = {
        field: _norm_key(root, block, f"batch_norm_{name}")
        for field, name in (("decay", "momentum"), ("epsilon", "epsilon"), ("train", "trainable"))
    }
    where = f"{path}.statistics"
    synchronised = root.value(_norm_key(root, block, "use_sync_bn"), where) and root.value(
        "use_tpu", where
    )
    return schema.BatchNorm(
        center=True,
        scale=True,
        statistics="global" if synchronised else "per_replica",
        **root.read_fields(path, **keys),
    )


def _read_activation(root: KeySection, block: str, path: str) -> schema.Activation:
    # In the last version only nasfpn has an activation of its own; null follows the common one.
    key = f"{block}.activation"
    if key not in KEYS or root.get(key) is None:
        key = f"{_COMMON}.activation"
    if block == "fpn":
        return "relu"
    activation: schema.Activation = root.choose(key, get_args(schema.Activation), path)
    return activation


def _read_penalty(root: KeySection, path: str) -> dict[str, Any]:
    weight = root.value("train.l2_weight_decay", f"{path}.regularizer.weight")
    root.value(_REGEX, f"{path}.regularize_bias", f"{path}.regularize_norm")
    pattern = compile_regex(root, _REGEX, f"the default is {KEYS[_REGEX].default!r}")
    # As in the original: from the start of the name on.
    penalized = {kind: set(pattern.match(names)) for kind, names in _VARIABLES.items()}
    if penalized["kernel"] != {True} or any(len(matches) > 1 for matches in penalized.values()):
        root.refuse(
            _REGEX,
            "kernels are penalised in all parts of the model alike, and biases, batch norm and "
            "depthwise kernels in all or in none",
            f"leave it at {KEYS[_REGEX].default!r} and set the regularizer of a part: "
            f"{Setting('model.head.conv.regularizer', None)}",
        )
    return {
        "regularizer": schema.L2(weight=weight) if weight else None,
        "regularize_bias": penalized["bias"] == {True},
        "regularize_norm": penalized["norm"] == {True},
        "regularize_depthwise": penalized["depthwise"] == {True},
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


def read_drop_block(root: KeySection, block: str, path: str) -> schema.DropBlock | None:
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
    return schema.DropBlock(keep_probability=share, block_size=side)


def note_statistics(root: KeySection) -> None:
    """Notes, once each, which images the statistics of batch norm include, and why."""
    name = f"{_COMMON}.use_sync_bn"
    if not root.value(name):
        root.note(
            name,
            f"{name} is false: batch norm takes the statistics of one replica, a device's part of "
            f"the batch; {Setting('devices.replicas', 8)} gives the eight of the published runs "
            "on any number of devices",
        )
    keys = (_norm_key(root, block, "use_sync_bn") for block in root.params.used_blocks())
    if any(map(root.value, keys)) and not root.value("use_tpu"):
        root.note(
            "use_tpu",
            "without a TPU the original takes the statistics of one replica and ignores "
            f"use_sync_bn; {Setting('model.backbone.conv.batch_norm.statistics', 'global')}, and "
            "likewise of model.neck and model.head, applies it",
        )

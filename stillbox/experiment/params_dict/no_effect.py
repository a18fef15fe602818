"""Keys of a dictionary without effect here, and why.

A key in `NO_EFFECT`, or one that `idle_keys` returns, leaves a note if it is given with another
value than its default. Every other key that is not read is refused; `REFUSED` has the reasons.
"""

from collections.abc import Iterator

from stillbox.experiment.params_dict.keys import BACKBONES, KEYS, NECKS
from stillbox.experiment.params_dict.merging import Params

_DEVICES = "all devices that JAX finds run one synchronous program"
_OWN_WORDS = "`stillbox train --model-dir` gives it"
_LAYOUT = "XLA chooses how arrays lie in memory"
_FOLLOWING = "`stillbox retinanet --mode=eval` reads it, which watches a model directory"
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
    if not params.value("train.checkpoint.path"):
        for name in ("prefix", "skip_variables_regex"):
            yield f"train.checkpoint.{name}", "train.checkpoint.path names no checkpoint"
    if not params.value("eval.use_json_file"):
        yield "eval.val_json_file", "use_json_file is false, so the records' boxes are the truth"
    if not params.value("eval.eval_file_pattern"):
        yield "eval.num_steps_per_eval", "eval.eval_file_pattern names no records"
    if params.value("retinanet_parser.use_autoaugment") is None:
        yield "retinanet_parser.autoaugment_policy_name", "use_autoaugment is not given"
    else:
        yield "retinanet_parser.autoaugment_policy_name", "use_autoaugment is false"
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

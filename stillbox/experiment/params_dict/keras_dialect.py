"""The third dialect of RetinaNet's dictionary: `official/vision/detection` of tensorflow/models.

Later it was `official/legacy/detection`. Its `main.py` trains with Keras, and has mostly the
keys of the TPU program, with other meanings. It is refused by name.
"""

import re
from collections.abc import Iterator, Mapping

from stillbox.errors import UserError
from stillbox.references import Command, Setting

PROGRAM = "official/vision/detection of tensorflow/models (later official/legacy/detection)"
_REASON = (
    "it trains with Keras, with Nesterov's momentum and other defaults, and stillbox has the TPU "
    "program with keys like these"
)
_FIX = (
    "take TensorFlow Model Garden's RetinaNet "
    f"({Command('model_garden', experiment='retinanet_resnetfpn_coco')}) or a recipe, "
    "`stillbox recipes`"
)
# Names of the TPU program for what only the third dialect calls so.
_TODAY = {
    "train.batch_size": "train.train_batch_size",
    "eval.batch_size": "eval.eval_batch_size",
    "predict.batch_size": "predict.predict_batch_size",
    "norm_activation": "batch_norm_activation",
}
TOP = ("strategy_type", "strategy_config", "norm_activation")
"""Names at the top that only the third dialect has."""
_OWN = {
    *TOP,
    *_TODAY,
    "train.optimizer.nesterov",
    "train.input_sharding",
    "eval.input_sharding",
    "eval.num_images_to_visualize",
    "retinanet_parser.num_channels",
}
# Keys of the TPU program alone, of any of its versions, and the beginnings of others.
_TPU_ONLY = (
    *("train.train_batch_size", "train.num_shards", "train.pre_parser_dataset."),
    *("train.checkpoint.skip_variables_regex", "train.space_to_depth_block_size"),
    *("eval.eval_batch_size", "eval.per_category_metrics", "eval.skip_eval_loss", "eval.suffix"),
    *("platform.", "tpu_job_name", "batch_norm_activation.", "dropblock.", "spinenet_mbconv."),
    *("architecture.space_to_depth_block_size", "architecture.pre_parser"),
    *("architecture.output_flat_fpn_features", "nasfpn.init_drop_connect_rate"),
    *("nasfpn.block_fn", "nasfpn.activation", "nasfpn.use_sum_for_combination"),
    *("resnet.init_drop_connect_rate", "spinenet.init_drop_connect_rate"),
    *("spinenet.use_native_resize_op", "retinanet_parser.aug_policy"),
    *("retinanet_parser.regenerate_source_id", "retinanet_head.use_batch_norm"),
    *("retinanet_loss.normalizer_momentum", "postprocess.apply_nms", "postprocess.nms_version"),
    "postprocess.apply_sigmoid",
)
# Options and templates have no lines.
_IN_FILE = re.compile(r":\d+:\d+$")
FLAG_FIX = f"it is of {PROGRAM}: {_REASON}; {_FIX}"
"""Why a flag that only this program has is refused, and what to do."""


def refuse_own(path: str, where: str) -> UserError | None:
    """Returns the refusal of a key that only the third dialect has, None for all others."""
    if path not in _OWN:
        return None
    today = f"; in a dictionary of the TPU program it is {_TODAY[path]}" if path in _TODAY else ""
    return UserError(f"{path} is of {PROGRAM}: {_REASON}", where=where, fix=f"{_FIX}{today}")


def note_either(given: Mapping[str, tuple[object, str]]) -> Iterator[str]:
    """Yields the note about a file that could be of either program.

    Args:
        given: path -> value and place of every key that is given.
    """
    in_files = [where for _, where in given.values() if _IN_FILE.search(where)]
    decided = any(path.startswith(_TPU_ONLY) for path in given)
    if not in_files or decided or any(value == "nasfpn" for value, _ in given.values()):
        return
    yield (
        f"{in_files[0]}: all keys of this file are also of {PROGRAM}; they are read as the "
        "TPU program's, whose momentum is not Nesterov's: "
        f"{Setting('train.optimizer.nesterov', True)}, and "
        "train.optimizer.rate_in_accumulator=true, are as there"
    )

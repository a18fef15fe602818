"""`stillbox exporter_main_v2`: the SavedModel export of the Object Detection API with its flags.

`stillbox export` does the same with stillbox's own options.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from stillbox.cli.arguments import (
    add_hidden,
    add_option,
    add_overrides,
    refuse_flags,
    show_remarks,
)
from stillbox.cli.export import show_export
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.experiment.resolve import Resolved, resolve, resolve_reading
from stillbox.textformat.text_file import read_text_file

_INPUT_TYPES = (
    "image_tensor",
    "float_image_tensor",
    "encoded_image_string_tensor",
    "tf_example",
)
_CENTERNET = "CenterNet has no anchors, and stillbox no keypoints; leave it out"
_SIDE_INPUTS = "side inputs belong to context models, which stillbox does not have; leave it out"
_REFUSED = {
    "use_side_inputs": _SIDE_INPUTS,
    "side_input_shapes": _SIDE_INPUTS,
    "side_input_types": _SIDE_INPUTS,
    "side_input_names": _SIDE_INPUTS,
    "centernet_include_keypoints": _CENTERNET,
    "keypoint_label_map_path": _CENTERNET,
}


def add_exporter_main_v2(parser: argparse.ArgumentParser) -> None:
    """`stillbox exporter_main_v2`: the Object Detection API's SavedModel export with its flags.

    `stillbox export` does the same with stillbox's own options.
    """
    about = ", ".join(_INPUT_TYPES)
    add_option(parser, "--input_type", "image_tensor", about, "TYPE")
    add_model_flags(parser)


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that select a model and the output folder."""
    parser.add_argument(
        "--pipeline_config_path",
        metavar="CONFIG",
        help="any CONFIG; left out for a model directory, which has its own",
    )
    parser.add_argument(
        "--trained_checkpoint_dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="a model directory, the checkpoints folder in it, or a folder with TF1 checkpoints",
    )
    parser.add_argument("--output_directory", type=Path, required=True, metavar="DIR")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing export")
    parser.add_argument(
        "--config_override", default="", metavar="TEXT", help="text that is merged into CONFIG"
    )
    add_hidden(parser, _REFUSED)
    add_overrides(parser)


def run_exporter_main_v2(arguments: argparse.Namespace) -> int:
    """Writes `saved_model/` and `pipeline.config`."""
    from stillbox.api import export

    if arguments.input_type not in _INPUT_TYPES:
        raise UserError(
            f"the input type {arguments.input_type} is not supported",
            where="--input_type",
            fix="use one of " + ", ".join(_INPUT_TYPES),
        )
    exported = export(
        **model_flags(arguments),
        output=arguments.output_directory,
        overwrite=arguments.overwrite,
        say=say_aside,
        format="saved_model",
        signature="detection_api",
        input_type=arguments.input_type,
    )
    config = arguments.pipeline_config_path
    if config and Path(config).is_file():
        shutil.copyfile(config, arguments.output_directory / "pipeline.config")
    show_export(exported)
    return 0


def model_flags(arguments: argparse.Namespace, changes: list[str] | None = None) -> dict[str, Any]:
    """Returns the arguments of `stillbox.export` that select a model.

    Args:
        arguments: of the command line.
        changes: overrides that come before those of --set.

    Raises:
        UserError: a flag is not supported, or the model is not given.
    """
    refuse_flags(arguments, _REFUSED, unset=("false", "f", "0", ""))
    overrides = [*(changes or ()), *arguments.overrides]
    directory = _own_directory(arguments.trained_checkpoint_dir)
    if arguments.pipeline_config_path is None:
        if not (directory / "experiment.yaml").is_file():
            raise UserError(
                "only a model directory has the config of its weights",
                where="--pipeline_config_path",
                fix="give the pipeline.config of the checkpoint",
            )
        if arguments.config_override:
            raise UserError(
                "there is no CONFIG to merge it into",
                where="--config_override",
                fix="write --set FIELD=VALUE",
            )
        return {"source": directory, "overrides": overrides}
    resolved = _resolve(arguments, overrides)
    show_remarks(resolved, resolved.warnings)
    return {"source": resolved.experiment, "weights": directory}


def _own_directory(path: Path) -> Path:
    """Returns the model directory of a path in which model_main finds one, or the path."""
    from stillbox.checkpoints.model_directory import CHECKPOINTS, is_model_directory

    return path.parent if path.name == CHECKPOINTS and is_model_directory(path.parent) else path


def _resolve(arguments: argparse.Namespace, overrides: list[str]) -> Resolved:
    config = arguments.pipeline_config_path
    if not arguments.config_override:
        return resolve(config, overrides)
    from stillbox.experiment.pipeline_config import read_pipeline_config

    path = Path(config)
    text = read_text_file(path, where="--pipeline_config_path", fix="give a pipeline.config")
    reading = read_pipeline_config(
        text, str(path), name=path.stem, override=arguments.config_override
    )
    return resolve_reading(reading, overrides, str(path))

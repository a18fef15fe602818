"""`stillbox exporter_main_v2` and `stillbox export_tflite_graph_tf2`: the Object Detection API's.

The first writes a SavedModel with its signature, the second a TFLite model with built-in operators
only. `stillbox export` does the same in stillbox's own words.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from stillbox.cli.arguments import add_overrides, add_switch, note, show_remarks
from stillbox.cli.export import show_export
from stillbox.cli.running import say_aside
from stillbox.errors import UserError
from stillbox.experiment.resolve import Resolved, resolve, resolve_reading

VERBS = ("exporter_main_v2", "export_tflite_graph_tf2")
"""The verbs of this file."""

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


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds both verbs."""
    main = _add_verb(verbs, VERBS[0], "a SavedModel")
    main.add_argument("--input_type", default="image_tensor", metavar="TYPE", help=_types())
    tflite = _add_verb(verbs, VERBS[1], "a TFLite model")
    tflite.add_argument("--max_detections", type=int, default=10, metavar="K", help="(default: 10)")
    about = "suppress in each class; otherwise a box stands for its best class alone"
    add_switch(tflite, "ssd_use_regular_nms", about)
    main.set_defaults(run=run_main)
    tflite.set_defaults(run=run_tflite)


def _types() -> str:
    return ", ".join(_INPUT_TYPES) + " (default: image_tensor)"


def _add_verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, what: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=f"{what} with the flags of the Object Detection API",
        description=__doc__,
        allow_abbrev=False,
    )
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
        help="a model directory, or a folder with TF1 checkpoints",
    )
    parser.add_argument("--output_directory", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--config_override", default="", metavar="TEXT", help="text that is merged into CONFIG"
    )
    for refused in _REFUSED:
        parser.add_argument(f"--{refused}", nargs="?", const="true", help=argparse.SUPPRESS)
    add_overrides(parser)
    return parser


def run_main(arguments: argparse.Namespace) -> int:
    """Writes `saved_model/` and `pipeline.config`."""
    from stillbox.api import export

    if arguments.input_type not in _INPUT_TYPES:
        raise UserError(
            f"the input type {arguments.input_type} is not supported",
            where="--input_type",
            fix="use one of " + ", ".join(_INPUT_TYPES),
        )
    exported = export(
        **_model(arguments, []),
        output=arguments.output_directory,
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


def run_tflite(arguments: argparse.Namespace) -> int:
    """Writes `model.tflite`; the original's SavedModel was only a step on the way to it."""
    from stillbox.api import export

    changes = []
    if not arguments.ssd_use_regular_nms:
        # What the operator of the original does unless it is told otherwise.
        changes.append("model.postprocessing.nms.class_agnostic=true")
    exported = export(
        **_model(arguments, changes),
        output=arguments.output_directory,
        say=say_aside,
        format="tflite",
        signature="detection_api",
        max_detections=arguments.max_detections,
    )
    note("model.tflite is what TFLite's converter would make of the original's SavedModel")
    show_export(exported)
    return 0


def _model(arguments: argparse.Namespace, changes: list[str]) -> dict[str, Any]:
    """Returns what is exported: a model directory as it is, or a config with weights."""
    for name, fix in _REFUSED.items():
        value = getattr(arguments, name)
        if value is not None and value.lower() not in ("false", "f", "0", ""):
            raise UserError(f"--{name} is not supported", fix=fix)
    overrides = [*changes, *arguments.overrides]
    directory = arguments.trained_checkpoint_dir
    own = (directory / "experiment.yaml").is_file()
    if arguments.pipeline_config_path is None:
        if not own:
            raise UserError(
                "only a model directory says which model its weights belong to",
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
    show_remarks(resolved)
    return {"source": resolved.experiment, "weights": directory}


def _resolve(arguments: argparse.Namespace, overrides: list[str]) -> Resolved:
    config = arguments.pipeline_config_path
    if not arguments.config_override:
        return resolve(config, overrides)
    from stillbox.experiment.pipeline_config import read_pipeline_config

    path = Path(config)
    if not path.is_file():
        raise UserError(f"there is no file {path}", where="--pipeline_config_path")
    reading = read_pipeline_config(
        path.read_text(), str(path), name=path.stem, override=arguments.config_override
    )
    return resolve_reading(reading, overrides, str(path))

"""The exporters of the originals, with their flags, as verbs of the same names.

`exporter_main_v2` and `export_tflite_graph_tf2` belong to the Object Detection API,
`export_saved_model` to "Object Detection Models on TPU".
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from stillbox.cli.arguments import (
    add_hidden,
    add_option,
    add_overrides,
    add_switch,
    note,
    refuse_flags,
    show_remarks,
)
from stillbox.cli.export import image_size, show_export
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.experiment.params_dict import read_params
from stillbox.experiment.resolve import Resolved, resolve, resolve_reading
from stillbox.textformat.yaml_tree import read_text_file

_API_INPUT_TYPES = (
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
    about = ", ".join(_API_INPUT_TYPES)
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

    if arguments.input_type not in _API_INPUT_TYPES:
        raise UserError(
            f"the input type {arguments.input_type} is not supported",
            where="--input_type",
            fix="use one of " + ", ".join(_API_INPUT_TYPES),
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


def add_export_tflite_graph_tf2(parser: argparse.ArgumentParser) -> None:
    """`stillbox export_tflite_graph_tf2`: the TFLite export of the Detection API with its flags.

    `stillbox export --format tflite` does the same with stillbox's own options.
    """
    add_model_flags(parser)
    about = "most detections in an image"
    add_option(parser, "--max_detections", 10, about, "K")
    about = "suppress in each class; otherwise each box has its best class only"
    add_switch(parser, "ssd_use_regular_nms", about)


def run_export_tflite_graph_tf2(arguments: argparse.Namespace) -> int:
    """Writes `model.tflite`; the original writes a SavedModel for TFLite's converter."""
    from stillbox.api import export

    changes = []
    if not arguments.ssd_use_regular_nms:
        # TFLite_Detection_PostProcess suppresses across classes by default.
        changes.append("model.postprocessing.nms.class_agnostic=true")
    exported = export(
        **model_flags(arguments, changes),
        output=arguments.output_directory,
        overwrite=arguments.overwrite,
        say=say_aside,
        format="tflite",
        signature="detection_api",
        max_detections=arguments.max_detections,
    )
    note("model.tflite is what TFLite's converter would make of the original's SavedModel")
    show_export(exported)
    return 0


_TPU_INPUT_TYPES = {
    "image_bytes": "encoded_image_string_tensor",
    "image_tensor": "image_tensor",
    "raw_image_tensor": "raw_image_tensor",
    "tf_example": "tf_example",
}
_PARAMS = "params.yaml"


def add_export_saved_model(parser: argparse.ArgumentParser) -> None:
    """`stillbox export_saved_model`: the export of "Object Detection Models on TPU" with its flags.

    `stillbox export DIR --signature tpu` does the same with stillbox's own options.
    """
    _add_tpu_model(parser)
    _add_tpu_input(parser)
    add_switch(parser, "output_image_info", "the output image_info (default: true)")
    add_switch(parser, "output_normalized_coordinates", "boxes in 0..1 of the original image")
    add_switch(parser, "cast_num_detections_to_float", "num_detections as float32")
    add_switch(parser, "cast_detection_classes_to_float", "detection_classes as float32")
    parser.set_defaults(output_image_info=True)


def _add_tpu_model(parser: argparse.ArgumentParser) -> None:
    about = "model whose defaults the parameters have"
    add_option(parser, "--model", "retinanet", about, "NAME")
    parser.add_argument(
        "--export_dir", type=Path, required=True, metavar="DIR", help="folder of the SavedModel"
    )
    parser.add_argument(
        "--checkpoint_path",
        required=True,
        metavar="PATH",
        help="a model directory, or a TF1 checkpoint",
    )
    parser.add_argument("--config_file", default="", metavar="YAML", help="parameters")
    parser.add_argument(
        "--params_override", default="", metavar="TEXT", help="parameters that differ from those"
    )
    add_switch(parser, "use_tpu", "accepted: the artefact runs on CPU, GPU and TPU in any case")
    add_switch(parser, "override_export_dir", "replace an existing export")
    add_overrides(parser)


def _add_tpu_input(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--batch_size", 1, "images at a time; -1: any")
    parser.add_argument("--input_type", choices=tuple(_TPU_INPUT_TYPES), default="image_bytes")
    about = "name of the input"
    add_option(parser, "--input_name", "input", about, "NAME")
    about = "size of the network input"
    add_option(parser, "--input_image_size", "640,640", about, "HEIGHT,WIDTH")


def run_export_saved_model(arguments: argparse.Namespace) -> int:
    """Exports a SavedModel into exactly --export_dir."""
    from stillbox.api import export

    if arguments.use_tpu:
        note("--use_tpu: the artefact runs on CPU, GPU and TPU in any case")
    size = image_size(arguments.input_image_size, "--input_image_size")
    assert size is not None  # it has a default
    show_export(
        export(
            **_tpu_model(arguments, size),
            output=arguments.export_dir,
            overwrite=arguments.override_export_dir,
            say=say_aside,
            format="saved_model",
            signature="tpu",
            input_type=_TPU_INPUT_TYPES[arguments.input_type],
            input_name=arguments.input_name,
            image_size=size if arguments.input_type == "image_tensor" else None,
            batch_size=max(arguments.batch_size, 0),
            image_info=arguments.output_image_info,
            normalized_coordinates=arguments.output_normalized_coordinates,
            float_count=arguments.cast_num_detections_to_float,
            float_classes=arguments.cast_detection_classes_to_float,
        )
    )
    return 0


def _tpu_model(arguments: argparse.Namespace, size: tuple[int, int]) -> dict[str, Any]:
    """Returns the arguments of `stillbox.export` that select a model."""
    overrides = [
        f"model.resizer.height={size[0]}",
        f"model.resizer.width={size[1]}",
        *arguments.overrides,
    ]
    directory = Path(arguments.checkpoint_path)
    own = directory / "experiment.yaml"
    if own.is_file() and not arguments.config_file and not arguments.params_override:
        return {"source": directory, "overrides": overrides}
    if own.is_file() and not arguments.config_file and not (directory / _PARAMS).is_file():
        raise UserError(
            "this model directory was not trained from a parameter dictionary",
            where="--params_override",
            fix="leave it out and write --set FIELD=VALUE",
        )
    reading = read_params(
        config_file=arguments.config_file or (str(directory / _PARAMS) if own.is_file() else ""),
        params_override=arguments.params_override,
        model=arguments.model,
    )
    source = arguments.config_file or "--params_override"
    resolved = resolve_reading(reading, overrides, source)
    show_remarks(resolved, resolved.warnings)
    return {"source": resolved.experiment, "weights": arguments.checkpoint_path}

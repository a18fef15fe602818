"""The exporters of the originals, with their flags, as verbs of the same names.

`exporter_main_v2` and `export_tflite_graph_tf2` belong to the Object Detection API,
`export_saved_model` to "Object Detection Models on TPU".
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from stillbox.cli.arguments import add_overrides, note, show_remarks
from stillbox.cli.export import image_size, show_export
from stillbox.cli.model_garden import add_config_files
from stillbox.cli.original_flags import (
    CONFIG_OVERRIDE,
    Flag,
    add_flags,
    explain_flags,
    resolve_merged,
)
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError, nearest
from stillbox.experiment.model_garden import read_garden
from stillbox.experiment.params_dict import read_params
from stillbox.experiment.reading import Reading
from stillbox.experiment.resolve import resolve_reading
from stillbox.experiment.rules.warnings import PLACEHOLDER
from stillbox.experiment.schema import Experiment
from stillbox.records.files import make_folder

_COCO_CLASSES = 90
API_INPUT_TYPES = (
    "image_tensor",
    "float_image_tensor",
    "encoded_image_string_tensor",
    "tf_example",
)
"""Inputs of the Object Detection API's exporters."""
_CENTERNET = "CenterNet has no anchors, and stillbox no keypoints; leave it out"
_SIDE_INPUTS = "side inputs belong to context models, which stillbox does not have; leave it out"
SIDE_INPUTS = tuple(
    Flag(name, refusal=_SIDE_INPUTS)
    for name in ("use_side_inputs", "side_input_shapes", "side_input_types", "side_input_names")
)
"""Flags of context models."""
_MODEL_FLAGS = (
    Flag(
        "pipeline_config_path",
        "any CONFIG; left out for a model directory, which has its own",
        metavar="CONFIG",
    ),
    Flag(
        "trained_checkpoint_dir",
        "a model directory, the checkpoints folder in it, or a folder with TF1 checkpoints",
        Path,
        required=True,
        metavar="DIR",
    ),
    Flag("output_directory", "folder of the export", Path, required=True, metavar="DIR"),
    Flag("overwrite", "replace an existing export", bool),
    CONFIG_OVERRIDE,
    *SIDE_INPUTS,
    Flag("centernet_include_keypoints", refusal=_CENTERNET),
    Flag("keypoint_label_map_path", refusal=_CENTERNET),
)


def add_exporter_main_v2(parser: argparse.ArgumentParser) -> None:
    """`stillbox exporter_main_v2`: the Object Detection API's SavedModel export with its flags.

    `stillbox export` does the same with stillbox's own options.
    """
    input_type = Flag(
        "input_type", ", ".join(API_INPUT_TYPES), default="image_tensor", metavar="TYPE"
    )
    add_flags(parser, (input_type, *_MODEL_FLAGS))
    add_overrides(parser)


def run_exporter_main_v2(arguments: argparse.Namespace) -> int:
    """Writes `saved_model/` and `pipeline.config`."""
    from stillbox.api import export

    refuse_input_type(arguments.input_type)
    exported = export(
        **model_flags(arguments),
        output=arguments.output_directory,
        overwrite=arguments.overwrite,
        say=say_aside,
        format="saved_model",
        signature="detection_api",
        input_type=arguments.input_type,
    )
    add_originals(arguments, arguments.trained_checkpoint_dir)
    show_export(exported)
    return 0


def refuse_input_type(name: str) -> None:
    """Refuses an input that the exporters of the Object Detection API do not have here.

    Raises:
        UserError: it is none of `API_INPUT_TYPES`.
    """
    if name not in API_INPUT_TYPES:
        raise UserError(
            f"the input type {name} is not supported",
            where="--input_type",
            fix=nearest(name, API_INPUT_TYPES),
        )


def add_originals(arguments: argparse.Namespace, model: Path) -> None:
    """Adds what the originals put beside an export: `pipeline.config` and `checkpoint/ckpt-0`.

    Args:
        arguments: of the command line.
        model: the weights; only those of a model directory are written again.
    """
    from stillbox.checkpoints.model_directory import is_model_directory
    from stillbox.checkpoints.original_checkpoints import write_list
    from stillbox.checkpoints.trained import save_weights

    output: Path = arguments.output_directory
    config = arguments.pipeline_config_path
    if config and Path(config).is_file():
        shutil.copyfile(config, output / "pipeline.config")
    directory = _own_directory(model)
    if is_model_directory(directory):
        folder = make_folder(output / "checkpoint", below=output)
        try:
            save_weights(directory, folder / "ckpt-0", tf2=True, overwrite=True)
            write_list(folder, ["ckpt-0"])
        except UserError as error:
            folder.rmdir()
            note(f"no checkpoint/ckpt-0 is written: {error.what}")


def model_flags(arguments: argparse.Namespace, changes: list[str] | None = None) -> dict[str, Any]:
    """Returns the arguments of `stillbox.export` that select a model.

    Args:
        arguments: of the command line.
        changes: overrides that come before those of --set.

    Raises:
        UserError: a flag is not supported, or the model is not given.
    """
    explain_flags(arguments, _MODEL_FLAGS)
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
    resolved = resolve_merged(arguments.pipeline_config_path, arguments.config_override, overrides)
    show_remarks(resolved, resolved.warnings)
    return {"source": _with_classes(resolved.experiment), "weights": directory}


def _with_classes(experiment: Experiment) -> Experiment:
    """Returns the experiment with COCO's label map in place of a placeholder.

    Configs in the archives of the model zoo have placeholders, and the originals' exporters read no
    label map.
    """
    if experiment.model.num_classes != _COCO_CLASSES:
        return experiment
    data = experiment.data
    placeholders = {
        name: records
        for name in ("train", "evaluation")
        if PLACEHOLDER.search((records := getattr(data, name)).label_map)
    }
    if not placeholders:
        return experiment
    note(f"the label map of the config is a placeholder; {_COCO_CLASSES} classes are those of COCO")
    named = {name: replace(one, label_map="coco") for name, one in placeholders.items()}
    return replace(experiment, data=replace(data, **named))


def _own_directory(path: Path) -> Path:
    """Returns the model directory of a path in which model_main finds one, or the path."""
    from stillbox.checkpoints.model_directory import CHECKPOINTS, is_model_directory

    return path.parent if path.name == CHECKPOINTS and is_model_directory(path.parent) else path


def add_export_tflite_graph_tf2(parser: argparse.ArgumentParser) -> None:
    """`stillbox export_tflite_graph_tf2`: the TFLite export of the Detection API with its flags.

    It writes `model.tflite`, and `saved_model/` for TensorFlow's own converter.

    `stillbox export --format tflite` does the same with stillbox's own options.
    """
    add_flags(
        parser,
        (
            *_MODEL_FLAGS,
            Flag("max_detections", "most detections in an image", default=10, metavar="K"),
            Flag(
                "ssd_use_regular_nms",
                "suppress in each class; otherwise each box has its best class only",
                bool,
            ),
        ),
    )
    add_overrides(parser)


def run_export_tflite_graph_tf2(arguments: argparse.Namespace) -> int:
    """Writes `model.tflite`, and the SavedModel from which the original's users convert it."""
    from stillbox.api import export

    changes = []
    if not arguments.ssd_use_regular_nms:
        # TFLite_Detection_PostProcess suppresses across classes by default.
        changes.append("model.postprocessing.nms.class_agnostic=true")
    model = model_flags(arguments, changes)
    exported = export(
        **model,
        output=arguments.output_directory,
        overwrite=arguments.overwrite,
        say=say_aside,
        format="tflite",
        signature="detection_api",
        max_detections=arguments.max_detections,
    )
    write_convertible_model(model, arguments)
    show_export(exported)
    return 0


def write_convertible_model(model: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Writes `saved_model/` for TensorFlow's converter into the folder of a TFLite export.

    Args:
        model: see `model_flags`.
        arguments: of the command line.
    """
    from stillbox.api import load_model
    from stillbox.exporting.program import ExportProgram
    from stillbox.exporting.saved_model.convertible import write_convertible
    from stillbox.exporting.settings import ExportSettings

    settings = ExportSettings(
        format="tflite", input_type="raw_image_tensor", max_detections=arguments.max_detections
    )
    program = ExportProgram(load_model(**model).named_by_config(), settings)
    place = write_convertible(program, arguments.output_directory)
    note(f"{place} is for TensorFlow's converter; model.tflite is the same network, converted")


_TPU_INPUT_TYPES = {
    "image_bytes": "encoded_image_string_tensor",
    "image_tensor": "image_tensor",
    "raw_image_tensor": "raw_image_tensor",
    "tf_example": "tf_example",
}
_PARAMS = "params.yaml"
_ANY_DEVICE = "the artefact runs on CPU, GPU and TPU in any case"
_TPU_FLAGS = (
    Flag("experiment", "experiment of TensorFlow Model Garden", metavar="NAME"),
    Flag("model", "model whose defaults the parameters have", default="retinanet", metavar="NAME"),
    Flag("export_dir", "folder of the SavedModel", Path, required=True, metavar="DIR"),
    Flag(
        "checkpoint_path", "a model directory, or a TF1 checkpoint", required=True, metavar="PATH"
    ),
    Flag("params_override", "parameters that differ from those", default="", metavar="TEXT"),
    Flag("use_tpu", kind=bool, note=_ANY_DEVICE),
    Flag("override_export_dir", "replace an existing export", bool),
    Flag("batch_size", "images at a time; -1: any", default=1),
    Flag("input_type", "kind of input", default="image_bytes", choices=tuple(_TPU_INPUT_TYPES)),
    Flag("input_name", "name of the input", default="input", metavar="NAME"),
    Flag(
        "input_image_size",
        "size of the network input",
        default="640,640",
        metavar="HEIGHT,WIDTH",
    ),
    Flag("output_image_info", "the output image_info (default: true)", bool, default=True),
    Flag("output_normalized_coordinates", "boxes in 0..1 of the original image", bool),
    Flag("cast_num_detections_to_float", "num_detections as float32", bool),
    Flag("cast_detection_classes_to_float", "detection_classes as float32", bool),
    Flag("export_saved_model_subdir", refusal="--export_dir is the folder of the SavedModel"),
    Flag("export_checkpoint_subdir", refusal="`stillbox weights` writes checkpoints; leave it out"),
    Flag("log_model_flops_and_params", note="`stillbox check` shows the size of a model"),
    Flag("function_keys", refusal="a SavedModel has one function; leave it out"),
)


def add_export_saved_model(parser: argparse.ArgumentParser) -> None:
    """`stillbox export_saved_model`: the export of "Object Detection Models on TPU" with its flags.

    With --experiment it is that of TensorFlow Model Garden. `stillbox export DIR --signature tpu`
    does the same with stillbox's own options.
    """
    add_flags(parser, _TPU_FLAGS)
    add_config_files(parser)
    add_overrides(parser)


def run_export_saved_model(arguments: argparse.Namespace) -> int:
    """Exports a SavedModel into exactly --export_dir."""
    from stillbox.api import export

    explain_flags(arguments, _TPU_FLAGS)
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
    files = arguments.config_file or [str(directory / _PARAMS)] * own.is_file()
    reading = _read_parameters(arguments, files)
    source = files[-1] if arguments.config_file else "--params_override"
    resolved = resolve_reading(reading, overrides, source)
    show_remarks(resolved, resolved.warnings)
    return {"source": resolved.experiment, "weights": arguments.checkpoint_path}


def _read_parameters(arguments: argparse.Namespace, files: list[str]) -> Reading:
    """Returns the experiment of Model Garden, or that of a parameter dictionary.

    Raises:
        UserError: a dictionary has several files.
    """
    override = arguments.params_override
    if arguments.experiment:
        return read_garden(
            experiment=arguments.experiment, config_files=files, params_override=override
        )
    if len(files) > 1:
        fix = "keep one, or give --experiment for an experiment of TensorFlow Model Garden"
        raise UserError("there are several files", where="--config_file", fix=fix)
    return read_params(config_file="".join(files), params_override=override, model=arguments.model)

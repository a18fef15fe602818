"""The Object Detection API's exporters of both generations, with their flags.

`stillbox export` does the same with stillbox's options.
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillbox import numerals
from stillbox.cli.arguments import add_overrides, note, show_remarks
from stillbox.cli.export import show_export
from stillbox.cli.original_flags import (
    CONFIG_OVERRIDE,
    Flag,
    add_flags,
    explain_flags,
    resolve_merged,
)
from stillbox.cli.overrides import setting_texts
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError, nearest
from stillbox.experiment.pipeline_config.reader import merged_text
from stillbox.experiment.resolve import find_config, open_config
from stillbox.experiment.rules.missing import PLACEHOLDER
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import NO_CHANGES, Changes, merged
from stillbox.records.files import make_folder
from stillbox.textformat.parser import Block
from stillbox.textformat.yaml_tree import read_text_file

if TYPE_CHECKING:
    from stillbox.exporting.export import Exported

_COCO_CLASSES = 90
_AGNOSTIC: Changes = {"model.postprocessing.nms.class_agnostic": True}
_INPUT_TYPES = ("image_tensor", "float_image_tensor", "encoded_image_string_tensor", "tf_example")
_INPUT_TYPE = Flag("input_type", ", ".join(_INPUT_TYPES), default="image_tensor", metavar="TYPE")
_CENTERNET = "CenterNet has no anchors, and stillbox no keypoints; leave it out"
_CONTEXT = "side inputs belong to context models, which stillbox does not have; leave it out"
_SIDE_INPUTS = (
    Flag("use_side_inputs", kind=bool, refusal=_CONTEXT),
    *(Flag(f"side_input_{name}", refusal=_CONTEXT) for name in ("shapes", "types", "names")),
)
_MODEL_FLAGS = (
    Flag("pipeline_config_path", "any CONFIG; left out for a model directory, which has its own",
         metavar="CONFIG"),
    Flag("trained_checkpoint_dir",
         "a model directory, the checkpoints folder in it, or a folder with TF1 checkpoints", Path,
         required=True, metavar="DIR"),
    Flag("output_directory", "folder of the export", Path, required=True, dest="output",
         metavar="DIR"),
    Flag("overwrite", "replace an existing export", bool),
    CONFIG_OVERRIDE,
    *_SIDE_INPUTS,
    Flag("centernet_include_keypoints", kind=bool, refusal=_CENTERNET),
    Flag("keypoint_label_map_path", refusal=_CENTERNET),
)  # fmt: skip


def add_exporter_main_v2(parser: argparse.ArgumentParser) -> None:
    """`stillbox exporter_main_v2`: the Object Detection API's SavedModel export with its flags.

    `stillbox export` does the same with stillbox's own options.
    """
    add_flags(parser, (_INPUT_TYPE, *_MODEL_FLAGS))
    add_overrides(parser)


def run_exporter_main_v2(arguments: argparse.Namespace) -> int:
    """Writes `saved_model/` and `pipeline.config`."""
    _refuse_input_type(arguments.input_type)
    model = _trained_model(arguments)
    exported = _export(model, arguments, format="saved_model", input_type=arguments.input_type)
    _add_originals(arguments)
    show_export(exported)
    return 0


def _export(model: dict[str, Any], arguments: argparse.Namespace, **settings: Any) -> "Exported":  # noqa: ANN401
    """Exports a model into --output_directory, unless the settings name another folder."""
    from stillbox.api import export

    if arguments.overwrite:
        _refuse_inputs_inside(arguments)
    place = {"output": arguments.output, "overwrite": arguments.overwrite}
    return export(**model, **{**place, **settings}, signature="detection_api", say=say_aside)


def _refuse_inputs_inside(arguments: argparse.Namespace) -> None:
    """Refuses a config or a checkpoint in the folder that the export replaces."""
    output: Path = arguments.output
    for name in ("pipeline_config_path", "trained_checkpoint_dir", "trained_checkpoint_prefix"):
        given = getattr(arguments, name, None)
        if given and Path(given).resolve().is_relative_to(output.resolve()):
            problem = f"{given} is in {output}, which --overwrite replaces"
            raise UserError(problem, where=f"--{name}", fix="give another --output_directory")


def _refuse_input_type(name: str) -> None:
    if name not in _INPUT_TYPES:
        problem = f"the input type {name} is not supported"
        raise UserError(problem, where="--input_type", fix=nearest(name, _INPUT_TYPES))


def _add_originals(arguments: argparse.Namespace) -> None:
    """Adds what the originals put beside an export: `pipeline.config` and `checkpoint/ckpt-0`.

    Only the weights of a model directory are written again.
    """
    from stillbox.checkpoints.model_directory import is_model_directory
    from stillbox.checkpoints.original_checkpoints import write_list
    from stillbox.checkpoints.saving import save_weights

    _write_config(arguments)
    output: Path = arguments.output
    directory = _own_directory(arguments.trained_checkpoint_dir)
    if is_model_directory(directory):
        folder = make_folder(output / "checkpoint", below=output)
        try:
            save_weights(directory, folder / "ckpt-0", tf2=True, overwrite=True)
            write_list(folder, ["ckpt-0"])
        except UserError as error:
            folder.rmdir()
            note(f"no checkpoint/ckpt-0 is written: {error.what}")
        _list_files(output, "checkpoint")


def _trained_model(arguments: argparse.Namespace, changes: Changes = NO_CHANGES) -> dict[str, Any]:
    """Returns the arguments of `stillbox.export` that select a model of TF2's exporters."""
    explain_flags(arguments, _MODEL_FLAGS)
    overrides = merged(changes, arguments.overrides)
    directory = _own_directory(arguments.trained_checkpoint_dir)
    if arguments.pipeline_config_path is None:
        if not (directory / "experiment.yaml").is_file():
            problem = "only a model directory has the config of its weights"
            fix = "give the pipeline.config of the checkpoint"
            raise UserError(problem, where="--pipeline_config_path", fix=fix)
        if arguments.config_override:
            problem = "there is no CONFIG to merge it into"
            raise UserError(problem, where="--config_override", fix="write --set FIELD=VALUE")
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
    named = {name: replace(loader, label_map="coco") for name, loader in placeholders.items()}
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
    # TFLite_Detection_PostProcess suppresses across classes by default.
    model = _trained_model(arguments, NO_CHANGES if arguments.ssd_use_regular_nms else _AGNOSTIC)
    count = arguments.max_detections
    exported = _export(model, arguments, format="tflite", max_detections=count)
    _write_convertible(model, arguments)
    show_export(exported)
    return 0


def _write_convertible(model: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Writes `saved_model/` for TensorFlow's converter into the folder of a TFLite export."""
    from stillbox.api import load_model
    from stillbox.exporting.program import ExportProgram
    from stillbox.exporting.saved_model.without_variables import write_convertible
    from stillbox.exporting.settings import ExportSettings

    settings = ExportSettings(
        format="tflite", input_type="raw_image_tensor", max_detections=arguments.max_detections
    )
    program = ExportProgram(load_model(**model).named_by_config(), settings)
    place = write_convertible(program, arguments.output)
    _list_files(arguments.output, "saved_model")
    note(f"{place} is for TensorFlow's converter; model.tflite is the same network, converted")


_V1_MODEL_FLAGS = (
    Flag("pipeline_config_path", "any CONFIG", required=True, metavar="CONFIG"),
    Flag("trained_checkpoint_prefix", "a checkpoint, as DIR/model.ckpt-2000, or a model directory",
         Path, required=True, metavar="PREFIX"),
    Flag("output_directory", "folder of the export", Path, required=True, dest="output",
         metavar="DIR"),
    Flag("overwrite", "new: replace an existing export", bool),
    CONFIG_OVERRIDE,
)  # fmt: skip
_GRAPH = (
    *_V1_MODEL_FLAGS,
    Flag("input_shape", "batch, height, width and channels; -1: any", metavar="1,-1,-1,3"),
    Flag("write_inference_graph", kind=bool, note="a graph without weights is not written"),
    Flag(
        "additional_output_tensor_names",
        refusal="the network is one operation; raw_detection_boxes and raw_detection_scores are "
        "outputs already",
    ),
    *_SIDE_INPUTS,
)


def add_export_inference_graph(parser: argparse.ArgumentParser) -> None:
    """`export_inference_graph.py`: a frozen graph, and a SavedModel with the input `inputs`."""
    add_flags(parser, (_INPUT_TYPE, *_GRAPH))
    add_overrides(parser)


def run_export_inference_graph(arguments: argparse.Namespace) -> int:
    """Writes `frozen_inference_graph.pb`, `saved_model/` and `pipeline.config`."""
    explain_flags(arguments, _GRAPH)
    _refuse_input_type(arguments.input_type)
    model = _v1_model(arguments)
    settings = {"input_type": arguments.input_type, **_input_shape(arguments.input_shape)}
    exported = _export(model, arguments, format="frozen_graph", **settings)
    output: Path = arguments.output
    beside = {"output": output / ".saved_model", "overwrite": True, "input_name": "inputs"}
    inner = _export(model, arguments, format="saved_model", **beside, **settings)
    (inner.folder / "saved_model").rename(output / "saved_model")
    shutil.rmtree(inner.folder)
    _list_files(output, "saved_model")
    _write_config(arguments)
    show_export(exported)
    print(f"  saved_model: {inner.verification.render()}")
    return 0


def _v1_model(arguments: argparse.Namespace, changes: Changes = NO_CHANGES) -> dict[str, Any]:
    """Returns the arguments of `stillbox.export` that select a model of TF1's exporters."""
    overrides = merged(changes, arguments.overrides)
    resolved = resolve_merged(arguments.pipeline_config_path, arguments.config_override, overrides)
    show_remarks(resolved, resolved.warnings)
    prefix: Path = arguments.trained_checkpoint_prefix
    if not prefix.is_dir() and not prefix.with_name(f"{prefix.name}.index").is_file():
        there = sorted(path.stem for path in prefix.parent.glob("*.index"))
        fix = "give a checkpoint that training has written"
        problem = "there is no such checkpoint"
        raise UserError(
            problem, where=str(prefix), fix=nearest(prefix.name, there) if there else fix
        )
    return {"source": resolved.experiment, "weights": prefix}


def _input_shape(text: str | None) -> dict[str, Any]:
    """Returns the settings for `--input_shape`."""
    if text is None:
        return {}
    sides = [numerals.whole(word) or 0 for word in text.split(",")]
    batch, height, width, channels = sides if len(sides) == 4 else (0, 0, 0, 0)
    free = (height < 0) == (width < 0)
    if channels != 3 or 0 in (batch, height, width) or not free:
        raise UserError(
            f"{text!r} is no shape of images", where="--input_shape", fix="for example 1,-1,-1,3"
        )
    size = None if height < 0 else (height, width)
    return {"batch_size": max(batch, 0), "image_size": size}


def _list_files(output: Path, *names: str) -> None:
    """Enters files beside an export into its manifest, so that --overwrite replaces them too."""
    from stillbox.exporting.manifest import add_files

    add_files(output, *names)


def _write_config(arguments: argparse.Namespace) -> None:
    """Writes the `pipeline.config` of the model, with what was merged into it.

    A recipe and YAML have none. What --set has changed stands in comments.
    """
    if arguments.pipeline_config_path is None:
        return
    path = find_config(arguments.pipeline_config_path)
    tree, _ = open_config(path)
    if not isinstance(tree, Block):
        note(f"no pipeline.config is written: {arguments.pipeline_config_path} is none")
        return
    changes = "".join(f"# changed by --set {text}\n" for text in setting_texts(arguments.overrides))
    text = read_text_file(path, fix="give a pipeline.config")
    if arguments.config_override:
        text = merged_text(text, str(path), arguments.config_override)
    file: Path = arguments.output / "pipeline.config"
    file.write_text(changes + text, encoding="utf-8")
    _list_files(arguments.output, "pipeline.config")


_TFLITE = (
    *_V1_MODEL_FLAGS,
    Flag("add_postprocessing_op", "end in TFLite's detection operation (default: true)", bool,
         default=True),
    Flag("max_detections", "most detections in an image", default=10, metavar="K"),
    Flag("max_classes_per_detection", note="a detection has one class"),
    Flag("detections_per_class", note="the limit of each class is that of the config"),
    Flag("use_regular_nms", "suppress in each class", bool),
)  # fmt: skip


def add_export_tflite_ssd_graph(parser: argparse.ArgumentParser) -> None:
    """`export_tflite_ssd_graph.py`: a TFLite model that ends in TFLite's detection operation.

    A model of quantisation-aware training becomes one of integers.
    """
    add_flags(parser, _TFLITE)
    add_overrides(parser)


def run_export_tflite_ssd_graph(arguments: argparse.Namespace) -> int:
    """Writes `model.tflite`, and `saved_model/` for TensorFlow's converter."""
    explain_flags(arguments, _TFLITE)
    if arguments.add_postprocessing_op is False:
        fix = "leave it out; `stillbox export --format onnx` writes a model without suppression"
        raise UserError("--add_postprocessing_op=false is not supported", fix=fix)
    model = _v1_model(arguments, NO_CHANGES if arguments.use_regular_nms else _AGNOSTIC)
    quantized = model["source"].train.quantization is not None
    exported = _export(
        model,
        arguments,
        format="tflite",
        max_detections=arguments.max_detections,
        postprocess="detection_op",
        quantize="int8" if quantized else "none",
    )
    if not quantized:
        _write_convertible(model, arguments)
    _write_config(arguments)
    note("no tflite_graph.pb is written: model.tflite is what tflite_convert would make of it")
    show_export(exported)
    return 0

"""Training, evaluation and export with the flags of the Object Detection API's first generation.

`stillbox train`, `evaluate`, and `export` with `--format frozen_graph` or `--format tflite` do the
same with stillbox's options.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from stillbox.cli.arguments import add_overrides, add_processes, add_profile, note, show_remarks
from stillbox.cli.export import show_export
from stillbox.cli.model_main import writing_checkpoints
from stillbox.cli.original_exports import (
    API_INPUT_TYPES,
    SIDE_INPUTS,
    refuse_input_type,
    write_convertible_model,
)
from stillbox.cli.original_flags import (
    CONFIG_OVERRIDE,
    Flag,
    add_flags,
    explain_flags,
    resolve_merged,
)
from stillbox.cli.running import run_training, score_checkpoints
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError, nearest
from stillbox.experiment.resolve import resolve

_MODEL_FLAGS = (
    Flag("pipeline_config_path", "any CONFIG", required=True, metavar="CONFIG"),
    Flag(
        "trained_checkpoint_prefix",
        "a checkpoint, as DIR/model.ckpt-2000, or a model directory",
        Path,
        required=True,
        metavar="PREFIX",
    ),
    Flag("output_directory", "folder of the export", Path, required=True, metavar="DIR"),
    Flag("overwrite", "new: replace an existing export", bool),
    CONFIG_OVERRIDE,
)
_GRAPH = (
    *_MODEL_FLAGS,
    Flag("input_shape", "batch, height, width and channels; -1: any", metavar="1,-1,-1,3"),
    Flag("write_inference_graph", note="a graph without weights is not written"),
    Flag(
        "additional_output_tensor_names",
        refusal="the network is one operation; raw_detection_boxes and raw_detection_scores are "
        "outputs already",
    ),
    *SIDE_INPUTS,
)


def add_export_inference_graph(parser: argparse.ArgumentParser) -> None:
    """`export_inference_graph.py`: a frozen graph, and a SavedModel whose input is `inputs`."""
    types = ", ".join(API_INPUT_TYPES)
    add_flags(parser, (Flag("input_type", types, default="image_tensor", metavar="TYPE"), *_GRAPH))
    add_overrides(parser)


def run_export_inference_graph(arguments: argparse.Namespace) -> int:
    """Writes `frozen_inference_graph.pb`, `saved_model/` and `pipeline.config`."""
    from stillbox.api import export

    explain_flags(arguments, _GRAPH)
    refuse_input_type(arguments.input_type)
    model = _model(arguments)
    settings = {"input_type": arguments.input_type, **_input_shape(arguments.input_shape)}
    output: Path = arguments.output_directory
    exported = export(
        **model,
        output=output,
        overwrite=arguments.overwrite,
        say=say_aside,
        format="frozen_graph",
        signature="detection_api",
        **settings,
    )
    beside = output / ".saved_model"
    inner = export(
        **model,
        output=beside,
        overwrite=True,
        say=say_aside,
        format="saved_model",
        signature="detection_api",
        input_name="inputs",
        **settings,
    )
    (inner.folder / "saved_model").rename(output / "saved_model")
    shutil.rmtree(beside)
    _copy_config(arguments)
    show_export(exported)
    print(f"  saved_model: {inner.verification.render()}")
    return 0


def _model(arguments: argparse.Namespace, changes: list[str] | None = None) -> dict[str, Any]:
    """Returns the arguments of `stillbox.export` that select a model.

    Raises:
        UserError: there is no such checkpoint.
    """
    overrides = [*(changes or ()), *arguments.overrides]
    resolved = resolve_merged(arguments.pipeline_config_path, arguments.config_override, overrides)
    show_remarks(resolved, resolved.warnings)
    prefix: Path = arguments.trained_checkpoint_prefix
    if not prefix.is_dir() and not prefix.with_name(f"{prefix.name}.index").is_file():
        there = sorted(path.stem for path in prefix.parent.glob("*.index"))
        fix = "give a checkpoint that training has written"
        raise UserError(
            "there is no such checkpoint",
            where=str(prefix),
            fix=nearest(prefix.name, there) if there else fix,
        )
    return {"source": resolved.experiment, "weights": prefix}


def _input_shape(text: str | None) -> dict[str, Any]:
    """Returns the settings for `--input_shape`.

    Raises:
        UserError: it is no shape of images.
    """
    if text is None:
        return {}
    try:
        batch, height, width, channels = (int(word) for word in text.split(","))
    except ValueError:
        batch = height = width = channels = 0
    free = (height < 0) == (width < 0)
    if channels != 3 or 0 in (batch, height, width) or not free:
        raise UserError(
            f"{text!r} is no shape of images", where="--input_shape", fix="for example 1,-1,-1,3"
        )
    size = None if height < 0 else (height, width)
    return {"batch_size": max(batch, 0), "image_size": size}


def _copy_config(arguments: argparse.Namespace) -> None:
    config = Path(arguments.pipeline_config_path)
    if config.is_file():
        shutil.copyfile(config, arguments.output_directory / "pipeline.config")


_TFLITE = (
    *_MODEL_FLAGS,
    Flag(
        "add_postprocessing_op",
        "end in TFLite's detection operation (default: true)",
        bool,
        default=True,
    ),
    Flag("max_detections", "most detections in an image", default=10, metavar="K"),
    Flag("max_classes_per_detection", note="a detection has one class"),
    Flag("detections_per_class", note="the limit of each class is that of the config"),
    Flag("use_regular_nms", "suppress in each class", bool),
)


def add_export_tflite_ssd_graph(parser: argparse.ArgumentParser) -> None:
    """`export_tflite_ssd_graph.py`: a TFLite model that ends in TFLite's detection operation.

    A model of quantisation-aware training becomes one of integers.
    """
    add_flags(parser, _TFLITE)
    add_overrides(parser)


def run_export_tflite_ssd_graph(arguments: argparse.Namespace) -> int:
    """Writes `model.tflite`, and `saved_model/` for TensorFlow's converter."""
    from stillbox.api import export

    explain_flags(arguments, _TFLITE)
    if arguments.add_postprocessing_op is False:
        raise UserError(
            "--add_postprocessing_op=false is not supported",
            fix="leave it out; `stillbox export --format onnx` writes a model without suppression",
        )
    agnostic = [] if arguments.use_regular_nms else ["model.postprocessing.nms.class_agnostic=true"]
    model = _model(arguments, agnostic)
    quantized = model["source"].train.quantization is not None
    exported = export(
        **model,
        output=arguments.output_directory,
        overwrite=arguments.overwrite,
        say=say_aside,
        format="tflite",
        signature="detection_api",
        max_detections=arguments.max_detections,
        postprocess="detection_op",
        quantize="int8" if quantized else "none",
    )
    if not quantized:
        write_convertible_model(model, arguments)
    _copy_config(arguments)
    note("no tflite_graph.pb is written: model.tflite is what tflite_convert would make of it")
    show_export(exported)
    return 0


_ONE_CONFIG = "give model, train_config and the readers in one file, --pipeline_config_path"
_ONE_PROGRAM = "all devices of this machine are used as one"
_COMMON = (
    Flag("pipeline_config_path", "any CONFIG", dest="config", metavar="CONFIG"),
    Flag("model_config_path", refusal=_ONE_CONFIG),
    Flag("input_config_path", refusal=_ONE_CONFIG),
    *map(Flag, ("alsologtostderr", "logtostderr", "stderrthreshold", "verbosity")),
)
_TRAIN = (
    Flag("train_dir", "folder of all results", Path, required=True, metavar="DIR"),
    *_COMMON,
    Flag("train_config_path", refusal=_ONE_CONFIG),
    Flag("master", note=_ONE_PROGRAM),
    Flag("task", note=_ONE_PROGRAM),
    Flag("num_clones", note=_ONE_PROGRAM),
    Flag("clone_on_cpu", note=_ONE_PROGRAM),
    Flag("ps_tasks", note=_ONE_PROGRAM),
    Flag("worker_replicas", note=_ONE_PROGRAM),
)


def add_legacy_train(parser: argparse.ArgumentParser) -> None:
    """`legacy/train.py`: trains, and writes `model.ckpt-STEP` too."""
    add_flags(parser, _TRAIN)
    add_profile(parser, "steps", "the model directory")
    add_overrides(parser)
    add_processes(parser)


def run_legacy_train(arguments: argparse.Namespace) -> int:
    """Trains."""
    explain_flags(arguments, _TRAIN)
    resolved = resolve(_config(arguments), arguments.overrides)
    with writing_checkpoints(arguments.train_dir, "tf1"):
        return run_training(resolved, arguments.train_dir, profile=arguments.profile)


def _config(arguments: argparse.Namespace) -> str:
    """Returns the CONFIG.

    Raises:
        UserError: there is none.
    """
    if arguments.config is None:
        raise UserError("--pipeline_config_path is missing", fix="give a pipeline.config")
    config: str = arguments.config
    return config


_EVAL = (
    Flag("checkpoint_dir", "a model directory", Path, required=True, metavar="DIR"),
    Flag("eval_dir", "folder of the results", Path, required=True, metavar="DIR"),
    *_COMMON,
    Flag("eval_config_path", refusal=_ONE_CONFIG),
    Flag("eval_training_data", refusal="use model_main.py, which evaluates on training records"),
    Flag("run_once", "evaluate the newest checkpoint and end", bool),
)


def add_legacy_eval(parser: argparse.ArgumentParser) -> None:
    """`legacy/eval.py`: evaluates the checkpoints of a model directory as they appear."""
    add_flags(parser, _EVAL)
    add_profile(parser, "batches of the evaluation", "the folder of the results")
    add_overrides(parser)


def run_legacy_eval(arguments: argparse.Namespace) -> int:
    """Evaluates."""
    from stillbox.training.watching import WatchPolicy

    explain_flags(arguments, _EVAL)
    resolved = resolve(_config(arguments), arguments.overrides)
    show_remarks(resolved, resolved.warnings)
    patience = WatchPolicy(once=arguments.run_once, last_step=resolved.experiment.train.steps)
    score_checkpoints(
        resolved.experiment,
        arguments.checkpoint_dir,
        arguments.eval_dir,
        patience,
        arguments.profile,
    )
    return 0

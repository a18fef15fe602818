"""The programs of "Object Detection Models on TPU", with their flags.

Their parameters become an equivalent experiment. Names and defaults of the flags are as in
`models/official/detection/main.py` (tensorflow/tpu).
"""

import argparse
from pathlib import Path
from typing import Any

from stillbox.cli.arguments import add_overrides, add_processes, add_profile, show_remarks
from stillbox.cli.export import image_size, show_export
from stillbox.cli.original_flags import Flag, add_flags, explain_flags
from stillbox.cli.running import (
    batch_profiler,
    progress_bar,
    run_training,
    score_checkpoints,
    training_place,
)
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.experiment.model_garden import garden_reader
from stillbox.experiment.params_dict import ParamsReading, read_params, resolved_text
from stillbox.experiment.params_dict.command_line import read_file, read_text
from stillbox.experiment.params_dict.keras_dialect import FLAG_FIX as KERAS
from stillbox.experiment.reading import Reading
from stillbox.experiment.resolve import Resolved, resolve_reading
from stillbox.experiment.updating import NO_CHANGES, Changes, merged
from stillbox.printing import count_text
from stillbox.textformat.yaml_tree import read_text_file

_PARAMS = "params.yaml"
_OURS = "# Written by stillbox: the parameters of the run in this folder.\n"

_DEVICES = "all devices that JAX finds are used, and a batch is split over them"


def _unread(name: str, parameter: str, kind: type = str) -> Flag:
    """Returns a flag that the original never reads: it reads the parameter."""
    return Flag(
        name,
        kind=kind,
        about=f"accepted: without effect, as in the original, which reads {parameter}",
        warning=f"has no effect, as in the original; give it in --params_override: {parameter}",
    )


# Of the program of the same name and keys that trains with Keras.
_KERAS_FLAGS = (
    *("strategy_type", "num_gpus", "training_file_pattern", "eval_file_pattern"),
    *("checkpoint_path", "all_reduce_alg", "num_packs", "worker_hosts", "task_index"),
    *("enable_xla", "log_steps", "save_checkpoint_freq", "distribution_strategy"),
)
_RETINANET = (
    Flag("mode",
         "eval scores new checkpoints of --model_dir; predict writes detections (default: train)",
         default="train", choices=("train", "eval", "train_and_eval", "predict")),
    Flag("model_dir", "folder of all results", Path, required=True, metavar="DIR"),
    Flag("model", "model whose defaults the parameters have", default="retinanet", metavar="NAME"),
    Flag("config_file", "parameters that differ from the defaults", metavar="YAML"),
    Flag("params_override",
         "parameters that differ from those: YAML, JSON, `a.b=1,c.d=2`, or a file of them",
         default="", metavar="TEXT"),
    Flag("eval_after_training", "score the last checkpoint of --mode train", bool),
    Flag("use_tpu", f"accepted: {_DEVICES}", bool),
    Flag("tpu", note=_DEVICES),
    Flag("num_cores", note=_DEVICES),
    Flag("gcp_project", note=_DEVICES),
    Flag("tpu_zone", note=_DEVICES),
    Flag("tpu_job_name", note=_DEVICES),
    Flag("eval_master", note="training and evaluation run in this process"),
    _unread("data_dir", "train.train_file_pattern and eval.eval_file_pattern"),
    _unread("train_batch_size", "train.train_batch_size"),
    _unread("train_steps", "train.total_steps"),
    _unread("eval_batch_size", "eval.eval_batch_size"),
    _unread("skip_host_call", "enable_summary", bool),
    _unread("iterations_per_loop", "train.iterations_per_loop"),
    _unread("precision", "architecture.use_bfloat16"),
    *(Flag(name, refusal=KERAS) for name in _KERAS_FLAGS),
)  # fmt: skip
_USED = ("model_dir", "eval.eval_timeout", "eval.min_eval_interval", "eval.suffix")


def add_retinanet(parser: argparse.ArgumentParser) -> None:
    """`stillbox retinanet`: the command line of "Object Detection Models on TPU".

    Its parameters become an equivalent experiment; `stillbox train`, `evaluate` and `predict` do
    the same with stillbox's own options. Training resumes the run in --model_dir. Names and
    defaults of the flags are as in `models/official/detection/main.py` in tpu/models.
    """
    add_flags(parser, _RETINANET)
    add_profile(parser, "steps, or batches of the evaluation,", "the model directory")
    add_overrides(parser)
    add_processes(parser)


def run_retinanet(arguments: argparse.Namespace) -> int:
    """Trains, evaluates or predicts."""
    explain_flags(arguments, _RETINANET)
    reading = read_params(
        config_file=arguments.config_file or "",
        params_override=arguments.params_override,
        model=arguments.model,
        used=_USED,
    )
    if arguments.mode == "eval":
        value = reading.params.value
        return evaluate_run(
            arguments,
            reading,
            f"eval{value('eval.suffix')}",
            timeout=value("eval.eval_timeout"),
            interval=value("eval.min_eval_interval"),
        )
    if arguments.mode == "predict":
        return _predict(arguments, reading)
    changes = dict[str, object]()
    if arguments.mode == "train":
        changes["train.evaluate_every"] = 0
        if not arguments.eval_after_training:
            changes["data.evaluation.paths"] = []
    return train_run(arguments, reading, resolved_text(reading.params), changes)


def _resolve(
    arguments: argparse.Namespace,
    reading: Reading,
    changes: Changes = NO_CHANGES,
    *,
    warns: bool = True,
) -> Resolved:
    """Resolves the experiment with changes and --set; its source is the last file."""
    files = arguments.config_file
    source = (files if isinstance(files, str) else files[-1]) if files else "--params_override"
    resolved = resolve_reading(reading, source, merged(changes, arguments.overrides))
    if warns:
        show_remarks(resolved, resolved.warnings)
    return resolved


def train_run(
    arguments: argparse.Namespace, reading: Reading, params: str, changes: Changes
) -> int:
    """Trains, and writes the parameters as the original does."""
    from stillbox.checkpoints.model_directory import is_model_directory

    resolved = _resolve(arguments, reading, changes, warns=False)
    with training_place(arguments.model_dir) as place:
        resumes = is_model_directory(place.folder)
        if not resumes:
            _refuse_other_params(place.folder, params)
            _write_params(place.folder, params)
        code = run_training(resolved, place, profile=arguments.profile)
        # A refused resumption leaves the parameters of the run.
        if resumes:
            _write_params(place.folder, params)
    return code


def _refuse_other_params(folder: Path, params: str) -> None:
    """Refuses to replace a file that another program wrote, or the user."""
    path = folder / _PARAMS
    if path.is_file():
        text = read_text_file(path, fix="move it away")
        if text != params and not text.startswith(_OURS):
            problem = "this file would be replaced, and no run of stillbox wrote it"
            fix = "move it away, or take a new --model_dir"
            raise UserError(problem, where=str(path), fix=fix)


def _write_params(folder: Path, params: str) -> None:
    from stillbox.checkpoints.files import replace_durably
    from stillbox.devices.job import is_main_process
    from stillbox.records.files import make_folder

    if is_main_process():
        replace_durably(make_folder(folder, below=folder) / _PARAMS, _OURS + params)


def evaluate_run(
    arguments: argparse.Namespace,
    reading: Reading,
    results: str,
    **policy: Any,  # noqa: ANN401
) -> int:
    """Scores new checkpoints until the last step's, into a folder of --model_dir."""
    experiment = _resolve(arguments, reading).experiment

    from stillbox.training.watching import WatchPolicy

    patience = WatchPolicy(last_step=experiment.train.steps, **policy)
    output = arguments.model_dir / results
    score_checkpoints(experiment, arguments.model_dir, output, patience, arguments.profile)
    return 0


def _predict(arguments: argparse.Namespace, reading: ParamsReading) -> int:
    """Writes the newest checkpoint's detections in the format of COCO's evaluation server."""
    experiment = _resolve(arguments, reading).experiment

    from stillbox.devices.job import is_main_process
    from stillbox.devices.setup import prepare_process
    from stillbox.evaluation.coco import encode_results
    from stillbox.evaluation.program import score_program
    from stillbox.evaluation.scoring import open_evaluation, score_dataset
    from stillbox.records.file_list import claim_files, refuse_others
    from stillbox.records.files import write_whole
    from stillbox.training.watching import load_scored

    output = arguments.model_dir / "predictions.json"
    refuse_others(output.parent, [output.name])
    prepare_process()
    dataset = open_evaluation(experiment)
    model = load_scored(experiment, arguments.model_dir, "latest")
    detect = score_program(experiment).bind(model.params, model.stats)
    profiler = batch_profiler(arguments.profile, arguments.model_dir, "predict")
    with progress_bar("images") as progress, profiler:
        result = score_dataset(
            detect, experiment, dataset, progress, trained=model.label_map, observer=profiler
        )
    count = sum(len(image.scores) for image in result.results)
    if is_main_process():
        claim_files(output.parent, [output.name])
        write_whole(output, encode_results(result.results))
    print(
        f"{model.source}: {count_text(count, 'detection')} in "
        f"{count_text(len(result.results), 'image')}; {output}"
    )
    return 0


def add_config_files(parser: argparse.ArgumentParser) -> None:
    """Adds --config_file, which may be given several times."""
    about = "fields over the experiment's defaults; of several files the last counts"
    parser.add_argument("--config_file", action="append", default=[], metavar="YAML", help=about)


_INPUT_TYPES = {
    "image_bytes": "encoded_image_string_tensor",
    "image_tensor": "image_tensor",
    "raw_image_tensor": "raw_image_tensor",
    "tf_example": "tf_example",
}
_ANY_DEVICE = "the artefact runs on CPU, GPU and TPU in any case"
_EXPORT = (
    Flag("experiment", "experiment of TensorFlow Model Garden", metavar="NAME"),
    Flag("model", "model whose defaults the parameters have", default="retinanet", metavar="NAME"),
    Flag(
        "export_dir", "folder of the SavedModel", Path, required=True, dest="output", metavar="DIR"
    ),
    Flag(
        "checkpoint_path", "a model directory, or a TF1 checkpoint", required=True, metavar="PATH"
    ),
    Flag("params_override", "parameters that differ from those", default="", metavar="TEXT"),
    Flag("use_tpu", kind=bool, note=_ANY_DEVICE),
    Flag("override_export_dir", "replace an existing export", bool, dest="overwrite"),
    Flag("batch_size", "images at a time; -1: any", default=1),
    Flag("input_type", "kind of input", default="image_bytes", choices=tuple(_INPUT_TYPES)),
    Flag("input_name", "name of the input", default="input", metavar="NAME"),
    Flag(
        "input_image_size", "size of the network input", default="640,640", metavar="HEIGHT,WIDTH"
    ),
    Flag("output_image_info", "the output image_info (default: true)", bool, default=True),
    Flag("output_normalized_coordinates", "boxes in 0..1 of the original image", bool),
    Flag("cast_num_detections_to_float", "num_detections as float32", bool),
    Flag("cast_detection_classes_to_float", "detection_classes as float32", bool),
    Flag("export_saved_model_subdir", refusal="--export_dir is the folder of the SavedModel"),
    Flag("export_checkpoint_subdir", refusal="`stillbox weights` writes checkpoints; leave it out"),
    Flag(
        "log_model_flops_and_params", kind=bool, note="`stillbox check` shows the size of a model"
    ),
    Flag("function_keys", refusal="a SavedModel has one function; leave it out"),
)


def add_export_saved_model(parser: argparse.ArgumentParser) -> None:
    """`stillbox export_saved_model`: the export of "Object Detection Models on TPU" with its flags.

    With --experiment it is the export of TensorFlow Model Garden. `stillbox export DIR --signature
    tpu` does the same with stillbox's own options.
    """
    add_flags(parser, _EXPORT)
    add_config_files(parser)
    add_overrides(parser)


def run_export_saved_model(arguments: argparse.Namespace) -> int:
    """Exports a SavedModel into exactly --export_dir."""
    from stillbox.api import export

    explain_flags(arguments, _EXPORT)
    size = image_size(arguments.input_image_size, "--input_image_size")
    assert size is not None  # it has a default
    show_export(
        export(
            **_tpu_model(arguments, size),
            output=arguments.output,
            overwrite=arguments.overwrite,
            say=say_aside,
            format="saved_model",
            signature="tpu",
            input_type=_INPUT_TYPES[arguments.input_type],
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
    sides = {"model.resizer.height": size[0], "model.resizer.width": size[1]}
    directory = Path(arguments.checkpoint_path)
    stored = directory / "experiment.yaml"
    if stored.is_file() and not arguments.config_file and not arguments.params_override:
        return {"source": directory, "overrides": merged(sides, arguments.overrides)}
    if stored.is_file() and not arguments.config_file and not (directory / _PARAMS).is_file():
        problem = "this model directory was not trained from a parameter dictionary"
        fix = "leave it out and write --set FIELD=VALUE"
        raise UserError(problem, where="--params_override", fix=fix)
    files = arguments.config_file or [str(directory / _PARAMS)] * stored.is_file()
    reading = _read_parameters(arguments, files)
    resolved = _resolve(arguments, reading, sides)
    return {"source": resolved.experiment, "weights": arguments.checkpoint_path}


def _read_parameters(arguments: argparse.Namespace, files: list[str]) -> Reading:
    """Returns the experiment of Model Garden, or of a parameter dictionary."""
    override = arguments.params_override
    if arguments.experiment:
        read = garden_reader("--experiment")
        layers = [read_file(path, "--config_file") for path in files]
        layers.append(read_text(override, "--params_override"))
        name = Path(files[-1]).stem if files else arguments.experiment
        return read(layers, experiment=arguments.experiment, name=name)
    if len(files) > 1:
        fix = "keep one, or give --experiment for an experiment of TensorFlow Model Garden"
        raise UserError("there are several files", where="--config_file", fix=fix)
    return read_params(config_file="".join(files), params_override=override, model=arguments.model)

"""`stillbox retinanet`: the command line of "Object Detection Models on TPU".

Its parameters become an equivalent experiment; `stillbox train`, `evaluate` and `predict` do the
same with stillbox's own options. Training resumes the run in --model_dir. Names and defaults of the
flags are those of `models/official/detection/main.py` in tpu/models.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from stillbox.cli.arguments import add_overrides, add_processes, add_profile, show_remarks
from stillbox.cli.original_flags import Flag, add_flags, explain_flags
from stillbox.cli.running import (
    batch_profiler,
    progress_bar,
    run_training,
    score_checkpoints,
    training_place,
)
from stillbox.experiment.params_dict import ParamsReading, read_params, resolved_text
from stillbox.experiment.resolve import Resolved, resolve_reading
from stillbox.printing import count_text

_DEVICES = "all devices that JAX finds are used, and a batch is split over them"


def _unread(name: str, parameter: str) -> Flag:
    """Returns a flag that the original never reads: it reads the parameter."""
    return Flag(
        name,
        f"accepted: without effect, as in the original, which reads {parameter}",
        warning=f"has no effect, as in the original; give it in --params_override: {parameter}",
    )


_FLAGS = (
    Flag(
        "mode",
        "eval scores new checkpoints of --model_dir; predict writes detections (default: train)",
        default="train",
        choices=("train", "eval", "train_and_eval", "predict"),
    ),
    Flag("model_dir", "folder of all results", Path, required=True, metavar="DIR"),
    Flag("model", "model whose defaults the parameters have", default="retinanet", metavar="NAME"),
    Flag("config_file", "parameters that differ from the defaults", metavar="YAML"),
    Flag(
        "params_override",
        "parameters that differ from those: YAML, JSON, `a.b=1,c.d=2`, or a file of them",
        default="",
        metavar="TEXT",
    ),
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
    _unread("skip_host_call", "enable_summary"),
    _unread("iterations_per_loop", "train.iterations_per_loop"),
    _unread("precision", "architecture.use_bfloat16"),
)
_USED = ("model_dir", "eval.eval_timeout", "eval.min_eval_interval", "eval.suffix")
_PARAMS = "params.yaml"
_RESULTS = "eval"
_PREDICTIONS = "predictions.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_flags(parser, _FLAGS)
    add_profile(parser, "steps, or batches of the evaluation,", "the model directory")
    add_overrides(parser)
    add_processes(parser)


def run(arguments: argparse.Namespace) -> int:
    """Trains, evaluates or predicts."""
    explain_flags(arguments, _FLAGS)
    reading = read_params(
        config_file=arguments.config_file or "",
        params_override=arguments.params_override,
        model=arguments.model,
        used=_USED,
    )
    if arguments.mode == "eval":
        return _evaluate(arguments, reading)
    if arguments.mode == "predict":
        return _predict(arguments, reading)
    return _train(arguments, reading)


def _train(arguments: argparse.Namespace, reading: ParamsReading) -> int:
    from stillbox.checkpoints.files import replace_durably
    from stillbox.devices.job import is_main_process
    from stillbox.records.files import make_folder

    changes = []
    if arguments.mode == "train":
        changes.append("train.evaluate_every=0")
        if not arguments.eval_after_training:
            changes.append("data.evaluation.paths=[]")
    resolved = _resolve(arguments, reading, changes)
    with training_place(arguments.model_dir) as place:
        if is_main_process():
            folder = make_folder(place.folder, below=place.folder)
            replace_durably(folder / _PARAMS, resolved_text(reading.params))
        return run_training(resolved, place, profile=arguments.profile)


def _resolve(
    arguments: argparse.Namespace, reading: ParamsReading, changes: Sequence[str] = ()
) -> Resolved:
    source = arguments.config_file or "--params_override"
    return resolve_reading(reading, [*changes, *arguments.overrides], source)


def _resolve_and_warn(arguments: argparse.Namespace, reading: ParamsReading) -> Resolved:
    resolved = _resolve(arguments, reading)
    show_remarks(resolved, resolved.warnings)
    return resolved


def _evaluate(arguments: argparse.Namespace, reading: ParamsReading) -> int:
    """Scores new checkpoints until that of the last step."""
    experiment = _resolve_and_warn(arguments, reading).experiment

    from stillbox.training.watching import WatchPolicy

    value = reading.params.value
    patience = WatchPolicy(
        last_step=experiment.train.steps,
        timeout=value("eval.eval_timeout"),
        interval=value("eval.min_eval_interval"),
    )
    output = arguments.model_dir / f"{_RESULTS}{value('eval.suffix')}"
    score_checkpoints(experiment, arguments.model_dir, output, patience, arguments.profile)
    return 0


def _predict(arguments: argparse.Namespace, reading: ParamsReading) -> int:
    """Writes the newest checkpoint's detections in the format of COCO's evaluation server."""
    experiment = _resolve_and_warn(arguments, reading).experiment

    from stillbox.checkpoints.trained import load_trained
    from stillbox.devices.job import is_main_process
    from stillbox.devices.setup import prepare_process
    from stillbox.evaluation.coco_json import encode_results
    from stillbox.evaluation.program import score_program
    from stillbox.evaluation.scoring import open_evaluation, score_dataset
    from stillbox.records.files import write_whole

    prepare_process()
    dataset = open_evaluation(experiment)
    model = load_trained(arguments.model_dir, step="latest")
    trained = dataclasses.replace(experiment, model=model.experiment.model)
    detect = score_program(trained).bind(model.params, model.stats)
    profiler = batch_profiler(arguments.profile, arguments.model_dir, "predict")
    with progress_bar("images") as progress, profiler:
        result = score_dataset(
            detect, experiment, dataset, progress, trained=model.label_map, observer=profiler
        )
    count = sum(len(image.scores) for image in result.results)
    output = arguments.model_dir / _PREDICTIONS
    if is_main_process():
        write_whole(output, encode_results(result.results))
    print(
        f"{model.source}: {count_text(count, 'detection')} in "
        f"{count_text(len(result.results), 'image')}; {output}"
    )
    return 0

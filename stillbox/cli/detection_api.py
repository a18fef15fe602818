"""The Object Detection API's programs of training and evaluation, with their flags.

`stillbox train` and `evaluate` do the same with stillbox's options.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stillbox.cli.arguments import add_overrides, add_processes, add_profile, note, show_remarks
from stillbox.cli.original_flags import (
    CONFIG_OVERRIDE,
    Flag,
    add_flags,
    explain_flags,
    flag_changes,
    resolve_merged,
)
from stillbox.cli.running import run_training, score_checkpoints, training_place
from stillbox.errors import UserError
from stillbox.experiment.resolve import Resolved, resolve
from stillbox.experiment.updating import merged

if TYPE_CHECKING:
    from stillbox.checkpoints.original_checkpoints import Form


_ONE_MACHINE = "all devices of this machine are used, of any kind; leave it out"
_SET = "write --set FIELD=VALUE, see `stillbox config`"
_MODEL_MAIN = (
    Flag("pipeline_config_path", "any CONFIG", required=True, dest="config", metavar="CONFIG"),
    Flag("model_dir", "folder of all results", Path, required=True, metavar="DIR"),
    Flag("num_train_steps", kind=int, field="train.steps"),
    Flag("train_batch_size", kind=int, field="train.batch_size"),
    Flag("checkpoint_every_n", kind=int, field="train.checkpoint_every"),
    Flag("sample_1_of_n_eval_examples", kind=int, field="data.evaluation.sample_1_of_n"),
    Flag("checkpoint_dir", "only evaluate: a model directory, or the checkpoints folder in it",
         Path, metavar="DIR"),
    Flag("run_once", "evaluate the newest checkpoint and end", bool),
    Flag("max_eval_retries",
         "checkpoints that training may remove while they are read; below 0: any", default=-1),
    Flag("eval_timeout", "end after so long without a new checkpoint (default: wait)", float,
         metavar="SECONDS"),
    Flag("eval_training_data", "with --checkpoint_dir: evaluate on the training records", bool),
    Flag("eval_on_train_data", "the same", bool),
    Flag("sample_1_of_n_eval_on_train_examples", "use every n-th of them", default=5),
    CONFIG_OVERRIDE,
    Flag("checkpoint_format",
         "new: write checkpoints as the original names them too, such as ckpt-3 or model.ckpt-2000",
         choices=("tf1", "tf2")),
    Flag("num_eval_steps", note="every image of the evaluation set is scored once"),
    Flag("use_tpu", kind=bool, refusal=_ONE_MACHINE),
    Flag("tpu_name", refusal=_ONE_MACHINE),
    Flag("tpu_zone", refusal=_ONE_MACHINE),
    Flag("gcp_project", refusal=_ONE_MACHINE),
    Flag(
        "num_workers", refusal="--coordinator and --processes join several machines; leave it out"
    ),
    Flag("num_shards", refusal=_ONE_MACHINE),
    Flag("iterations_per_loop", refusal="the metrics of every step are recorded; leave it out"),
    Flag("mode", refusal="leave it out to train, give --checkpoint_dir to evaluate"),
    Flag("hparams_overrides", refusal=_SET),
    # Summaries are always written.
    Flag("record_summaries", kind=bool),
)  # fmt: skip


def add_model_main(parser: argparse.ArgumentParser) -> None:
    """`stillbox model_main`: the Object Detection API's own command line.

    Without --checkpoint_dir it trains and evaluates, and resumes the run in --model_dir. With it,
    it evaluates the checkpoints that another process writes. Flags become overrides of the
    experiment; `stillbox train` and `stillbox evaluate` do the same with stillbox's own options.
    """
    add_flags(parser, _MODEL_MAIN)
    add_profile(parser, "steps, or batches of the evaluation,", "the model directory")
    add_overrides(parser)
    add_processes(parser)


def run_model_main(arguments: argparse.Namespace) -> int:
    """Trains and evaluates, or evaluates the checkpoints of another run."""
    explain_flags(arguments, _MODEL_MAIN)
    return _train(arguments) if arguments.checkpoint_dir is None else _evaluate(arguments)


def _train(arguments: argparse.Namespace) -> int:
    if arguments.eval_training_data or arguments.eval_on_train_data or arguments.run_once:
        note("without --checkpoint_dir only the training itself evaluates")
    resolved = _resolve_for_training(arguments)
    with (
        training_place(arguments.model_dir) as place,
        writing_checkpoints(place.folder, arguments.checkpoint_format),
    ):
        return run_training(resolved, place, profile=arguments.profile)


@contextmanager
def writing_checkpoints(directory: Path, form: "Form | None") -> Iterator[None]:
    """Writes the checkpoints of a run in the original's form at its end, however it ends.

    Args:
        directory: of the run.
        form: None: nothing is written.
    """
    try:
        yield
    finally:
        from stillbox.devices.job import is_main_process

        if form is not None and is_main_process():
            from stillbox.checkpoints.original_checkpoints import write_checkpoints

            write_checkpoints(directory, form, note)


def _resolve_for_training(arguments: argparse.Namespace) -> Resolved:
    """Resolves the config; by default every checkpoint is evaluated, as in the original."""
    arguments.overrides = merged(flag_changes(arguments, _MODEL_MAIN), arguments.overrides)
    resolved = _resolve(arguments)
    every = resolved.experiment.train.checkpoint_every
    if not resolved.experiment.data.evaluation.paths or "train.evaluate_every" in resolved.origins:
        return resolved
    note(
        f"every checkpoint is evaluated, one in {every} steps, because nothing else is said; "
        "--set train.evaluate_every=N changes that"
    )
    arguments.overrides = merged(arguments.overrides, {"train.evaluate_every": every})
    return _resolve(arguments)


def _evaluate(arguments: argparse.Namespace) -> int:
    chosen = ("num_train_steps", "sample_1_of_n_eval_examples")
    changes = flag_changes(arguments, _MODEL_MAIN, only=chosen)
    arguments.overrides = merged(changes, arguments.overrides)
    resolved = _resolve(arguments)
    show_remarks(resolved, resolved.warnings)
    experiment = resolved.experiment
    name = "eval_validation_data"
    if arguments.eval_training_data or arguments.eval_on_train_data:
        name = "eval_training_data"
        records, nth = experiment.data.train, arguments.sample_1_of_n_eval_on_train_examples
        training = {
            "data.evaluation.paths": records.paths,
            "data.evaluation.label_map": records.label_map,
            "data.evaluation.use_display_name": records.use_display_name,
            "data.evaluation.annotations": records.annotations,
            "data.evaluation.sample_1_of_n": nth,
        }
        arguments.overrides = merged(arguments.overrides, training)
        experiment = _resolve(arguments).experiment

    from stillbox.training.watching import WatchPolicy

    patience = WatchPolicy(
        once=arguments.run_once,
        last_step=experiment.train.steps,
        timeout=arguments.eval_timeout,
        retries=arguments.max_eval_retries,
    )
    output = arguments.model_dir / name
    score_checkpoints(experiment, arguments.checkpoint_dir, output, patience, arguments.profile)
    return 0


def _resolve(arguments: argparse.Namespace) -> Resolved:
    return resolve_merged(arguments.config, arguments.config_override, arguments.overrides)


_ONE_CONFIG = "give model, train_config and the readers in one file, --pipeline_config_path"
_ONE_PROGRAM = "all devices of this machine are used as one"
_COMMON = (
    Flag("pipeline_config_path", "any CONFIG", dest="config", metavar="CONFIG"),
    Flag("model_config_path", refusal=_ONE_CONFIG),
    Flag("input_config_path", refusal=_ONE_CONFIG),
)
_TRAIN = (
    Flag("train_dir", "folder of all results", Path, required=True, metavar="DIR"),
    *_COMMON,
    Flag("train_config_path", refusal=_ONE_CONFIG),
    Flag("master", note=_ONE_PROGRAM),
    Flag("task", note=_ONE_PROGRAM),
    Flag("num_clones", note=_ONE_PROGRAM),
    Flag("clone_on_cpu", kind=bool, note=_ONE_PROGRAM),
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
    resolved = resolve(_given_config(arguments), arguments.overrides)
    with (
        training_place(arguments.train_dir) as place,
        writing_checkpoints(place.folder, "tf1"),
    ):
        return run_training(resolved, place, profile=arguments.profile)


def _given_config(arguments: argparse.Namespace) -> str:
    """Returns the CONFIG."""
    if arguments.config is None:
        raise UserError("--pipeline_config_path is missing", fix="give a pipeline.config")
    return str(arguments.config)


_EVAL = (
    Flag("checkpoint_dir", "a model directory", Path, required=True, metavar="DIR"),
    Flag("eval_dir", "folder of the results", Path, required=True, metavar="DIR"),
    *_COMMON,
    Flag("eval_config_path", refusal=_ONE_CONFIG),
    Flag(
        "eval_training_data",
        kind=bool,
        refusal="use model_main.py, which evaluates on training records",
    ),
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
    resolved = resolve(_given_config(arguments), arguments.overrides)
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

"""`stillbox model_main`: the Object Detection API's own command line.

Without --checkpoint_dir it trains and evaluates, and resumes the run in --model_dir. With it, it
evaluates the checkpoints that another process writes. Flags become overrides of the experiment;
`stillbox train` and `stillbox evaluate` do the same with stillbox's own options.
"""

import argparse
import json
from pathlib import Path

from stillbox.cli.arguments import (
    add_hidden,
    add_option,
    add_overrides,
    add_processes,
    add_profile,
    add_switch,
    note,
    refuse_flags,
    resolve_config,
)
from stillbox.cli.running import run_training, score_checkpoints
from stillbox.experiment.resolve import Resolved, resolve

_ONE_MACHINE = "all devices of this machine are used, of any kind; leave it out"
_REFUSED = {
    "use_tpu": _ONE_MACHINE,
    "tpu_name": _ONE_MACHINE,
    "tpu_zone": _ONE_MACHINE,
    "gcp_project": _ONE_MACHINE,
    "num_workers": "--coordinator and --processes join several machines; leave it out",
    "num_shards": _ONE_MACHINE,
    "iterations_per_loop": "the metrics of every step are recorded; leave it out",
    "mode": "leave it out to train, give --checkpoint_dir to evaluate",
    "hparams_overrides": "write --set FIELD=VALUE, see `stillbox config`",
    "config_override": "write --set FIELD=VALUE, see `stillbox config`",
}
# Flags of absl, and summaries, which are always written.
_NO_EFFECT = ("alsologtostderr", "logtostderr", "record_summaries", "stderrthreshold", "verbosity")
_TRAINING = {
    "num_train_steps": "train.steps",
    "train_batch_size": "train.batch_size",
    "checkpoint_every_n": "train.checkpoint_every",
}
_EVALUATION = {"sample_1_of_n_eval_examples": "data.evaluation.sample_1_of_n"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument(
        "--pipeline_config_path", dest="config", required=True, metavar="CONFIG", help="any CONFIG"
    )
    parser.add_argument(
        "--model_dir", type=Path, required=True, metavar="DIR", help="folder of all results"
    )
    for name, field in (_TRAINING | _EVALUATION).items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=field)
    _add_evaluation(parser)
    add_hidden(parser, (*_REFUSED, *_NO_EFFECT))
    add_profile(parser, "steps, or batches of the evaluation,", "the model directory")
    add_overrides(parser)
    add_processes(parser)


def _add_evaluation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint_dir",
        type=Path,
        metavar="DIR",
        help="only evaluate: a model directory, or the checkpoints folder in it",
    )
    add_switch(parser, "run_once", "evaluate the newest checkpoint and end")
    about = "checkpoints that training may remove while they are read; below 0: any"
    add_option(parser, "--max_eval_retries", -1, about)
    parser.add_argument(
        "--eval_timeout",
        type=float,
        metavar="SECONDS",
        help="end after so long without a new checkpoint (default: wait)",
    )
    about = "with --checkpoint_dir: evaluate on the training records"
    add_switch(parser, "eval_training_data", about)
    add_switch(parser, "eval_on_train_data", "the same")
    about = "use every n-th of them"
    add_option(parser, "--sample_1_of_n_eval_on_train_examples", 5, about)


def run(arguments: argparse.Namespace) -> int:
    """Trains and evaluates, or evaluates the checkpoints of another run."""
    refuse_flags(arguments, _REFUSED)
    return _train(arguments) if arguments.checkpoint_dir is None else _evaluate(arguments)


def _train(arguments: argparse.Namespace) -> int:
    if arguments.eval_training_data or arguments.eval_on_train_data or arguments.run_once:
        note("without --checkpoint_dir only the training itself evaluates")
    resolved = _resolve_for_training(arguments)
    return run_training(resolved, arguments.model_dir, profile=arguments.profile)


def _resolve_for_training(arguments: argparse.Namespace) -> Resolved:
    """Resolves the config; by default every checkpoint is evaluated, as in the original."""
    arguments.overrides = _overrides(arguments, _TRAINING | _EVALUATION)
    resolved = resolve(arguments.config, arguments.overrides)
    every = resolved.experiment.train.checkpoint_every
    if not resolved.experiment.data.evaluation.paths or "train.evaluate_every" in resolved.origins:
        return resolved
    note(
        f"every checkpoint is evaluated, one in {every} steps, because nothing else is said; "
        "--set train.evaluate_every=N changes that"
    )
    arguments.overrides.append(f"train.evaluate_every={every}")
    return resolve(arguments.config, arguments.overrides)


def _evaluate(arguments: argparse.Namespace) -> int:
    fields = {"num_train_steps": _TRAINING["num_train_steps"], **_EVALUATION}
    arguments.overrides = _overrides(arguments, fields)
    experiment = resolve_config(arguments).experiment
    name = "eval_validation_data"
    if arguments.eval_training_data or arguments.eval_on_train_data:
        name = "eval_training_data"
        records, nth = experiment.data.train, arguments.sample_1_of_n_eval_on_train_examples
        arguments.overrides += [
            f"data.evaluation.paths={json.dumps(records.paths)}",
            f"data.evaluation.label_map={json.dumps(records.label_map)}",
            f"data.evaluation.use_display_name={json.dumps(records.use_display_name)}",
            f"data.evaluation.sample_1_of_n={nth}",
        ]
        experiment = resolve(arguments.config, arguments.overrides).experiment

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


def _overrides(arguments: argparse.Namespace, fields: dict[str, str]) -> list[str]:
    """Returns an override for each given flag, and those of --set."""
    given = {field: getattr(arguments, flag) for flag, field in fields.items()}
    changes = [f"{field}={value}" for field, value in given.items() if value is not None]
    return [*changes, *arguments.overrides]

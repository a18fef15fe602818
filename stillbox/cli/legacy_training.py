"""`train.py` and `eval.py` of the Object Detection API's first generation, with their flags.

`stillbox train` and `stillbox evaluate` do the same with stillbox's own options.
"""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_overrides, add_processes, add_profile, show_remarks
from stillbox.cli.model_main import writing_checkpoints
from stillbox.cli.original_flags import Flag, add_flags, explain_flags
from stillbox.cli.running import run_training, score_checkpoints
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve

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

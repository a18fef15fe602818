"""`stillbox model_main`: the Object Detection API's own command line, with what it did.

Without --checkpoint_dir it trains and evaluates, and goes on where --model_dir stopped. With it,
checkpoints that another process writes are evaluated as they come. Flags become overrides of the
experiment; `stillbox train` and `stillbox evaluate` do the same in stillbox's own words.
"""

import argparse
import json
import sys
from pathlib import Path

from stillbox.cli.arguments import (
    add_overrides,
    add_processes,
    add_profile,
    add_switch,
    resolve_config,
)
from stillbox.cli.running import batch_profiler, run_training, say
from stillbox.errors import UserError
from stillbox.experiment.resolve import Resolved

SPELLINGS = ("model_main.py", "model_main_tf2", "model_main_tf2.py")
"""Other names of this verb: what stands in people's scripts."""

_ONE_MACHINE = "all devices of this machine are used, whatever they are; leave it out"
_REFUSED = {
    "use_tpu": _ONE_MACHINE,
    "tpu_name": _ONE_MACHINE,
    "tpu_zone": _ONE_MACHINE,
    "gcp_project": _ONE_MACHINE,
    "num_workers": "several machines are not supported; leave it out",
    "num_shards": _ONE_MACHINE,
    "iterations_per_loop": "every step is looked at by itself; leave it out",
    "mode": "leave it out to train, give --checkpoint_dir to evaluate",
    "hparams_overrides": "write --set FIELD=VALUE, see `stillbox config`",
    "config_override": "write --set FIELD=VALUE, see `stillbox config`",
}
# absl's own, and summaries, which are always written: what they ask for is so, or changes nothing.
_NO_EFFECT = ("alsologtostderr", "logtostderr", "record_summaries", "stderrthreshold", "verbosity")


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "model_main",
        help="train or evaluate with the flags of the Object Detection API",
        description=__doc__,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--pipeline_config_path", dest="config", required=True, metavar="CONFIG", help="any CONFIG"
    )
    parser.add_argument(
        "--model_dir", type=Path, required=True, metavar="DIR", help="where everything goes"
    )
    _add_training(parser)
    _add_evaluation(parser)
    for name in (*_REFUSED, *_NO_EFFECT):
        parser.add_argument(f"--{name}", nargs="?", const="true", help=argparse.SUPPRESS)
    add_profile(parser, "steps, or batches of the evaluation,", "the model directory")
    add_overrides(parser)
    add_processes(parser)
    parser.set_defaults(run=run)


def _add_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num_train_steps", type=int, metavar="N", help="train.steps")
    parser.add_argument("--train_batch_size", type=int, metavar="N", help="train.batch_size")
    parser.add_argument(
        "--checkpoint_every_n", type=int, metavar="N", help="train.checkpoint_every"
    )


def _add_evaluation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sample_1_of_n_eval_examples",
        type=int,
        metavar="N",
        help="data.evaluation.sample_1_of_n",
    )
    parser.add_argument(
        "--checkpoint_dir",
        type=Path,
        metavar="DIR",
        help="only evaluate: a model directory, or the checkpoints folder in it",
    )
    add_switch(parser, "run_once", "evaluate the newest checkpoint and end")
    parser.add_argument(
        "--max_eval_retries",
        type=int,
        default=-1,
        metavar="N",
        help="checkpoints that training may remove while they are read; below 0, the default: any",
    )
    parser.add_argument(
        "--eval_timeout",
        type=float,
        metavar="SECONDS",
        help="end after so long without a new checkpoint (default: wait)",
    )
    about = "with --checkpoint_dir: evaluate on the training records"
    add_switch(parser, "eval_training_data", about)
    add_switch(parser, "eval_on_train_data", "the same")
    parser.add_argument(
        "--sample_1_of_n_eval_on_train_examples",
        type=int,
        default=5,
        metavar="N",
        help="use every n-th of them (default: 5)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Trains and evaluates, or evaluates the checkpoints of another run."""
    for name, fix in _REFUSED.items():
        value = getattr(arguments, name)
        if value is not None and value.lower() not in ("false", "f", "0"):
            raise UserError(f"--{name} is not supported", fix=fix)
    if arguments.checkpoint_dir is None:
        return _train(arguments)
    return _evaluate(arguments)


def _train(arguments: argparse.Namespace) -> int:
    if arguments.eval_training_data or arguments.eval_on_train_data or arguments.run_once:
        print("note: without --checkpoint_dir only the training itself evaluates", file=sys.stderr)
    resolved = _resolve_for_training(arguments)
    return run_training(resolved, arguments.model_dir, profile=arguments.profile)


def _resolve_for_training(arguments: argparse.Namespace) -> Resolved:
    """Resolves the config; unless it says otherwise, every checkpoint is evaluated, as there."""
    arguments.overrides = [
        *_overrides(
            arguments,
            num_train_steps="train.steps",
            train_batch_size="train.batch_size",
            checkpoint_every_n="train.checkpoint_every",
            sample_1_of_n_eval_examples="data.evaluation.sample_1_of_n",
        ),
        *arguments.overrides,
    ]
    resolved = resolve_config(arguments)
    every = resolved.experiment.train.checkpoint_every
    if not resolved.experiment.data.evaluation.paths or "train.evaluate_every" in resolved.origins:
        return resolved
    print(
        f"note: every checkpoint is evaluated, one in {every} steps, because nothing else is said; "
        "--set train.evaluate_every=N changes that",
        file=sys.stderr,
    )
    arguments.overrides.append(f"train.evaluate_every={every}")
    return _resolve_quietly(arguments)


def _evaluate(arguments: argparse.Namespace) -> int:
    arguments.overrides = [
        *_overrides(
            arguments,
            num_train_steps="train.steps",
            sample_1_of_n_eval_examples="data.evaluation.sample_1_of_n",
        ),
        *arguments.overrides,
    ]
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
        experiment = _resolve_quietly(arguments).experiment

    from stillbox.devices.setup import prepare_process
    from stillbox.training.watching import CheckpointWatcher, Patience

    prepare_process()
    patience = Patience(
        once=arguments.run_once,
        last_step=experiment.train.steps,
        timeout=arguments.eval_timeout,
        retries=arguments.max_eval_retries,
    )
    output = arguments.model_dir / name
    with batch_profiler(arguments.profile, output, "evaluate") as profiler:
        CheckpointWatcher(
            experiment, arguments.checkpoint_dir, output, patience, say, observer=profiler
        ).run()
    return 0


def _resolve_quietly(arguments: argparse.Namespace) -> Resolved:
    # Its warnings were printed when it was resolved without the last overrides.
    from stillbox.experiment.resolve import resolve

    return resolve(arguments.config, arguments.overrides)


def _overrides(arguments: argparse.Namespace, **fields: str) -> list[str]:
    """Returns an override for every flag that was given."""
    given = {path: getattr(arguments, flag) for flag, path in fields.items()}
    return [f"{path}={value}" for path, value in given.items() if value is not None]

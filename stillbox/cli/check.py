"""`stillbox check`: what is wrong with a config, before anything is spent on it."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from stillbox.cli.arguments import add_config
from stillbox.cli.bars import progress_bar
from stillbox.cli.running import say_aside
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve

if TYPE_CHECKING:  # jax takes a second to import
    from stillbox.checking.ahead_of_time.report import TargetCheck
    from stillbox.checking.ahead_of_time.targets import Target


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "check",
        help="look for everything that is wrong with a config",
        description=f"{__doc__} Ends with 2 where something is refused or does not fit on the "
        "target, with 1 where there are warnings and --strict is given, otherwise with 0.",
    )
    add_config(parser)
    records = parser.add_mutually_exclusive_group()
    records.add_argument(
        "--records",
        dest="records",
        action="store_const",
        const="all",
        default="present",
        help="read every record and decode every image (default: some, where they are here)",
    )
    records.add_argument(
        "--no-records",
        dest="records",
        action="store_const",
        const="none",
        help="look at no record",
    )
    parser.add_argument("--strict", action="store_true", help="end with 1 where there are warnings")
    parser.add_argument("--notes", action="store_true", help="show all notes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="compile the steps of training, evaluation and prediction for these devices, which "
        "need not be here: a TPU slice such as v5e:2x4 or v3-8, GPUs such as h200:8, or cpu or "
        "cuda for what is here; takes minutes",
    )
    parser.add_argument(
        "--find-batch",
        action="store_true",
        help="look for the largest train.batch_size that fits on the target",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings, and what the target's compiler says."""
    from stillbox.checking.config import check_config

    if arguments.find_batch and not arguments.target:
        raise UserError(
            "a batch fits on some target", where="--find-batch", fix="add --target v5e:2x4"
        )
    # A target that does not exist is said before anything is looked at.
    target = _find_target(arguments.target) if arguments.target else None
    with progress_bar("records") as progress:
        check = check_config(
            arguments.config, arguments.overrides, records=arguments.records, on_record=progress
        )
    sound = not check.count("error")
    compiled = _compile(arguments, target) if target is not None and sound else None
    if arguments.json:
        content = check.to_dict()
        if compiled is not None:
            content["target"] = compiled.to_dict()
        sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    else:
        console = Console(highlight=False)
        console.print(check.render(all_notes=arguments.notes))
        if compiled is not None:
            console.print(compiled.render())
    if not sound or (compiled is not None and not compiled.fits):
        return 2
    return 1 if arguments.strict and check.count("warning") else 0


def _find_target(name: str) -> "Target":
    from stillbox.checking.ahead_of_time.targets import find_target

    return find_target(name)


def _compile(arguments: argparse.Namespace, target: "Target") -> "TargetCheck":
    from stillbox.checking.ahead_of_time.report import check_target

    experiment = resolve(arguments.config, arguments.overrides).experiment
    return check_target(experiment, target, find=arguments.find_batch, say=say_aside)

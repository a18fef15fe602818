"""`stillbox train`: train an experiment into a model directory, or go on where it stopped."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_config, add_processes, add_profile, resolve_config
from stillbox.cli.running import run_training


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "train", help="train an experiment into a model directory", description=__doc__
    )
    add_config(parser)
    parser.add_argument(
        "--model-dir",
        required=True,
        type=Path,
        metavar="DIR",
        help="where checkpoints, metrics and everything else goes; a run found there is resumed",
    )
    add_profile(parser, "steps of this run", "DIR")
    add_processes(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains; 128 plus the signal's number where one ended the run early."""
    return run_training(resolve_config(arguments), arguments.model_dir, profile=arguments.profile)

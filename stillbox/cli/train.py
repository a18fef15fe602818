"""`stillbox train`: train an experiment into a model directory, or resume a run."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_config, add_processes, add_profile, resolve_config
from stillbox.cli.running import run_training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_config(parser)
    parser.add_argument(
        "--model-dir",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder of checkpoints, metrics and all other results; a run found there is resumed",
    )
    add_profile(parser, "steps of this run", "DIR")
    add_processes(parser)


def run(arguments: argparse.Namespace) -> int:
    """Trains; returns 128 plus the signal's number if a signal ended the run early."""
    return run_training(resolve_config(arguments), arguments.model_dir, profile=arguments.profile)

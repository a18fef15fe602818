"""`stillbox train`: train an experiment into a model directory, or resume a run."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_config, add_processes, add_profile, show_remarks
from stillbox.cli.running import run_training
from stillbox.experiment.resolve import read_config


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
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="train so many steps, with the schedule stretched to them (default: the config's)",
    )
    length.add_argument(
        "--epochs",
        type=float,
        metavar="N",
        help="train so many passes over the training records, likewise",
    )
    add_profile(parser, "steps of this run", "DIR")
    add_processes(parser)


def run(arguments: argparse.Namespace) -> int:
    """Trains; returns 128 plus the signal's number if a signal ended the run early."""
    # Imported here: --help and errors in the arguments need no numpy.
    from stillbox.training.length import set_length

    read = read_config(arguments.config, arguments.overrides)
    resolved = set_length(read, arguments.overrides, steps=arguments.steps, epochs=arguments.epochs)
    show_remarks(resolved)
    return run_training(resolved, arguments.model_dir, profile=arguments.profile)

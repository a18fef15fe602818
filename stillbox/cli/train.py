"""`stillbox train`: train an experiment into a model directory, or go on where it stopped."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_config, resolve_config


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
    parser.add_argument(
        "--profile",
        default="0,0",
        metavar="FIRST,LAST",
        help="trace these steps of this run into DIR/plugins/profile (default: none)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains; 128 plus the signal's number where one ended the run early."""
    resolved = resolve_config(arguments)

    from stillbox.devices.setup import use_compilation_cache
    from stillbox.training.loop import train
    from stillbox.training.profiling import ProfileSteps

    profile = ProfileSteps.parse(arguments.profile)
    use_compilation_cache()
    outcome = train(resolved.experiment, arguments.model_dir, resolved.origins, profile=profile)
    print(f"{outcome.reason}; {arguments.model_dir}, {outcome.seconds:.0f} s")
    return 128 + outcome.interrupted if outcome.interrupted else 0

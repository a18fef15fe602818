"""Arguments that say which trained model a verb is for."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stillbox.cli.arguments import add_overrides, checkpoint_choice, resolve_config
from stillbox.errors import UserError

if TYPE_CHECKING:
    from stillbox.checkpoints.trained import TrainedModel


def add_model(parser: argparse.ArgumentParser, steps: str) -> None:
    """Adds DIR|CONFIG, --weights, --step and --set.

    Args:
        parser: of the verb.
        steps: what --step takes.
    """
    parser.add_argument(
        "config", metavar="DIR|CONFIG", help="a model directory, or a config for --weights"
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="weights for CONFIG: TF1 checkpoint, .npz, .safetensors, .pth, .pt or model directory",
    )
    parser.add_argument("--step", help=f"checkpoint of DIR: {steps} (default: best)")
    add_overrides(parser)


def load_model(arguments: argparse.Namespace) -> "TrainedModel":
    """Loads the model; what was taken from a weights file goes to standard error.

    Raises:
        UserError: there is no such model, or its weights do not fit.
    """
    from stillbox.checkpoints.trained import load_trained, load_weights

    if arguments.weights and arguments.step:
        raise UserError(
            "a weights file has no steps to choose from",
            where="--step",
            fix="leave --step out, or give the model directory in place of CONFIG and --weights",
        )
    if arguments.weights:
        model = load_weights(resolve_config(arguments).experiment, arguments.weights)
        print(model.report.render() if model.report else "", file=sys.stderr)
        return model
    directory = Path(arguments.config)
    if not directory.is_dir():
        raise UserError(
            f"{arguments.config} is not a model directory, and a config alone has no weights",
            fix="add --weights FILE, or give the --model-dir of a training run",
        )
    step = checkpoint_choice(arguments.step or "best")
    return load_trained(directory, step=step, overrides=arguments.overrides)

"""Arguments that select a model."""

import argparse
from typing import Any

from stillbox.cli.arguments import add_overrides, parse_step, resolve_config, say_next
from stillbox.errors import UserError


def add_model(parser: argparse.ArgumentParser, steps: str, *, exports: bool = True) -> None:
    """Adds DIR|CONFIG, --weights, --step, --set, and --runtime.

    Args:
        parser: of the verb.
        steps: values of --step, for the help.
        exports: whether the verb accepts exports.
    """
    parser.add_argument(
        "config",
        metavar="DIR|EXPORT|CONFIG" if exports else "DIR|CONFIG",
        help="a model directory"
        + (", the folder of an export," if exports else "")
        + " or a config for --weights",
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="weights for CONFIG: TF1 checkpoint, .npz, .safetensors, .pth, .pt or model directory",
    )
    parser.add_argument("--step", help=f"checkpoint of DIR: {steps} (default: best)")
    if exports:
        parser.add_argument(
            "--runtime",
            default="",
            metavar="NAME",
            help="runtime of EXPORT, such as openvino for ONNX (default: the format's own)",
        )
    add_overrides(parser)


def model_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `stillbox.load` and its siblings that select a model.

    Warnings about a config go to standard error.

    Raises:
        UserError: --weights and --step are both given, or --step is no step.
    """
    if arguments.weights and arguments.step:
        raise UserError(
            "a weights file has no steps to choose from",
            where="--step",
            fix="leave --step out, or give the model directory in place of CONFIG and --weights",
        )
    common = {"weights": arguments.weights}
    if getattr(arguments, "runtime", ""):
        common["runtime"] = arguments.runtime
    if arguments.weights:
        return {"source": resolve_config(arguments).experiment, **common}
    step = parse_step(arguments.step or "best")
    return {"source": arguments.config, "step": step, "overrides": arguments.overrides, **common}


def say_next_with_model(arguments: argparse.Namespace, verb: str, *words: str) -> None:
    """Says what can follow with the same model, with the options that select it."""
    selected = [arguments.config]
    for name in ("weights", "step", "runtime"):
        value = getattr(arguments, name, None)
        # A verb for all checkpoints is followed by one for the best.
        selected += [f"--{name}", str(value)] if value and value != "all" else []
    changes = [word for change in arguments.overrides for word in ("--set", change)]
    say_next(verb, *selected, *changes, *words)

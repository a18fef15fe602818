"""Arguments that select a model."""

import argparse
from pathlib import Path
from typing import Any

from stillbox.cli.arguments import add_overrides, parse_step, resolve_config, say_next
from stillbox.cli.bars import progress_bar
from stillbox.errors import UserError, nearest
from stillbox.printing import size_text


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
        help="a model directory,"
        + (" the folder of an export," if exports else "")
        + " one of its checkpoints, a packed model, or a config for --weights",
    )
    add_weights(parser, "weights for CONFIG")
    parser.add_argument("--step", help=f"checkpoint of DIR: {steps} (default: best)")
    if exports:
        parser.add_argument(
            "--runtime",
            default="",
            metavar="NAME",
            help="runtime of EXPORT, such as openvino for ONNX (default: the format's own)",
        )
    add_overrides(parser)


def add_weights(parser: argparse.ArgumentParser, about: str) -> None:
    """Adds --weights, which are `about`, and --download."""
    parser.add_argument(
        "--weights",
        metavar="NAME_OR_FILE",
        help=f"{about}: a name of `stillbox weights list`, or a TF1 or TF2 checkpoint, .npz, "
        ".safetensors, .pth, .pt, .pb, packed model or model directory",
    )
    parser.add_argument(
        "--download",
        action="store_true",
        help="download the weights of that name if they are not on this machine",
    )


def fetch_weights(weights: str | None, *, download: bool) -> None:
    """Downloads known weights that are not here, if that is allowed.

    Raises:
        UserError: it is not allowed, there is nothing to download, or nothing has that name.
    """
    from stillbox.checkpoints.pretrained import find_weights, get_weights, how_to_get
    from stillbox.experiment.known_weights import known_weights

    row = known_weights().get(weights or "")
    if row is None:
        if download:
            what = (
                f"there are no weights {weights!r} to download"
                if weights
                else "no weights are named"
            )
            fix = nearest(weights, known_weights()) if weights else "give --weights NAME"
            raise UserError(what, where="--download", fix=fix)
    elif not Path(row.name).exists() and find_weights(row.name) is None:
        if not download:
            size = sum(file.bytes for file in row.files)
            what = f"the weights {row.name} are not on this machine"
            fix = f"add --download to fetch them ({size_text(size)}), or {how_to_get(row)}"
            raise UserError(what, where="--weights", fix=fix)
        with progress_bar(row.name) as progress:
            get_weights(row.name, progress=progress)


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
    fetch_weights(arguments.weights, download=arguments.download)
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

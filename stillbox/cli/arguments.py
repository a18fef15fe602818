"""Arguments that several verbs share."""

import argparse
import sys
from typing import TYPE_CHECKING, Literal

from stillbox.errors import UserError
from stillbox.experiment.resolve import Resolved, resolve

if TYPE_CHECKING:
    from stillbox.devices.launcher import ProcessInfo


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds CONFIG and --set."""
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help="a recipe's name, a pipeline.config, or a stillbox YAML file",
    )
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Adds --set and --import."""
    parser.add_argument(
        "--import",
        dest="imports",
        metavar="FILE|MODULE",
        action="append",
        default=[],
        help="import backbones, losses, augmentations and other parts of your own, for example "
        "--import my_parts.py; may be repeated",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="change one field, for example --set train.batch_size=8; may be repeated",
    )


def add_profile(parser: argparse.ArgumentParser, what: str, where: str) -> None:
    """Adds --profile.

    Args:
        parser: of the verb.
        what: what it counts, such as `steps of this run`.
        where: the folder that the trace goes into.
    """
    parser.add_argument(
        "--profile",
        default="0,0",
        metavar="FIRST,LAST",
        help=f"trace these {what} into {where}/plugins/profile and say where their time goes "
        "(default: none)",
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Adds what says which process of a job this is, where no launcher does."""
    group = parser.add_argument_group(
        "several processes",
        "mpirun, srun, GKE and Cloud TPU say by themselves which process of a job this is; "
        "elsewhere give all three.",
    )
    group.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="machine of process 0 and a free port of it; the next port must be free too",
    )
    group.add_argument("--processes", type=int, metavar="N", help="processes of the job")
    group.add_argument("--process", type=int, metavar="I", help="number of this one, from 0")


def find_own_place(arguments: argparse.Namespace) -> "ProcessInfo | None":
    """Returns which process of a job this is; None where it is the only one, or goes by itself.

    Raises:
        UserError: what was said about it is not enough, or makes no sense.
    """
    from stillbox.devices.launcher import find_process

    if not hasattr(arguments, "coordinator"):
        return None
    return find_process(
        coordinator=arguments.coordinator,
        processes=arguments.processes,
        process=arguments.process,
    )


def add_switch(parser: argparse.ArgumentParser, name: str, about: str) -> None:
    """Adds a flag in all forms that absl takes: --x, --x=true, --nox."""
    parser.add_argument(
        f"--{name}", nargs="?", const=True, default=False, type=_boolean, help=about
    )
    parser.add_argument(f"--no{name}", dest=name, action="store_false", help=argparse.SUPPRESS)


def _boolean(text: str) -> bool:
    words = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return words[text.lower()]


def resolve_config(arguments: argparse.Namespace) -> Resolved:
    """Resolves CONFIG with its overrides; warnings and notes go to standard error."""
    resolved = resolve(arguments.config, arguments.overrides)
    show_remarks(resolved)
    return resolved


def show_remarks(resolved: Resolved) -> None:
    """Prints warnings and notes about a config to standard error."""
    for warning in resolved.warnings:
        warn(warning)
    for text in resolved.notes:
        note(text)


def warn(text: str) -> None:
    """Tells a person something that may be a fault."""
    print(f"warning: {text}", file=sys.stderr)


def note(text: str) -> None:
    """Tells a person something that is no fault."""
    print(f"note: {text}", file=sys.stderr)


def checkpoint_choice(text: str) -> int | Literal["best", "latest"]:
    """Reads --step.

    Raises:
        UserError: it is neither a number nor one of the two words.
    """
    if text == "best":
        return "best"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    raise UserError(
        f"{text!r} names no checkpoint", where="--step", fix="give best, latest or a step's number"
    )

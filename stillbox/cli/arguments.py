"""Arguments that several verbs share."""

import argparse
import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stillbox import numerals
from stillbox.cli.overrides import SetAction, set_words
from stillbox.errors import UserError
from stillbox.experiment.imports import imports_of
from stillbox.experiment.recipes import recipe_names, recipe_path
from stillbox.experiment.resolve import Resolved, classes_of_weights, resolve
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import merged
from stillbox.printing import json_text
from stillbox.references import Setting, references

if TYPE_CHECKING:
    from stillbox.devices.launcher import ProcessInfo

Parser = argparse.ArgumentParser

# Fewer than fill a small terminal.
_MOST_REMARKS = 5


def add_option(
    parser: "argparse._ActionsContainer",
    name: str,
    default: float | str | Path,
    about: str,
    metavar: str = "N",
    *,
    short: str | None = None,
) -> None:
    """Adds an option of its default's type, with the default in its help."""
    names = (short, name) if short else (name,)
    about = f"{about} (default: {default})"
    parser.add_argument(*names, type=type(default), default=default, help=about, metavar=metavar)


def add_count(parser: "argparse._ActionsContainer", name: str, default: int, about: str) -> None:
    """Adds an option as `add_option` does, which takes whole numbers from 0 on."""
    about = f"{about} (default: {default})"
    parser.add_argument(name, type=_count, default=default, help=about, metavar="N")


def _count(text: str) -> int:
    count = numerals.count(text)
    if count is None:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no whole number from 0 on")
    return count


def add_bool(parser: "argparse._ActionsContainer", name: str, about: str) -> None:
    """Adds an option without a value, which is false unless it is given."""
    parser.add_argument(name, action="store_true", help=about)


def add_switch(
    parser: Parser,
    name: str,
    about: str,
    *,
    default: bool = False,
    short: str | None = None,
    dest: str | None = None,
) -> None:
    """Adds a flag in all forms that absl accepts: --x, --x=true, --nox."""
    names = (short, f"--{name}") if short else (f"--{name}",)
    dest = dest or name
    parser.add_argument(
        *names, nargs="?", const=True, default=default, type=_boolean, dest=dest, help=about
    )
    parser.add_argument(f"--no{name}", dest=dest, action="store_false", help=argparse.SUPPRESS)


def _boolean(text: str) -> bool:
    words = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return words[text.lower()]


def add_config_argument(parser: Parser) -> None:
    """Adds CONFIG, --set and --import."""
    about = "a recipe's name, a pipeline.config, or a stillbox YAML file"
    parser.add_argument("config", metavar="CONFIG", help=about)
    add_overrides(parser)


def add_images(parser: Parser, about: str) -> None:
    """Adds `--images`, the image files that `about` describes the use of."""
    parser.add_argument("--images", nargs="+", default=(), type=Path, metavar="IMAGE", help=about)


def add_imports(parser: Parser) -> None:
    """Adds --import."""
    about = (
        "import backbones, losses, data formats and other parts of your own, for example "
        "--import my_parts.py; may be repeated"
    )
    parser.add_argument(
        "--import", dest="imports", metavar="FILE|MODULE", action="append", default=[], help=about
    )


def add_overrides(parser: Parser) -> None:
    """Adds --set and --import."""
    add_imports(parser)
    about = "change one field, for example --set train.batch_size=8; may be repeated"
    parser.add_argument(
        "--set", dest="overrides", metavar="FIELD=VALUE", action=SetAction, default={}, help=about
    )


def add_records(parser: Parser) -> None:
    """Adds RECORDS and --label-map."""
    about = "TFRecord files or patterns (default: the config's own training records)"
    parser.add_argument("records", nargs="*", metavar="RECORDS", help=about)
    parser.add_argument(
        "--label-map", help="label map of RECORDS: a .pbtxt file, or coco (default: the config's)"
    )


def add_resources(parser: "argparse._ActionsContainer", default: str) -> None:
    """Adds --resources, which a worker on a Ray cluster takes."""
    about = (
        "what each worker of --engine ray takes of the cluster, for example GPU=8; may be "
        f"repeated (default: {default})"
    )
    parser.add_argument(
        "--resources", metavar="NAME=AMOUNT", action="append", default=[], help=about
    )


def parse_resources(words: Sequence[str]) -> dict[str, float]:
    """Returns the amounts of --resources by their names.

    Raises:
        UserError: one is no resource with its amount.
    """
    return dict(map(_resource, words))


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    number = numerals.number(amount)
    if math.isnan(number):
        problem = f"{text!r} is no resource with its amount"
        raise UserError(problem, where="--resources", fix="GPU=8")
    return name, number


def with_records(experiment: Experiment, arguments: argparse.Namespace) -> Experiment:
    """Returns the experiment with RECORDS and --label-map as its training records."""
    train = experiment.data.train
    label_map = arguments.label_map or train.label_map
    train = replace(train, paths=tuple(arguments.records) or train.paths, label_map=label_map)
    return replace(experiment, data=replace(experiment.data, train=train))


def add_profile(parser: Parser, traced: str, where: str) -> None:
    """Adds --profile; `traced` is a phrase such as `steps of this run`, `where` the folder."""
    about = f"trace these {traced} into {where}/plugins/profile; 0,0: none"
    add_option(parser, "--profile", "0,0", about, "FIRST,LAST")


def add_processes(parser: Parser) -> None:
    """Adds the options that identify this process in a job without a launcher."""
    group = parser.add_argument_group(
        "several processes",
        "mpirun, srun, torchrun, GKE and Cloud TPU identify each process of a job; elsewhere give "
        "all three.",
    )
    group.add_argument(
        "--coordinator", metavar="HOST:PORT", help="machine of process 0 and a free port of it"
    )
    group.add_argument("--processes", type=int, metavar="N", help="processes of the job")
    group.add_argument("--process", type=int, metavar="I", help="number of this one, from 0")


def find_process_info(arguments: argparse.Namespace) -> "ProcessInfo | None":
    """Returns this process's place in its job; None if it is the only one.

    Raises:
        UserError: the options are incomplete or contradictory.
    """
    from stillbox.devices.launcher import find_process

    if not hasattr(arguments, "coordinator"):
        return None
    variables = dict(os.environ)
    if getattr(arguments, "slice", None):
        # Ray starts the workers of the slice; the command may run on one of its machines.
        variables.pop("TPU_WORKER_ID", None)
    names = ("coordinator", "processes", "process")
    return find_process(variables, **{name: getattr(arguments, name) for name in names})


def resolve_config(arguments: argparse.Namespace, *, notes: bool = False) -> Resolved:
    """Resolves CONFIG with its overrides; warnings, and notes, go to standard error."""
    classes = classes_of_weights(arguments.config, getattr(arguments, "weights", None) or "")
    resolved = resolve(arguments.config, merged(classes, arguments.overrides))
    show_remarks(resolved, resolved.warnings, notes=notes)
    return resolved


def show_remarks(
    resolved: Resolved, warnings: Sequence[str], *, notes: bool = False, also_in: str = ""
) -> None:
    """Prints some remarks about a config to standard error, and what prints the others.

    Args:
        resolved: the config.
        warnings: the worst first.
        notes: print the reader's notes too, after the warnings.
        also_in: a file with the experiment, for one that was read of none.
    """
    remarks = [(warn, text) for text in warnings]
    remarks += [(note, text) for text in resolved.notes] if notes else []
    for show, text in remarks[:_MOST_REMARKS]:
        show(text)
    more = len(remarks) - _MOST_REMARKS
    if more > 0:
        command = f": `{shlex.join(_check_words(resolved, also_in))} --notes`"
        print(f"and {more} more{command}", file=sys.stderr)


def _check_words(resolved: Resolved, also_in: str) -> list[str]:
    """Returns the command that checks a config with the same overrides."""
    source, imports = Path(resolved.source), import_words(resolved.experiment)
    if not source.is_file():
        return ["stillbox", "check", also_in or "CONFIG", *imports]
    recipe = source.stem in recipe_names() and source == recipe_path(source.stem)
    named = (part for origin in resolved.origins.values() for part in references(origin))
    changes = {part.path: part.value for part in named if isinstance(part, Setting)}
    config = source.stem if recipe else str(source)
    return ["stillbox", "check", config, *imports, *set_words(changes)]


def import_words(experiment: Experiment) -> list[str]:
    """Returns the options that a command needs for an experiment with parts of the user."""
    return [word for name in imports_of(experiment) for word in ("--import", name)]


def warn(text: str) -> None:
    """Prints a possible fault to standard error."""
    print(f"warning: {text}", file=sys.stderr)


def print_json(content: object) -> None:
    """Prints content as JSON."""
    print(json_text(content))


def note(text: str) -> None:
    """Prints a remark that is no fault to standard error."""
    print(f"note: {text}", file=sys.stderr)


def say_next(*words: str | Path) -> None:
    """Prints the command that usually comes next to standard error; capital words are to be given.

    Standard output is for results.
    """
    print(f"next: {shlex.join(['stillbox', *map(str, words)])}", file=sys.stderr)


def parse_step(text: str) -> int | Literal["best", "latest"]:
    """Parses --step.

    Raises:
        UserError: it is neither a number nor one of the two words.
    """
    if text == "best":
        return "best"
    if text == "latest":
        return "latest"
    step = numerals.count(text)
    if step is not None:
        return step
    problem = f"{text[:20]!r} names no checkpoint"
    raise UserError(problem, where="--step", fix="give best, latest or a step's number")

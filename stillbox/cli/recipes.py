"""`stillbox recipes`: list the recipes with input, size, published score, memory and speed."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from stillbox.experiment.recipes.headers import RecipeHeader, read_headers
from stillbox.experiment.resolve import resolve

if TYPE_CHECKING:
    from rich.table import Table

_NOTE = (
    "AP in percent, as published or measured; memory is an estimate for the recipe's batch over "
    "all devices, a smaller train.batch_size needs less. The head of each recipe's file says on "
    "which data and how: --json has it all. stillbox config NAME prints a recipe."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints all recipes."""
    rows = [(header, _input(header.name)) for header in read_headers()]
    if arguments.json:
        content = [asdict(header) | {"input": list(sides)} for header, sides in rows]
        sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        return 0
    # Imported here: other verbs' --help needs no tables.
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_table(rows))
    console.print(_NOTE)
    return 0


def _input(name: str) -> tuple[int, int]:
    return resolve(name).experiment.model.resizer.input_size


def _table(rows: list[tuple[RecipeHeader, tuple[int, int]]]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in (
        "recipe",
        "input",
        "parameters",
        "AP",
        "memory",
        "batch",
        "hardware",
        "speed here",
    ):
        right = column in ("parameters", "memory", "batch")
        table.add_column(column, justify="right" if right else "left", no_wrap=column == "recipe")
    for header, (height, width) in rows:
        table.add_row(
            header.name,
            f"{height}x{width}",
            f"{header.parameters:g} M",
            header.ap,
            f"{header.memory:,.4g} GiB",
            f"{header.batch}",
            header.hardware or "-",
            header.speed or "-",
        )
    return table

"""`stillbox recipes`: list the recipes with input, size, published score, memory and speed."""

import argparse
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from stillbox.cli.arguments import print_json
from stillbox.experiment.recipes.headers import RecipeHeader, read_headers
from stillbox.experiment.resolve import resolve

_LINE = "{:{width}}  {:>9}  {:>10}  {:>9}  {:>5}  {}"
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
        print_json(content)
        return 0
    sys.stdout.write("\n".join((*_lines(rows), "", *textwrap.wrap(_NOTE, 100), "")))
    return 0


def _input(name: str) -> tuple[int, int]:
    return resolve(name).experiment.model.resizer.input_size


def _lines(rows: list[tuple[RecipeHeader, tuple[int, int]]]) -> Iterator[str]:
    """Yields a line of figures for each recipe, and one of hardware and speed where known."""
    longest = max(len(header.name) for header, _ in rows)
    yield _LINE.format("recipe", "input", "parameters", "memory", "batch", "AP", width=longest)
    for header, (height, width) in rows:
        yield _LINE.format(
            header.name,
            f"{height}x{width}",
            f"{header.parameters:g} M",
            f"{header.memory:,.4g} GiB",
            header.batch,
            header.ap,
            width=longest,
        )
        if header.hardware or header.speed:
            yield f"    {'; '.join(filter(None, (header.hardware, header.speed)))}"

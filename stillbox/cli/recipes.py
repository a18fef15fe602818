"""`stillbox recipes`: list the recipes with input, size, published score, memory and speed."""

import argparse
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from stillbox.cli.arguments import print_json
from stillbox.experiment.recipes import COCO, RecipeHeader, read_headers
from stillbox.experiment.resolve import resolve

_LINE = "{:{width}}  {:>9}  {:>10}  {:>9}  {:>5}  {}"
_NOTE = (
    "AP in percent, as published or measured; APs on different data do not compare; memory is an "
    "estimate for the recipe's batch over all devices, a smaller train.batch_size needs less. The "
    "header of each recipe's file says how; --json prints it. stillbox config NAME prints a recipe."
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
    sets = dict.fromkeys((COCO, *(header.data for header, _ in rows)))
    tables = ["\n".join(_table(rows, data)) for data in sets]
    sys.stdout.write("\n\n".join((*tables, "\n".join((*textwrap.wrap(_NOTE, 100), "")))))
    return 0


def _input(name: str) -> tuple[int, int]:
    return resolve(name).experiment.model.resizer.input_size


def _table(rows: list[tuple[RecipeHeader, tuple[int, int]]], data: str) -> Iterator[str]:
    """Yields a line of figures for each recipe of a data set, and one of hardware and speed."""
    longest = max(len(header.name) for header, _ in rows)
    head = ("recipe", "input", "parameters", "memory", "batch", f"AP on {data}")
    yield _LINE.format(*head, width=longest)
    for header, (height, width) in rows:
        if header.data != data:
            continue
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

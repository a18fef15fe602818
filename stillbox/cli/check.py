"""`stillbox check`: what is wrong with a config, before anything is spent on it."""

import argparse
import json
import sys

from rich.console import Console

from stillbox.cli.arguments import add_config
from stillbox.cli.bars import progress_bar


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "check",
        help="look for everything that is wrong with a config",
        description=f"{__doc__} Ends with 2 where something is refused, with 1 where there are "
        "warnings and --strict is given, otherwise with 0.",
    )
    add_config(parser)
    records = parser.add_mutually_exclusive_group()
    records.add_argument(
        "--records",
        dest="records",
        action="store_const",
        const="all",
        default="present",
        help="read every record and decode every image (default: some, where they are here)",
    )
    records.add_argument(
        "--no-records",
        dest="records",
        action="store_const",
        const="none",
        help="look at no record",
    )
    parser.add_argument("--strict", action="store_true", help="end with 1 where there are warnings")
    parser.add_argument("--notes", action="store_true", help="show all notes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings."""
    from stillbox.checking.config import check_config

    with progress_bar("records") as progress:
        check = check_config(
            arguments.config, arguments.overrides, records=arguments.records, on_record=progress
        )
    if arguments.json:
        sys.stdout.write(json.dumps(check.to_dict(), indent=2, ensure_ascii=False) + "\n")
    else:
        Console(highlight=False).print(check.render(all_notes=arguments.notes))
    if check.count("error"):
        return 2
    return 1 if arguments.strict and check.count("warning") else 0

"""`stillbox doctor`: examines this machine, or the files of a model directory or an export."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's argument."""
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="compare the files of a model directory, a checkpoint or an export with their "
        "checksums (default: examine this machine)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the examination; returns 1 if something is wrong."""
    if arguments.folder is None:
        from stillbox.checking.doctor import examine

        examination = examine()
    else:
        from stillbox.checking.doctor import examine_folder

        examination = examine_folder(arguments.folder)
    print(examination.text())
    return 1 if examination.problems else 0

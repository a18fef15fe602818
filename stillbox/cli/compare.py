"""`stillbox compare`: two models on the same images: scores, chance, speed, size.

Writes a page with the images that differ most, and its figures as JSON. With --fail-if-worse the
exit code is 1 if AP fell by more than that.
"""

import argparse
import sys
from pathlib import Path

from stillbox.cli.arguments import add_bool, add_count, add_option, add_overrides, print_json
from stillbox.cli.running import progress_bar
from stillbox.devices.announcing import say_aside

_MODEL = "a model directory, one of its checkpoints, a packed model, or the folder of an export"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    from stillbox.evaluation.comparison import SAMPLES

    parser.add_argument("first", metavar="FIRST", help=_MODEL)
    parser.add_argument("second", metavar="SECOND", help="the model that is compared with FIRST")
    about = (
        "folder of annotated images, or of records with a label map, to score on (default: the "
        "evaluation set of FIRST)"
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help=about)
    about = "folder for comparison.html and comparison.json, and for records of --data"
    add_option(parser, "--output", Path("comparison"), about, "FOLDER")
    add_count(parser, "--samples", SAMPLES, "draws of the images for an interval; 0: no intervals")
    about = "end with 1 if AP of SECOND is lower than AP of FIRST by more than this, such as 0.01"
    parser.add_argument("--fail-if-worse", type=float, metavar="AP", help=about)
    add_bool(parser, "--json", "print JSON instead of a table")
    add_overrides(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the comparison and writes its page."""
    from stillbox.comparing import compare

    with progress_bar("images") as progress:
        compared = compare(
            arguments.first,
            arguments.second,
            data=arguments.data,
            overrides=arguments.overrides,
            output=arguments.output,
            samples=arguments.samples,
            progress=progress,
            say=say_aside,
        )
    comparison = compared.comparison
    if arguments.json:
        print_json(comparison.to_dict())
    else:
        print(comparison.render())
        print(f"page: {compared.page}")
    limit = arguments.fail_if_worse
    if limit is None or not comparison.is_worse(limit):
        return 0
    print(f"worse by more than {limit:g}: {comparison.summary()}", file=sys.stderr)
    return 1

"""`stillbox check`: find everything that is wrong with a config, before a run.

Ends with 2 if something is refused or does not fit on the target, with 1 if there are warnings and
--strict is given, otherwise with 0.
"""

import argparse

from stillbox.cli.arguments import add_config, print_json
from stillbox.cli.running import progress_bar
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve
from stillbox.training.progress import PrintableConsole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_config(parser)
    records = parser.add_mutually_exclusive_group()
    records.add_argument(
        "--records",
        dest="records",
        action="store_const",
        const="all",
        default="present",
        help="read every record and decode every image (default: some, if they exist here)",
    )
    records.add_argument(
        "--no-records", dest="records", action="store_const", const="none", help="read no record"
    )
    parser.add_argument("--strict", action="store_true", help="end with 1 if there are warnings")
    parser.add_argument("--notes", action="store_true", help="show all notes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="compile the steps of training, evaluation and prediction for devices of another "
        "machine: a TPU slice such as v5e:2x4 or v3-8, or GPUs such as h200:8; or for cpu or cuda "
        "of this one; takes minutes",
    )
    parser.add_argument(
        "--find-batch",
        action="store_true",
        help="find the largest train.batch_size that fits on the target",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings, and the report of the target's compiler."""
    from stillbox.checking.config import check_config

    if arguments.find_batch and not arguments.target:
        what = "the search for a batch needs a target"
        raise UserError(what, where="--find-batch", fix="add --target v5e:2x4")
    target = None
    if arguments.target:
        from stillbox.checking.ahead_of_time.targets import find_target

        target = find_target(arguments.target)
    with progress_bar("records") as progress:
        check = check_config(
            arguments.config, arguments.overrides, records=arguments.records, on_record=progress
        )
    compiled = None
    if target is not None and not check.count("error"):
        from stillbox.checking.ahead_of_time.report import check_target

        read = resolve(arguments.config, arguments.overrides)
        compiled = check_target(read.experiment, target, find=arguments.find_batch, say=say_aside)
        check = check.with_findings(compiled.findings, read.origins)
    if arguments.json:
        content = check.to_dict()
        if compiled is not None:
            content["target"] = compiled.to_dict()
        print_json(content)
    else:
        console = PrintableConsole(highlight=False)
        # Words that are longer than a line continue on the next one, and are not cut.
        console.print(check.render(all_notes=arguments.notes), crop=False)
        if compiled is not None:
            console.print(compiled.render())
    if check.count("error") or (compiled is not None and not compiled.fits):
        return 2
    return 1 if arguments.strict and check.count("warning") else 0

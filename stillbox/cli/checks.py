"""Checks before a run: of configs, of anchors, of the machine."""

import argparse
import sys
from pathlib import Path

from stillbox.cli.arguments import (
    add_bool,
    add_config_argument,
    add_option,
    add_records,
    print_json,
    resolve_config,
    with_records,
)
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve
from stillbox.printing import json_text


def add_check(parser: argparse.ArgumentParser) -> None:
    """`stillbox check`: find everything that is wrong with a config, before a run.

    Ends with 2 if something is refused or does not fit on the target, with 1 if there are warnings
    and --strict is given, otherwise with 0.
    """
    add_config_argument(parser)
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
    add_bool(parser, "--strict", "end with 1 if there are warnings")
    add_bool(parser, "--notes", "show all notes")
    add_bool(parser, "--json", "print JSON")
    about = (
        "compile the steps of training, evaluation and prediction for devices of another "
        "machine: a TPU slice such as v5e:2x4 or v3-8, or GPUs such as h200:8; or for cpu or cuda "
        "of this one; takes minutes"
    )
    parser.add_argument("--target", metavar="NAME", help=about)
    add_bool(parser, "--find-batch", "find the largest train.batch_size that fits on the target")


def run_check(arguments: argparse.Namespace) -> int:
    """Prints the findings, and the report of the target's compiler."""
    from stillbox.checking.config import check_config
    from stillbox.cli.running import progress_bar
    from stillbox.devices.announcing import say_aside
    from stillbox.training.progress import PrintableConsole

    if arguments.find_batch and not arguments.target:
        problem = "the search for a batch needs a target"
        raise UserError(problem, where="--find-batch", fix="add --target v5e:2x4")
    target = None
    if arguments.target:
        from stillbox.checking.ahead_of_time.targets import find_target

        target = find_target(arguments.target)
    with progress_bar("records") as progress:
        check = check_config(
            arguments.config,
            arguments.overrides,
            records=arguments.records,
            machine=target.machine if target else None,
            on_record=progress,
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
        console.print(
            check.render(all_notes=arguments.notes, wording=arguments.wording), crop=False
        )
        if compiled is not None:
            console.print(compiled.render())
    if check.count("error") or (compiled is not None and not compiled.fits):
        return 2
    return 1 if arguments.strict and check.count("warning") else 0


def add_config(parser: argparse.ArgumentParser) -> None:
    """`stillbox config`: the resolved experiment, as YAML that is itself a CONFIG."""
    add_config_argument(parser)


def run_config(arguments: argparse.Namespace) -> int:
    """Prints the experiment."""
    from stillbox.experiment.yaml_config import to_yaml

    resolved = resolve_config(arguments, notes=True)
    print(to_yaml(resolved.experiment, resolved.origins), end="")
    return 0


def add_anchors(parser: argparse.ArgumentParser) -> None:
    """`stillbox anchors`: how well the anchors of a config cover the boxes of a data set."""
    add_config_argument(parser)
    add_records(parser)
    add_option(parser, "--limit", 5000, "most records to read, spread over the set; 0: all")
    about = "folder for anchors.png and anchors.json"
    add_option(parser, "--output", Path("anchors"), about, "DIR")
    add_bool(parser, "--json", "print JSON instead of tables")


def run_anchors(arguments: argparse.Namespace) -> int:
    """Prints the report and writes the picture."""
    import jax

    # Only shapes are computed; an accelerator may be in use by another program.
    jax.config.update("jax_platforms", "cpu")
    from stillbox.checking import anchors
    from stillbox.cli.running import progress_bar
    from stillbox.evaluation.charts import figure_png
    from stillbox.records.file_list import claim_files, refuse_others
    from stillbox.records.files import write_whole
    from stillbox.training.progress import PrintableConsole

    if arguments.limit < 0:
        raise UserError("a limit is not negative", where="--limit", fix="0 reads all records")
    experiment = with_records(resolve_config(arguments).experiment, arguments)
    picture = arguments.output / "anchors.png"
    refuse_others(arguments.output, (picture.name, "anchors.json"))
    with progress_bar("records") as progress:
        report = anchors.examine_anchors(experiment, limit=arguments.limit, on_record=progress)
    text = json_text(report.to_dict()) + "\n"
    claim_files(arguments.output, (picture.name, "anchors.json"))
    write_whole(arguments.output / "anchors.json", text.encode())
    write_whole(picture, figure_png(anchors.overlap_figure(report)))
    if arguments.json:
        sys.stdout.write(text)
        return 0
    console = PrintableConsole()
    for table in anchors.coverage_tables(report):
        console.print(table)
    for line in anchors.conclusions(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    print(f"picture: {picture}")
    return 0


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """`stillbox doctor`: examines this machine, or the files of a model directory or an export."""
    about = (
        "compare the files of a model directory, a checkpoint or an export with their "
        "checksums (default: examine this machine)"
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help=about)


def run_doctor(arguments: argparse.Namespace) -> int:
    """Prints the examination; returns 1 if something is wrong."""
    if arguments.folder is None:
        from stillbox.checking.doctor import examine

        examination = examine()
    else:
        from stillbox.checking.doctor import examine_folder

        examination = examine_folder(arguments.folder)
    print(examination.text())
    return 1 if examination.problems else 0

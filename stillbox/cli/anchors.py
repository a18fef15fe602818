"""`stillbox anchors`: how well the anchors of a config cover the boxes of a data set."""

import argparse
import sys
from pathlib import Path

from stillbox.cli.arguments import add_config, add_option, add_records, resolve_config, with_records
from stillbox.cli.running import progress_bar
from stillbox.errors import UserError
from stillbox.printing import json_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_config(parser)
    add_records(parser)
    about = "most records to read, spread over the set; 0: all"
    add_option(parser, "--limit", 5000, about)
    about = "folder for anchors.png and anchors.json"
    add_option(parser, "--output", Path("anchors"), about, "DIR")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(arguments: argparse.Namespace) -> int:
    """Prints the report and writes the picture."""
    import jax

    # Only shapes are computed; an accelerator may be in use by another program.
    jax.config.update("jax_platforms", "cpu")
    from stillbox.checking import anchors
    from stillbox.evaluation.charts import figure_png
    from stillbox.records.files import write_whole
    from stillbox.training.progress import PrintableConsole

    if arguments.limit < 0:
        raise UserError("a limit is not negative", where="--limit", fix="0 reads all records")
    experiment = with_records(resolve_config(arguments).experiment, arguments)
    with progress_bar("records") as progress:
        report = anchors.examine_anchors(experiment, limit=arguments.limit, on_record=progress)
    text = json_text(report.to_dict()) + "\n"
    write_whole(arguments.output / "anchors.json", text.encode())
    picture = arguments.output / "anchors.png"
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

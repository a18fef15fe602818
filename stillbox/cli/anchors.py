"""`stillbox anchors`: how well the anchors of a config cover the boxes of a data set."""

import argparse
import json
import sys
from pathlib import Path

from stillbox.cli.arguments import add_config, resolve_config
from stillbox.cli.bars import progress_bar
from stillbox.cli.records import add_records, with_records
from stillbox.errors import UserError


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "anchors", help="see how well anchors cover a data set", description=__doc__
    )
    add_config(parser)
    add_records(parser)
    parser.add_argument(
        "--limit",
        type=int,
        default=5000,
        help="look at no more records than this, from all over the set; 0: at all (default: 5000)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("anchors"),
        metavar="DIR",
        help="folder for anchors.png and anchors.json (default: anchors)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the report and writes the picture."""
    import jax
    from rich.console import Console

    # Shapes are all that is wanted of jax, and an accelerator may be busy with something better.
    jax.config.update("jax_platforms", "cpu")
    from stillbox.checking.anchor_page import conclusions, coverage_tables, overlap_figure
    from stillbox.checking.anchors import examine_anchors
    from stillbox.evaluation.curves import figure_png

    if arguments.limit < 0:
        raise UserError("a limit is not negative", where="--limit", fix="0 looks at all records")
    experiment = with_records(resolve_config(arguments).experiment, arguments)
    with progress_bar("records") as progress:
        report = examine_anchors(experiment, limit=arguments.limit, on_record=progress)
    arguments.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n"
    (arguments.output / "anchors.json").write_text(text, encoding="utf-8")
    picture = arguments.output / "anchors.png"
    picture.write_bytes(figure_png(overlap_figure(report)))
    if arguments.json:
        sys.stdout.write(text)
        return 0
    console = Console()
    for table in coverage_tables(report):
        console.print(table)
    for line in conclusions(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    print(f"picture: {picture}")
    return 0

"""`stillbox data`: convert annotations to records; check, count and show records."""

import argparse

from stillbox.cli.arguments import add_option, print_json
from stillbox.cli.bars import progress_bar
from stillbox.cli.data_arguments import add_common, label_map_of
from stillbox.cli.data_augmentations import add_augmentations, run_augmentations
from stillbox.cli.data_convert import ConvertParser, add_convert
from stillbox.cli.data_export import add_export, run_export
from stillbox.cli.data_scenes import add_scenes, run_scenes
from stillbox.cli.data_tile import add_tile, run_tile
from stillbox.training.console import PrintableConsole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verbs of `data`."""
    verbs = parser.add_subparsers(
        dest="data_verb", metavar="VERB", required=True, parser_class=ConvertParser
    )
    about = "annotations to TFRecords"
    convert = verbs.add_parser("convert", help=about, description=_describe("convert", about))
    add_convert(convert)
    for name, about, add, run in _VERBS:
        verb = verbs.add_parser(name, help=about, description=_describe(name, about))
        verb.set_defaults(run=run)
        add(verb)


def _describe(name: str, about: str) -> str:
    return f"`stillbox data {name}`: {about}."


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_records(parser)
    add_option(parser, "--max-boxes", 100, "most boxes of an image in a batch")
    add_option(parser, "--num-classes", 0, "classes of the model; 0: not checked")


def _add_records(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "records", nargs="+", help="TFRecord files or patterns; name@10 means its ten shards"
    )
    parser.add_argument("--label-map", help="label map of the records: a .pbtxt file, or coco")
    parser.add_argument(
        "--use-display-name", action="store_true", help="match class texts with display_name"
    )
    add_common(parser)


def run_check(args: argparse.Namespace) -> int:
    """Checks records; returns 1 if there are errors."""
    from stillbox.checking.data import check_records

    with progress_bar("records") as progress:
        check = check_records(
            args.records,
            label_map_of(args.label_map),
            use_display_name=args.use_display_name,
            max_boxes=args.max_boxes,
            num_classes=args.num_classes,
            workers=args.workers,
            on_record=progress,
        )
    if args.json:
        print_json(check.to_dict())
    else:
        console = PrintableConsole()
        if check.findings:
            console.print(check.table())
        console.print(*check.summary(), sep="\n", markup=False, highlight=False)
    return 0 if check.sound else 1


def run_stats(args: argparse.Namespace) -> int:
    """Counts classes, boxes and sizes in records."""
    from stillbox.checking.data_stats import records_stats

    with progress_bar("records") as progress:
        stats = records_stats(
            args.records,
            label_map_of(args.label_map),
            use_display_name=args.use_display_name,
            workers=args.workers,
            on_record=progress,
        )
    if args.json:
        print_json(stats.to_dict())
    else:
        for table in stats.tables():
            PrintableConsole().print(table)
    return 0


_VERBS = (
    ("check", "find errors in records", _add_check, run_check),
    ("stats", "count classes, boxes and sizes in records", _add_records, run_stats),
    ("augmentations", "show augmented images and boxes", add_augmentations, run_augmentations),
    ("export", "write records as YOLO, COCO JSON or Pascal VOC XML", add_export, run_export),
    ("scenes", "draw the synthetic data set of shapes", add_scenes, run_scenes),
    ("tile", "cut the images of records into overlapping tiles", add_tile, run_tile),
)
"""Name, help, function that adds arguments, and function that runs, of each verb but `convert`."""

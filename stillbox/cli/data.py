"""`stillbox data`: convert annotations to records; check, count and show records."""

import argparse

from stillbox.checking.data import check_records
from stillbox.checking.data_stats import records_stats
from stillbox.cli import data_augmentations, data_convert, data_export, data_scenes, data_tile
from stillbox.cli.arguments import add_option, print_json
from stillbox.cli.bars import progress_bar
from stillbox.cli.data_arguments import add_common, label_map_of
from stillbox.training.console import PrintableConsole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verbs of `data`."""
    verbs = parser.add_subparsers(
        dest="data_verb", metavar="VERB", required=True, parser_class=data_convert.ConvertParser
    )
    data_convert.add_arguments(
        verbs.add_parser(
            "convert", help="annotations to TFRecords", description=data_convert.__doc__
        )
    )
    check = verbs.add_parser("check", help="find errors in records")
    _add_records(check)
    add_option(check, "--max-boxes", 100, "most boxes of an image in a batch")
    add_option(check, "--num-classes", 0, "classes of the model; 0: not checked")
    check.set_defaults(run=run_check)
    stats = verbs.add_parser("stats", help="count classes, boxes and sizes in records")
    _add_records(stats)
    stats.set_defaults(run=run_stats)
    for name, module, about in (
        ("augmentations", data_augmentations, "show augmented images and boxes"),
        ("export", data_export, "write records as YOLO, COCO JSON or Pascal VOC XML"),
        ("scenes", data_scenes, "draw the synthetic data set of shapes"),
        ("tile", data_tile, "cut the images of records into overlapping tiles"),
    ):
        verb = verbs.add_parser(name, help=about, description=module.__doc__)
        verb.set_defaults(run=module.run)
        module.add_arguments(verb)


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

"""`stillbox data`: convert annotations to records; check, count and show records."""

import argparse
import sys
from pathlib import Path

from stillbox.cli.arguments import (
    add_bool,
    add_config_argument,
    add_count,
    add_option,
    add_records,
    print_json,
    resolve_config,
    with_records,
)
from stillbox.cli.data_audit import add_audit, run_audit
from stillbox.cli.data_convert import add_convert, label_map_of
from stillbox.cli.parsing import VerbParser
from stillbox.cli.running import progress_bar
from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.export import FORMS, export_records
from stillbox.records.file_list import claim_files, refuse_others
from stillbox.records.label_map import LabelMap
from stillbox.training.progress import PrintableConsole


def add_augmentations(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `data augmentations`."""
    add_config_argument(parser)
    add_records(parser)
    add_option(parser, "--output", Path("augmentations.png"), "the picture, .png or .jpg", "FILE")
    add_option(parser, "--images", 4, "number of images")
    shown = parser.add_mutually_exclusive_group()
    add_option(shown, "--epochs", 5, "number of epochs, from the first")
    about = (
        "show each operation of AutoAugment at this level, 0 to 10, instead of the config's "
        "augmentations"
    )
    shown.add_argument("--operations", type=float, metavar="LEVEL", help=about)


def run_augmentations(arguments: argparse.Namespace) -> int:
    """Writes the picture."""
    from stillbox.checking.augmentation_sheet import epochs_sheet, operations_sheet
    from stillbox.evaluation.pictures import save_picture
    from stillbox.experiment.schema import AutoAugment
    from stillbox.inputs.dataset import open_dataset

    _check_ranges(arguments)
    output: Path = arguments.output
    refuse_others(output.parent, [output.name])
    experiment = with_records(resolve_config(arguments).experiment, arguments)
    data, steps = experiment.data, experiment.train.augmentations
    dataset = open_dataset(data, data.train, experiment.model)
    if arguments.operations is not None:
        chosen = next((step for step in steps if isinstance(step, AutoAugment)), AutoAugment())
        picture = operations_sheet(
            dataset,
            seed=data.seed,
            images=arguments.images,
            level=arguments.operations,
            contrast=chosen.contrast,
        )
    else:
        picture = epochs_sheet(
            dataset, steps, seed=data.seed, images=arguments.images, epochs=arguments.epochs
        )
    claim_files(output.parent, [output.name])
    print(f"picture: {save_picture(picture, output)}")
    return 0


def _check_ranges(arguments: argparse.Namespace) -> None:
    for option in ("images", "epochs"):
        if getattr(arguments, option) < 1:
            raise UserError("there is nothing to show", where=f"--{option}", fix="give 1 or more")
    level = arguments.operations
    if level is not None and not 0 <= level <= 10:
        raise UserError(f"there is no level {level:g}", where="--operations", fix="give 0 to 10")


def add_export(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `data export`."""
    parser.add_argument("form", choices=sorted(FORMS), help="format to write")
    parser.add_argument("records", nargs="+", metavar="RECORDS", help="TFRecord files or patterns")
    parser.add_argument(
        "--label-map", required=True, help="label map of the records: a .pbtxt file, or coco"
    )
    _add_display_name(parser)
    parser.add_argument("--output", required=True, help="folder of images and annotations")
    parser.add_argument("--split", default="train", help="name of the set (default: train)")


def run_export(args: argparse.Namespace) -> int:
    """Writes images and annotations."""
    label_map = LabelMap.from_file(args.label_map)
    with progress_bar("images") as progress:
        done = export_records(
            args.records,
            label_map,
            args.output,
            args.form,
            split=args.split,
            use_display_name=args.use_display_name,
            on_image=progress,
        )
    for problem in done.problems:
        print(f"note: {problem}")
    print(f"{args.output}: {count_text(done.images, 'image')} and {count_text(done.boxes, 'box')}")
    return 0


def add_scenes(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `data scenes`."""
    parser.add_argument("--output", required=True, type=Path, help="folder of the data set")
    add_option(parser, "--train", 600, "training scenes")
    add_option(parser, "--val", 100, "held-out scenes")
    add_count(parser, "--seed", 0, "of the random scenes")
    add_bool(parser, "--overwrite", "replace an existing data set")


def run_scenes(arguments: argparse.Namespace) -> int:
    """Draws the scenes and prints a summary."""
    from stillbox.records.scenes import SceneSet, write_scenes

    def describe(name: str, scenes: SceneSet) -> str:
        boxes = ", ".join(f"{count} {label}" for label, count in scenes.boxes.items())
        return (
            f"{name}: {count_text(scenes.images, 'scene')}, {scenes.empty} of them empty; {boxes}"
        )

    print("drawing scenes", file=sys.stderr)
    written = write_scenes(
        arguments.output,
        seed=arguments.seed,
        train=arguments.train,
        val=arguments.val,
        overwrite=arguments.overwrite,
    )
    print(describe("train", written.train))
    print(describe("val", written.val))
    print(f"records, images and annotations are in {arguments.output}")
    return 0


def add_tile(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `data tile`."""
    parser.add_argument("records", nargs="+", help="TFRecord files or patterns")
    parser.add_argument("--tile", required=True, type=int, metavar="PIXELS", help="side of a tile")
    add_option(parser, "--overlap", 0.2, "share of a tile that its neighbour covers too", "SHARE")
    about = "least share of a box's area that a tile with it shows"
    add_option(parser, "--min-visible", 0.1, about, "SHARE")
    parser.add_argument("--output", required=True, type=Path, help="folder of the new records")
    parser.add_argument("--name", default="tiles", help="name of the new set (default: tiles)")
    parser.add_argument(
        "--label-map",
        help="label map of the records: a .pbtxt file, or coco (default: label_map.pbtxt beside "
        "them)",
    )
    _add_display_name(parser)
    add_option(parser, "--shards", 0, "files; 0: as many as the records have")
    parser.add_argument("--bad-records", choices=("drop", "fail"), default="drop")
    add_bool(parser, "--skip-tiles-without-boxes", "leave background tiles out")
    add_bool(parser, "--overwrite", "replace a set of this name")
    add_count(parser, "--workers", 0, "threads; 0: one for each core")


def run_tile(arguments: argparse.Namespace) -> int:
    """Writes the tiles and prints their numbers."""
    from stillbox.records.tiling import TileOptions, tile_records

    options = TileOptions(
        tile=arguments.tile,
        overlap=arguments.overlap,
        min_visible=arguments.min_visible,
        skip_tiles_without_boxes=arguments.skip_tiles_without_boxes,
    )
    with progress_bar("records") as progress:
        report = tile_records(
            arguments.records,
            arguments.output,
            arguments.name,
            options,
            label_map=label_map_of(arguments.label_map),
            use_display_name=arguments.use_display_name,
            shards=arguments.shards,
            overwrite=arguments.overwrite,
            bad_records=arguments.bad_records,
            workers=arguments.workers,
            on_record=progress,
        )
    sys.stdout.write(report.to_text())
    print(f"the tiles are in {arguments.output}")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verbs of `data`."""
    verbs = parser.add_subparsers(
        dest="data_verb", metavar="VERB", required=True, parser_class=VerbParser
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
    add_count(parser, "--num-classes", 0, "classes of the model; 0: not checked")
    about = "write a page with the findings and with images and their boxes as stored"
    parser.add_argument("--page", type=Path, metavar="FILE", help=about)


def _add_records(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "records", nargs="+", help="TFRecord files or patterns; name@10 means its ten shards"
    )
    parser.add_argument("--label-map", help="label map of the records: a .pbtxt file, or coco")
    _add_display_name(parser)
    add_count(parser, "--workers", 0, "threads; 0: one for each core")
    add_bool(parser, "--json", "print JSON instead of tables")


def _add_display_name(parser: argparse.ArgumentParser) -> None:
    add_bool(parser, "--use-display-name", "match class texts with display_name")


def run_check(args: argparse.Namespace) -> int:
    """Checks records; returns 1 if there are errors."""
    from stillbox.checking.data import check_records
    from stillbox.checking.data_page import write_records_page

    if args.page:
        refuse_others(args.page.parent, [args.page.name])
    label_map = label_map_of(args.label_map)
    with progress_bar("records") as progress:
        check = check_records(
            args.records,
            label_map,
            use_display_name=args.use_display_name,
            num_classes=args.num_classes,
            workers=args.workers,
            on_record=progress,
        )
    if args.page:
        claim_files(args.page.parent, [args.page.name])
        write_records_page(
            args.records,
            label_map,
            args.page,
            use_display_name=args.use_display_name,
            findings=check.findings,
        )
    if args.json:
        print_json(check.to_dict())
    else:
        console = PrintableConsole(highlight=False)
        # Words that are longer than a line continue on the next one, and are not cut.
        if check.findings:
            console.print(check.render(args.wording), crop=False)
        console.print(check.render_summary(), crop=False)
        if args.page:
            print(f"page: {args.page}")
        elif check.findings:
            print("Images with their boxes as stored: add --page check.html")
    return 1 if check.count("error") else 0


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
    ("audit", "find labels that are probably wrong", add_audit, run_audit),
    ("augmentations", "show augmented images and boxes", add_augmentations, run_augmentations),
    ("export", "write records as YOLO, COCO JSON or Pascal VOC XML", add_export, run_export),
    ("scenes", "draw the synthetic data set of shapes", add_scenes, run_scenes),
    ("tile", "cut the images of records into overlapping tiles", add_tile, run_tile),
)
"""Name, help, function that adds arguments, and function that runs, of each verb but `convert`."""

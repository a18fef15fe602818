"""`stillbox data convert FOLDER`: annotated images in any known format to records."""

import argparse
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path

from stillbox.cli.arguments import add_option, print_json
from stillbox.cli.bars import progress_bar
from stillbox.cli.data_arguments import add_conversion, label_map_of
from stillbox.printing import count_text, printable_line
from stillbox.records.conversion_job import ConversionOptions
from stillbox.records.converted_folder import ConvertedFolder
from stillbox.records.folder import Progress, convert_folder

ABOUT_FOLDER = """`stillbox data convert FOLDER`: annotated images in any known format to records.

The format is recognised by the content of the files. `convert coco` and `convert voc` read one set
at a time from the files that they name.
"""


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `convert FOLDER`."""
    parser.add_argument("folder", metavar="FOLDER", help="folder of images and annotations")
    parser.add_argument("--format", default="", help="the format, if FOLDER has several")
    add_option(
        parser,
        "--validation-share",
        0.2,
        "share of the images that validate, if FOLDER states no split",
    )
    add_option(parser, "--seed", 0, "of the split, if FOLDER states none")
    add_conversion(parser)


def run_folder(args: argparse.Namespace) -> int:
    """Converts a folder."""
    options = {field.name: getattr(args, field.name) for field in fields(ConversionOptions)}
    with ExitStack() as stack:
        converted = convert_folder(
            args.folder,
            args.output,
            validation_share=args.validation_share,
            seed=args.seed,
            format=args.format,
            label_map=label_map_of(args.label_map),
            options=ConversionOptions(**options),
            bad_records=args.bad_records,
            bad_boxes=args.bad_boxes,
            on_image=_bars(stack),
        )
    if args.json:
        print_json(asdict(converted))
    else:
        _show(converted)
    return 0


def _bars(stack: ExitStack) -> Progress:
    """Returns the callback that shows a bar for each stage, open until the stack closes."""
    bars = {}

    def show(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            stack.close()  # rich has one live bar at a time
            bars[stage] = stack.enter_context(progress_bar(stage))
        bars[stage](done, total)

    return show


def _show(converted: ConvertedFolder) -> None:
    print(f"format: {converted.title}")
    print(f"split: {converted.split}")
    shown = printable_line(", ".join(converted.classes[:20]))
    print(f"classes: {len(converted.classes)}: {shown}", end="")
    print(f" and {len(converted.classes) - 20} more" if len(converted.classes) > 20 else "")
    for name, records, images in (
        ("train", converted.train, converted.train_images),
        ("validation", converted.validation, converted.validation_images),
        ("test", converted.test, converted.test_images),
    ):
        if records:
            print(f"{name}: {count_text(images, 'image')}: {records}")
    print(f"boxes: {converted.boxes:,}")
    for problem in converted.problems:
        print(f"note: {problem}")
    print(f"label map: {converted.label_map}")
    print(
        f"report: {Path(converted.report)}" + " (unchanged since the last time)" * converted.reused
    )

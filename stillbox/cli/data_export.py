"""`stillbox data export`: records in another format of annotations, with their images."""

import argparse

from stillbox.cli.bars import progress_bar
from stillbox.printing import count_text
from stillbox.records.export import FORMS, export_records
from stillbox.records.label_map import LabelMap


def add_export(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `data export`."""
    parser.add_argument("form", choices=sorted(FORMS), help="format to write")
    parser.add_argument("records", nargs="+", metavar="RECORDS", help="TFRecord files or patterns")
    parser.add_argument(
        "--label-map", required=True, help="label map of the records: a .pbtxt file, or coco"
    )
    parser.add_argument("--output", required=True, help="folder of images and annotations")
    parser.add_argument("--split", default="train", help="name of the set (default: train)")


def run_export(args: argparse.Namespace) -> int:
    """Writes images and annotations."""
    label_map = LabelMap.from_file(args.label_map)
    with progress_bar("images") as progress:
        done = export_records(
            args.records, label_map, args.output, args.form, split=args.split, on_image=progress
        )
    for problem in done.problems:
        print(f"note: {problem}")
    print(f"{args.output}: {count_text(done.images, 'image')} and {count_text(done.boxes, 'box')}")
    return 0

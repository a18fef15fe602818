"""Arguments that verbs of `stillbox data` share."""

import argparse

from stillbox.cli.arguments import add_option
from stillbox.records.label_map import LabelMap


def add_common(parser: argparse.ArgumentParser) -> None:
    """Adds --workers and --json."""
    add_option(parser, "--workers", 0, "threads; 0: one for each core")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def add_conversion(parser: argparse.ArgumentParser) -> None:
    """Adds the options that all conversions share."""
    parser.add_argument("--output", required=True, help="folder for shards, label map and report")
    parser.add_argument("--label-map", help="use the ids of this label map: a .pbtxt file, or coco")
    add_option(parser, "--shards", 0, "files; 0: one for 1,000 images")
    parser.add_argument(
        "--shard-names",
        choices=("record", "tfrecord"),
        default="record",
        help="file names train.record-00000-of-00010, or train-00000-of-00010.tfrecord as in "
        "tpu/models and MLPerf",
    )
    parser.add_argument("--bad-records", choices=("drop", "fail"), default="drop")
    parser.add_argument("--bad-boxes", choices=("fix", "drop", "fail"), default="fix")
    parser.add_argument(
        "--exif",
        choices=("auto", "upright", "stored"),
        default="auto",
        help="frame of the boxes of images with a rotation tag; auto: by the annotated size",
    )
    parser.add_argument(
        "--skip-images-without-boxes", action="store_true", help="leave background images out"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a set of this name")
    add_common(parser)


def label_map_of(path: str | None) -> LabelMap | None:
    """Returns the label map of --label-map."""
    return LabelMap.from_file(path) if path else None

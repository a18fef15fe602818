"""`stillbox data tile`: cut the images of records into overlapping tiles."""

import argparse
import sys
from pathlib import Path

from stillbox.cli.arguments import add_option
from stillbox.cli.bars import progress_bar


def add_tile(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `data tile`."""
    parser.add_argument("records", nargs="+", help="TFRecord files or patterns")
    parser.add_argument("--tile", required=True, type=int, metavar="PIXELS", help="side of a tile")
    about = "share of a tile that its neighbour covers too"
    add_option(parser, "--overlap", 0.2, about, "SHARE")
    about = "least share of a box's area that a tile with it shows"
    add_option(parser, "--min-visible", 0.1, about, "SHARE")
    parser.add_argument("--output", required=True, type=Path, help="folder of the new records")
    parser.add_argument("--name", default="tiles", help="name of the new set (default: tiles)")
    parser.add_argument(
        "--label-map",
        help="label map of the records: a .pbtxt file, or coco (default: label_map.pbtxt beside "
        "them)",
    )
    add_option(parser, "--shards", 0, "files; 0: as many as the records have")
    parser.add_argument("--bad-records", choices=("drop", "fail"), default="drop")
    parser.add_argument(
        "--skip-tiles-without-boxes", action="store_true", help="leave background tiles out"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a set of this name")
    add_option(parser, "--workers", 0, "threads; 0: one for each core")


def run_tile(arguments: argparse.Namespace) -> int:
    """Writes the tiles and prints their numbers."""
    from stillbox.records.label_map import LabelMap
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
            label_map=LabelMap.from_file(arguments.label_map) if arguments.label_map else None,
            shards=arguments.shards,
            overwrite=arguments.overwrite,
            bad_records=arguments.bad_records,
            workers=arguments.workers,
            on_record=progress,
        )
    sys.stdout.write(report.to_text())
    print(f"the tiles are in {arguments.output}")
    return 0

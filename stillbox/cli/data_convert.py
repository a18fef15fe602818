"""`stillbox data convert`: annotations to records, of a folder, of COCO JSON or of VOC XML."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

from stillbox.cli.arguments import (
    add_bool,
    add_count,
    add_imports,
    add_option,
    add_resources,
    parse_resources,
    print_json,
)
from stillbox.cli.overrides import set_words
from stillbox.cli.parsing import VerbParser
from stillbox.cli.running import progress_bar
from stillbox.errors import UserError
from stillbox.experiment.imports import import_entry_points
from stillbox.image_kind import RGB_8
from stillbox.printing import count_text, printable_line
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.box_numbers import BoxNumbers
from stillbox.records.class_counts import ClassCount, describe_rare, short_table
from stillbox.records.conversion import (
    LABEL_MAP_NAME,
    ConversionOptions,
    brightest_of,
    convert,
)
from stillbox.records.converted import ConvertedFolder
from stillbox.records.folder import ConversionView, convert_folder
from stillbox.records.folder_content import FolderOptions, StageProgress
from stillbox.records.formats.coco import read_coco
from stillbox.records.formats.registry import all_formats
from stillbox.records.formats.voc import read_image_set, read_voc
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import OrderedMap, ordered_map
from stillbox.records.problems import ConversionLog
from stillbox.records.tfrecord import shard_name

ONE_SET = ("coco", "voc")
"""Formats with a verb of their own, which converts one set of named files."""


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
    about = "unit and layout of boxes that are not as the format says, as pixels:corners"
    parser.add_argument("--box-numbers", default="", metavar="NUMBERS", help=about)
    about = "frame of the boxes of images with a rotation tag; auto: by the annotated size"
    parser.add_argument("--exif", choices=("auto", "upright", "stored"), default="auto", help=about)
    add_bool(parser, "--skip-images-without-boxes", "leave background images out")
    add_bool(parser, "--keep-bits", "keep all bits of images with more than 8, for model.pixels")
    add_bool(parser, "--overwrite", "replace a set of this name")
    _add_engine(parser)
    add_imports(parser)
    add_bool(parser, "--json", "print JSON instead of tables")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    about = "ray: on a Ray cluster, or a local one if RAY_ADDRESS is not set (default: local)"
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=about)
    about = (
        "threads, 0: one for each core; or tasks of --engine ray at a time, 0: as many as have room"
    )
    add_count(parser, "--workers", 0, about)
    add_resources(parser, "one CPU")


def _engine(args: argparse.Namespace) -> AbstractContextManager[OrderedMap]:
    """Returns a context with what applies functions to the images."""
    if args.engine == "ray":
        from stillbox.scaling.ray_map import ray_map

        resources = parse_resources(args.resources)
        return ray_map(workers=args.workers, resources=resources, imports=args.imports)
    if args.resources:
        problem = "--resources are what a worker of --engine ray takes"
        raise UserError(problem, fix="give --engine ray too, or leave them out")
    return nullcontext(partial(ordered_map, workers=args.workers))


def label_map_of(path: str | None) -> LabelMap | None:
    """Returns the label map of --label-map."""
    return LabelMap.from_file(path) if path else None


def _options(args: argparse.Namespace) -> ConversionOptions:
    return ConversionOptions(
        **{field.name: getattr(args, field.name) for field in fields(ConversionOptions)}
    )


ABOUT_FOLDER = """`stillbox data convert FOLDER`: annotated images in any known format to records.

The format is recognised by the content of the files. `convert coco` and `convert voc` read one set
at a time from the files that they name.
"""


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `convert FOLDER`."""
    parser.add_argument("folder", metavar="FOLDER", help="folder of images and annotations")
    parser.add_argument("--format", default="", help="the format, if FOLDER has several")
    about = "share of the images that validate, if FOLDER states no split"
    add_option(parser, "--validation-share", 0.2, about)
    add_count(parser, "--seed", 0, "of the split, if FOLDER states none")
    add_conversion(parser)


def run_folder(args: argparse.Namespace) -> int:
    """Converts a folder."""
    from stillbox.checking.data_page import write_conversion_page

    import_entry_points("stillbox.parts")
    with _engine(args) as engine, ExitStack() as stack:
        converted = convert_folder(
            args.folder,
            args.output,
            FolderOptions(
                format=args.format,
                label_map=label_map_of(args.label_map),
                box_numbers=args.box_numbers,
                bad_records=args.bad_records,
                bad_boxes=args.bad_boxes,
                validation_share=args.validation_share,
                seed=args.seed,
            ),
            options=_options(args),
            engine=engine,
            on_image=_bars(stack),
            write_page=write_conversion_page,
        )
    if args.json:
        print_json(asdict(converted))
    else:
        _show(converted)
    return 0


def _bars(stack: ExitStack) -> StageProgress:
    """Returns the callback that shows a bar for each stage, open until the stack closes."""
    bars = {}

    def show(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            stack.close()  # rich has one live bar at a time
            bars[stage] = stack.enter_context(progress_bar(stage))
        bars[stage](done, total)

    return show


def _show(converted: ConvertedFolder) -> None:
    for name in converted.without_boxes:
        print(f"{name} has no box that can be used")
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
    for line in short_table(converted.class_counts):
        print(line)
    _note_rare(converted.class_counts)
    if converted.image_kind != RGB_8:
        words = " ".join(set_words(converted.image_kind.settings))
        print(f"images: {converted.image_kind}; {words} trains on them so")
    for problem in converted.problems:
        print(f"note: {problem}")
    print(f"label map: {converted.label_map}")
    print(
        f"report: {Path(converted.report)}" + " (unchanged since the last time)" * converted.reused
    )
    if converted.page:
        print(f"page: {converted.page}")


def _note_rare(counts: Sequence[ClassCount]) -> None:
    """Prints what can be done about a rare class, if there is one."""
    if rare := describe_rare(counts):
        way = "`stillbox train --data` draws its images more often (data.train.repeat_threshold)"
        print(f"note: {rare}; {way}")


def add_convert(parser: VerbParser) -> None:
    """Adds the arguments of `convert`."""
    formats = parser.add_subparsers(
        dest="data_format", required=True, metavar="FOLDER | coco | voc"
    )
    parser.default_verb = "FOLDER"
    folder = formats.add_parser("FOLDER", help="any known format", description=ABOUT_FOLDER)
    add_folder(folder)
    folder.set_defaults(run=run_folder)
    _add_coco(formats.add_parser("coco", help="COCO JSON of object instances"))
    _add_voc(formats.add_parser("voc", help="Pascal VOC XML"))


def _add_coco(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", required=True, help="folder of the images")
    parser.add_argument("--annotations", required=True, help="instances_*.json")
    add_bool(parser, "--renumber", "ids 1, 2, ... instead of the category ids")
    _add_output(parser)
    parser.set_defaults(run=run_coco)


def _add_voc(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", help="folder with Annotations, JPEGImages and ImageSets")
    parser.add_argument("--set", help="image set, as train for ImageSets/Main/train.txt")
    parser.add_argument("--annotations", help="folder of the XML files (default: ROOT/Annotations)")
    parser.add_argument("--images", help="folder of the images (default: ROOT/JPEGImages)")
    _add_output(parser)
    parser.set_defaults(run=run_voc)


def _add_output(parser: argparse.ArgumentParser) -> None:
    add_conversion(parser)
    parser.add_argument("--name", help="name of the set, as train")


def run_coco(args: argparse.Namespace) -> int:
    """Converts COCO JSON."""
    log = ConversionLog(args.bad_records, args.bad_boxes)
    items, label_map = read_coco(
        args.annotations,
        args.images,
        log,
        label_map=label_map_of(args.label_map),
        renumber=args.renumber,
        chosen=_chosen(args),
    )
    return _convert(args, args.name or Path(args.annotations).stem, items, label_map, log)


def _chosen(args: argparse.Namespace) -> BoxNumbers | None:
    return BoxNumbers.from_name(args.box_numbers) if args.box_numbers else None


def run_voc(args: argparse.Namespace) -> int:
    """Converts VOC XML."""
    if not args.root and not (args.annotations and args.images):
        problem = "the folder of the VOC data is not given"
        raise UserError(problem, fix="give --root, or --annotations and --images for a flat layout")
    if args.set and not args.root:
        raise UserError("--set needs --root, the folder with ImageSets/Main", fix="give --root too")
    root = Path(args.root or "")
    log = ConversionLog(args.bad_records, args.bad_boxes)
    items, label_map = read_voc(
        args.annotations or root / "Annotations",
        args.images or root / "JPEGImages",
        log,
        stems=read_image_set(root, args.set) if args.set else None,
        label_map=label_map_of(args.label_map),
        chosen=_chosen(args),
    )
    return _convert(args, args.name or args.set or "all", items, label_map, log)


def _convert(
    args: argparse.Namespace,
    name: str,
    items: list[AnnotatedImage],
    label_map: LabelMap,
    log: ConversionLog,
) -> int:
    from stillbox.checking.data_page import write_conversion_page

    with _engine(args) as engine, progress_bar("images") as progress:
        brightest = brightest_of(items, engine)
        report = convert(
            items,
            label_map,
            args.output,
            name,
            options=_options(args),
            log=log,
            on_image=progress,
            engine=engine,
            brightest=brightest,
        )
    view = ConversionView(
        title=all_formats()[args.data_format].title,
        folder=str(args.annotations or args.root),
        split=f"one set, {name}",
        label_map=label_map,
        items=items,
        splits=[name] * len(items),
        problems=report.problems,
        options=_options(args),
        brightest=brightest,
    )
    page = Path(args.output) / f"{name}.report.html"
    write_conversion_page(view, page)
    if args.json:
        print_json(asdict(report))
        return 0
    sys.stdout.write(report.to_text())
    _note_rare(report.class_counts)
    output, shards = Path(args.output), f"{len(report.files):05d}"
    for label, path in (
        ("records", output / shard_name(name, "?????", shards, args.shard_names)),
        ("label map", output / LABEL_MAP_NAME),
        ("report", output / f"{name}.report.json"),
        ("page", page),
    ):
        print(f"{label}: {path}")
    return 0

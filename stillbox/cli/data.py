"""`stillbox data`: convert annotations to records; check, count and show records."""

import argparse
import json
import shlex
import sys
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

from rich.console import Console

from stillbox.checking.data import check_records
from stillbox.checking.data_stats import records_stats
from stillbox.cli import data_augmentations, data_scenes
from stillbox.cli.arguments import add_option
from stillbox.cli.bars import progress_bar
from stillbox.errors import UserError
from stillbox.records.annotated import AnnotatedImage
from stillbox.records.coco import read_coco
from stillbox.records.conversion import LABEL_MAP_NAME, convert, convert_on_threads
from stillbox.records.conversion_job import ConversionOptions, Engine
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from stillbox.records.tfrecord import shard_name
from stillbox.records.voc import read_image_set, read_voc


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verbs of `data`."""
    verbs = parser.add_subparsers(dest="data_verb", required=True)
    convert_parser = verbs.add_parser("convert", help="COCO JSON or VOC XML to TFRecords")
    formats = convert_parser.add_subparsers(dest="data_format", required=True)
    _add_coco(formats.add_parser("coco", help="COCO JSON of object instances"))
    _add_voc(formats.add_parser("voc", help="Pascal VOC XML"))
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
        ("scenes", data_scenes, "draw the synthetic data set of shapes"),
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
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--workers", 0, "threads; 0: one for each core")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _add_coco(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", required=True, help="folder of the images")
    parser.add_argument("--annotations", required=True, help="instances_*.json")
    parser.add_argument(
        "--renumber", action="store_true", help="ids 1, 2, ... in place of the category ids"
    )
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
    parser.add_argument("--output", required=True, help="folder for shards, label map and report")
    parser.add_argument("--name", help="name of the set, as train")
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
    parser.add_argument(
        "--engine",
        choices=("threads", "beam"),
        default="threads",
        help="beam: as a pipeline of Apache Beam, with the same records (default: threads)",
    )
    parser.add_argument(
        "--beam-options",
        metavar="OPTIONS",
        help="options of Beam in one word: --beam-options='--runner=SparkRunner --parallelism=8'",
    )
    _add_common(parser)


def run_coco(args: argparse.Namespace) -> int:
    """Converts COCO JSON."""
    log = ConversionLog(args.bad_records, args.bad_boxes)
    items, label_map = read_coco(
        args.annotations,
        args.images,
        log,
        label_map=_label_map(args.label_map),
        renumber=args.renumber,
    )
    return _convert(args, args.name or Path(args.annotations).stem, items, label_map, log)


def run_voc(args: argparse.Namespace) -> int:
    """Converts VOC XML."""
    if not args.root and not (args.annotations and args.images):
        raise UserError(
            "the folder of the VOC data is not given",
            fix="give --root, or --annotations and --images for a flat layout",
        )
    if args.set and not args.root:
        raise UserError("--set needs --root, the folder with ImageSets/Main", fix="give --root too")
    root = Path(args.root or "")
    log = ConversionLog(args.bad_records, args.bad_boxes)
    items, label_map = read_voc(
        args.annotations or root / "Annotations",
        args.images or root / "JPEGImages",
        log,
        stems=read_image_set(root, args.set) if args.set else None,
        label_map=_label_map(args.label_map),
    )
    return _convert(args, args.name or args.set or "all", items, label_map, log)


def _convert(
    args: argparse.Namespace,
    name: str,
    items: list[AnnotatedImage],
    label_map: LabelMap,
    log: ConversionLog,
) -> int:
    options = {field.name: getattr(args, field.name) for field in fields(ConversionOptions)}
    engine = _engine(args)
    with progress_bar("images") as progress:
        report = convert(
            items,
            label_map,
            args.output,
            name,
            options=ConversionOptions(**options),
            log=log,
            on_image=progress,
            engine=engine,
        )
    if args.json:
        _print_json(asdict(report))
        return 0
    sys.stdout.write(report.to_text())
    output, shards = Path(args.output), f"{len(report.files):05d}"
    for label, path in (
        ("records", output / shard_name(name, "?????", shards, args.shard_names)),
        ("label map", output / LABEL_MAP_NAME),
        ("report", output / f"{name}.report.json"),
    ):
        print(f"{label}: {path}")
    return 0


def _engine(args: argparse.Namespace) -> Engine:
    """Returns the engine of the conversion.

    Raises:
        UserError: an option belongs to the other engine.
    """
    if args.engine == "threads":
        if args.beam_options is not None:
            raise UserError("--beam-options needs --engine beam", fix="give --engine beam too")
        return convert_on_threads
    if args.workers:
        raise UserError(
            "--workers counts threads, and Beam has its own workers",
            fix="leave it out, or give Beam's option, as "
            "--beam-options='--direct_num_workers=4 --direct_running_mode=multi_processing'",
        )
    from stillbox.scaling.beam import convert_with_beam

    return partial(convert_with_beam, options=shlex.split(args.beam_options or ""))


def run_check(args: argparse.Namespace) -> int:
    """Checks records; returns 1 if there are errors."""
    with progress_bar("records") as progress:
        check = check_records(
            args.records,
            _label_map(args.label_map),
            use_display_name=args.use_display_name,
            max_boxes=args.max_boxes,
            num_classes=args.num_classes,
            workers=args.workers,
            on_record=progress,
        )
    if args.json:
        _print_json(check.to_dict())
    else:
        console = Console()
        if check.findings:
            console.print(check.table())
        console.print(*check.summary(), sep="\n", markup=False, highlight=False)
    return 0 if check.sound else 1


def run_stats(args: argparse.Namespace) -> int:
    """Counts classes, boxes and sizes in records."""
    with progress_bar("records") as progress:
        stats = records_stats(
            args.records,
            _label_map(args.label_map),
            use_display_name=args.use_display_name,
            workers=args.workers,
            on_record=progress,
        )
    if args.json:
        _print_json(stats.to_dict())
    else:
        for table in stats.tables():
            Console().print(table)
    return 0


def _label_map(path: str | None) -> LabelMap | None:
    return LabelMap.from_file(path) if path else None


def _print_json(content: object) -> None:
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")

"""`stillbox predict`: detections in images and videos, as JSON and drawn.

With --engine ray: in images, on the machines of a Ray cluster, as a Parquet table.
"""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillbox import numerals
from stillbox.cli.arguments import add_bool, add_option, add_profile
from stillbox.cli.running import add_model, model_arguments, progress_bar, say_next_with_model
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.evaluation.tiling import Tiling
from stillbox.predicting.selection import CLASSES_PER_OBJECT, IOU, MIN_SCORE, Selection
from stillbox.printing import count_text
from stillbox.records.export import FORMS
from stillbox.records.tile_grid import LEAST_TILE

if TYPE_CHECKING:
    from stillbox.predicting.predictor import Predictor

_MOST_CAMERAS = 9999
_CAMERA = "webcam:"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_model(parser, "best, latest or a number")
    about = (
        "images, videos, folders, patterns such as 'photos/**/*.jpg', or webcam:0; with "
        "--engine ray also patterns such as 's3://bucket/**'"
    )
    images = parser.add_argument("images", nargs="+", default=[], metavar="IMAGE", help=about)
    # Without any for --camera; "*" would match nothing before an option that precedes them.
    images.required = False
    add_bool(parser, "--recursive", "take the files of subfolders of folders too")
    about = "folder for JSON, pictures and videos, or for the table of --engine ray"
    add_option(parser, "--output", "predictions", about, "FOLDER")
    add_option(parser, "--batch-size", 1, "images, tiles or frames at a time")
    _add_selection(parser)
    _add_results(parser)
    _add_tiling(parser)
    _add_video(parser)
    _add_engine(parser)
    add_profile(parser, "batches", "the output folder")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which detections")
    add_option(group, "--min-score", MIN_SCORE, "least score", "SCORE")
    about = "only these classes (default: all); may be repeated"
    group.add_argument("--classes", action="append", default=[], metavar="NAME,NAME", help=about)
    group.add_argument(
        "--classes-per-object",
        choices=CLASSES_PER_OBJECT,
        default="one",
        help="one: of boxes in one place, of any classes, the best alone; all: suppression as in "
        "evaluation, class by class in most models (default: one)",
    )
    about = "with one class per object, boxes with a greater overlap are one object"
    add_option(group, "--iou", IOU, about, "IOU")


def _add_results(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    add_bool(group, "--no-pictures", "draw no pictures and videos")
    add_bool(group, "--crops", "write each object as an image, crops/CLASS/NAME.jpg")
    about = (
        "write images and labels to correct, into the folder labels, as "
        f"{', '.join(sorted(FORMS))}: the objects with at least the best threshold of their class "
        "in the report of the model directory, or without one at least --min-score"
    )
    group.add_argument("--labels", choices=sorted(FORMS), metavar="FORMAT", help=about)


def _add_tiling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "large images", "What is not given is as in the tiles that the model was trained in."
    )
    sides = group.add_mutually_exclusive_group()
    about = "detect in square tiles of this side (default: the model's own)"
    sides.add_argument("--tile", type=int, metavar="PIXELS", help=about)
    add_bool(sides, "--no-tiles", "detect in whole images, whatever the model was trained in")
    about = "share of a tile that its neighbour covers too (default: the model's own, or 0.2)"
    group.add_argument("--overlap", type=float, metavar="SHARE", help=about)
    about = (
        "of the boxes of one object in several tiles: nms keeps the best, wbf averages them "
        "(default: the model's own, or nms)"
    )
    group.add_argument("--merge", choices=("nms", "wbf"), help=about)
    about = "do not detect in the whole image as well (default for a model with tiles of its own)"
    add_bool(group, "--tiles-only", about)


def _add_video(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("videos")
    group.add_argument("--camera", type=int, metavar="N", help="detect in camera N, until Ctrl-C")
    add_option(group, "--frame-stride", 1, "detect in every Nth frame only")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    about = "ray: on a Ray cluster, or a local one if RAY_ADDRESS is not set (default: local)"
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=about)
    about = "processes of --engine ray (default: one for each GPU, or for each machine)"
    parser.add_argument("--workers", type=int, default=0, metavar="N", help=about)


def run(arguments: argparse.Namespace) -> int:
    """Writes the predictions and prints a line for each image and video."""
    selection = _selection(arguments)
    if arguments.batch_size < 1:
        raise UserError("a batch holds at least one image", where="--batch-size")
    if arguments.frame_stride < 1:
        raise UserError("frames are counted from 1", where="--frame-stride", fix="give 1 or more")
    if arguments.workers < 0 or (arguments.workers and arguments.engine != "ray"):
        raise UserError("--workers counts processes of --engine ray", fix="leave it out")
    words, cameras = _split_cameras(arguments)
    if not words and not cameras:
        raise UserError(
            "no image is named", fix="give files, folders, patterns, or --camera 0 for a camera"
        )
    # Refuses impossible values before the model is loaded.
    _tiling(arguments, Tiling(tile=LEAST_TILE))
    if arguments.engine == "ray":
        _refuse_with_ray(arguments, cameras)
        return _run_ray(arguments, selection)
    return _run_here(arguments, words, cameras, selection)


def _selection(arguments: argparse.Namespace) -> Selection:
    """Returns what the flags say, without --classes: those are the model's."""
    if arguments.classes_per_object == "all" and arguments.iou != IOU:
        problem = "every class has boxes of its own with --classes-per-object all"
        raise UserError(problem, where="--iou", fix="leave one of the two out")
    return Selection(
        min_score=arguments.min_score,
        classes_per_object=arguments.classes_per_object,
        iou=arguments.iou,
    )


def _with_classes(selection: Selection, words: Sequence[str], names: Collection[str]) -> Selection:
    """Returns the selection of the classes of --classes; a name may hold a comma itself."""
    parts = [[word] if word in names else word.split(",") for word in words]
    classes = tuple(name.strip() for part in parts for name in part)
    selection = replace(selection, classes=classes)
    selection.check_classes(names)
    return selection


def _split_cameras(arguments: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Returns the paths and patterns, and the numbers of the cameras."""
    words = [word for word in arguments.images if not word.startswith(_CAMERA)]
    texts = [word[len(_CAMERA) :] for word in arguments.images if word.startswith(_CAMERA)]
    if arguments.camera is not None:
        texts.append(str(arguments.camera))
    cameras = [(text, numerals.count(text)) for text in texts]
    wrong = [text for text, camera in cameras if camera is None or camera > _MOST_CAMERAS]
    if wrong:
        raise UserError(
            f"{wrong[0]!r} is no number of a camera", fix="cameras are webcam:0, webcam:1, ..."
        )
    if len(texts) > 1:
        raise UserError("a camera runs until Ctrl-C, so there can be one", fix="start two commands")
    return words, [camera for _, camera in cameras if camera is not None]


def _tiling(arguments: argparse.Namespace, stored: Tiling | None) -> Tiling | None:
    """Returns the tiles to detect in, of a model that was trained in `stored` tiles or in none."""
    given: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("tile", "overlap", "merge")
        if getattr(arguments, name) is not None
    }
    if arguments.tiles_only:
        given["full_image"] = False
    if arguments.no_tiles or not given:
        return None if arguments.no_tiles else stored
    if stored is not None:
        return replace(stored, **given)
    if arguments.tile is None:
        option = "--tiles-only" if arguments.tiles_only else f"--{next(iter(given))}"
        problem = "there are no tiles without --tile"
        raise UserError(problem, where=option, fix="add --tile 640, for instance")
    return Tiling(**given)


def _refuse_with_ray(arguments: argparse.Namespace, cameras: list[int]) -> None:
    refused = {
        "--camera and webcam:N": bool(cameras),
        "--recursive": arguments.recursive,
        "--no-pictures": arguments.no_pictures,
        "--crops": arguments.crops,
        "--labels": arguments.labels is not None,
        "--frame-stride": arguments.frame_stride != 1,
        "--profile": arguments.profile != "0,0",
    }
    for name, given in refused.items():
        if given:
            raise UserError(
                "--engine ray writes a table of the detections in image files, and its workers do "
                "the work",
                where=name,
                fix="leave it out; FOLDER/** takes the files of subfolders",
            )


def _run_here(
    arguments: argparse.Namespace,
    words: list[str],
    cameras: list[int],
    selection: Selection,
) -> int:
    from stillbox.cli.predict_files import PredictRun, refuse_taken
    from stillbox.predicting.images import check_output, list_inputs

    inputs = list_inputs(words, recursive=arguments.recursive)
    if arguments.labels is not None and (inputs.videos or cameras):
        fix = "leave it out, or save frames first: ffmpeg -i VIDEO frames/%06d.jpg"
        raise UserError("labels are of images, and there are videos", where="--labels", fix=fix)
    output, files = Path(arguments.output), [*inputs.images, *inputs.videos]
    check_output(output, words, files, recursive=arguments.recursive)
    refuse_taken(output, inputs, cameras, arguments)
    if inputs.passed_over:
        say_aside(
            f"passed over, by name no image and no video: {count_text(inputs.passed_over, 'file')}"
        )
    predictor = _load(arguments)
    selection = _with_classes(selection, arguments.classes, predictor.class_names.values())
    code = PredictRun(predictor, selection, arguments, output).run(inputs, cameras)
    if not code:
        _say_next(arguments)
    return code


def _say_next(arguments: argparse.Namespace) -> None:
    """Prints the usual next command: a model is exported, and an export is served."""
    from stillbox.exporting.manifest import is_export

    exported = not arguments.weights and is_export(Path(arguments.config))
    say_next_with_model(arguments, "serve" if exported else "export")


def _load(arguments: argparse.Namespace) -> "Predictor":
    from stillbox.api import load

    predictor = load(**model_arguments(arguments), batch_size=arguments.batch_size, say=say_aside)
    predictor.tiling = _tiling(arguments, predictor.tiling)
    return predictor


def _run_ray(arguments: argparse.Namespace, selection: Selection) -> int:
    """Writes a table; returns 1 if some images could not be read."""
    import jax

    from stillbox.scaling.ray_data import predict_files

    # The main process only distributes work and must not hold a worker's accelerator.
    jax.config.update("jax_platforms", "cpu")
    predictor = _load(arguments)
    with progress_bar("images") as progress:
        summary = predict_files(
            predictor,
            arguments.images,
            arguments.output,
            selection=_with_classes(selection, arguments.classes, predictor.class_names.values()),
            workers=arguments.workers,
            on_image=progress,
        )
    print("\n".join(summary.lines()))
    print(f"{arguments.output}: a Parquet table, one row for each image")
    return 1 if summary.unread else 0

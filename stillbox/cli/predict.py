"""`stillbox predict`: detections in photographs, as JSON and as annotated pictures.

With --engine ray: on the machines of a Ray cluster, as a Parquet table.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from stillbox.cli.arguments import add_option, add_profile
from stillbox.cli.bars import progress_bar
from stillbox.cli.models import add_model, model_arguments
from stillbox.cli.running import batch_profiler, say_aside
from stillbox.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_model(parser, "best, latest or a number")
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="image files; with --engine ray also patterns such as 's3://bucket/**'",
    )
    about = "folder for predictions.json and the pictures, or for the table of --engine ray"
    add_option(parser, "--output", "predictions", about, "FOLDER")
    about = "least score of the shown detections"
    add_option(parser, "--min-score", 0.3, about, "SCORE")
    add_option(parser, "--batch-size", 1, "images at a time")
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="ray: on a Ray cluster, or a local one if RAY_ADDRESS is not set (default: local)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="processes of --engine ray (default: one for each GPU, or for each machine)",
    )
    add_profile(parser, "images", "the output folder")


def run(arguments: argparse.Namespace) -> int:
    """Writes the predictions and prints a line for each image."""
    if not 0 <= arguments.min_score <= 1:
        raise UserError(f"{arguments.min_score:g} is no score", where="--min-score", fix="0 to 1")
    if arguments.batch_size < 1:
        raise UserError("a batch holds at least one image", where="--batch-size")
    if arguments.workers < 0 or (arguments.workers and arguments.engine != "ray"):
        raise UserError("--workers counts processes of --engine ray", fix="leave it out")
    if arguments.engine == "ray" and arguments.profile != "0,0":
        raise UserError(
            "--profile traces this process, which does none of the work of --engine ray",
            fix="leave it out",
        )
    return _run_ray(arguments) if arguments.engine == "ray" else _run_here(arguments)


def _run_here(arguments: argparse.Namespace) -> int:
    from stillbox.api import load
    from stillbox.predicting.images import refuse_missing
    from stillbox.records.files import write_whole

    images, folder = [Path(image) for image in arguments.images], Path(arguments.output)
    refuse_missing(images)
    profiler = batch_profiler(arguments.profile, folder, "predict")
    predictor = load(**model_arguments(arguments), batch_size=arguments.batch_size, say=say_aside)
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    found = predictor.stream(images, min_score=arguments.min_score, observer=profiler)
    with profiler:
        for one, name in zip(found, picture_names(images), strict=True):
            one.save(folder / name, min_score=arguments.min_score)
            records.append({**one.to_dict(), "picture": name})
            print(f"{one.source}: {len(one)} objects -> {folder / name}")
    output = write_whole(folder / "predictions.json", json.dumps(records, indent=1).encode())
    print(f"{output}: boxes are in pixels of the upright image")
    return 0


def _run_ray(arguments: argparse.Namespace) -> int:
    """Writes a table; returns 1 if some images could not be read."""
    import jax

    from stillbox.api import load
    from stillbox.scaling.ray_data import predict_files

    # This process only distributes work and must not hold a worker's accelerator.
    jax.config.update("jax_platforms", "cpu")
    predictor = load(**model_arguments(arguments), batch_size=arguments.batch_size, say=say_aside)
    with progress_bar("images") as progress:
        summary = predict_files(
            predictor,
            arguments.images,
            arguments.output,
            min_score=arguments.min_score,
            workers=arguments.workers,
            on_image=progress,
        )
    print("\n".join(summary.lines()))
    print(f"{arguments.output}: a Parquet table, one row for each image")
    return 1 if summary.unread else 0


def picture_names(images: Sequence[Path]) -> list[str]:
    """Returns a file name for the picture of each image: its stem, with a number if it is taken."""
    names: list[str] = []
    taken: set[str] = set()
    for image in images:
        name, number = f"{image.stem}.png", 1
        # Some file systems ignore case.
        while name.lower() in taken:
            number += 1
            name = f"{image.stem}_{number}.png"
        taken.add(name.lower())
        names.append(name)
    return names

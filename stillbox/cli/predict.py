"""`stillbox predict`: detections in photographs, as JSON and as annotated pictures."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from stillbox.cli.arguments import add_profile
from stillbox.cli.models import add_model, model_arguments
from stillbox.cli.running import batch_profiler, say_aside


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser("predict", help="detect objects in image files", description=__doc__)
    add_model(parser, "best, latest or a number")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="image files")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("predictions"),
        help="folder for predictions.json and the pictures (default: predictions)",
    )
    parser.add_argument(
        "--min-score", type=float, default=0.3, help="least score that is shown (default: 0.3)"
    )
    add_profile(parser, "images", "the output folder")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the predictions and prints a line for each image."""
    from stillbox.api import load
    from stillbox.evaluation.files import write_whole
    from stillbox.predicting.images import refuse_missing

    profiler = batch_profiler(arguments.profile, arguments.output, "predict")
    predictor = load(**model_arguments(arguments), say=say_aside)
    refuse_missing(arguments.images)
    arguments.output.mkdir(parents=True, exist_ok=True)
    records = []
    found = predictor.stream(arguments.images, min_score=arguments.min_score, watch=profiler)
    with profiler:
        for one, name in zip(found, picture_names(arguments.images), strict=True):
            picture = arguments.output / name
            one.save(picture, min_score=arguments.min_score)
            records.append({**one.to_dict(), "picture": name})
            print(f"{one.source}: {len(one)} objects -> {picture}")
    content = json.dumps(records, indent=1).encode()
    output = write_whole(arguments.output / "predictions.json", content)
    print(f"{output}: boxes are in pixels of the image as it is shown")
    return 0


def picture_names(images: Sequence[Path]) -> list[str]:
    """Returns a file name for the picture of each image, no two of them alike.

    An image gives its picture the name; where another image had it before, a number is added.
    """
    names: list[str] = []
    taken: set[str] = set()
    for image in images:
        name, number = f"{image.stem}.png", 1
        # Not every file system tells capitals from small letters.
        while name.lower() in taken:
            number += 1
            name = f"{image.stem}_{number}.png"
        taken.add(name.lower())
        names.append(name)
    return names

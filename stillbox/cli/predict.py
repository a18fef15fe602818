"""`stillbox predict`: detections in photographs, as JSON and as annotated pictures."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stillbox.evaluation.results import ImageResult

from stillbox.cli.arguments import add_profile
from stillbox.cli.models import add_model, load_model
from stillbox.cli.running import batch_profiler

_SIDES = ("ymin", "xmin", "ymax", "xmax")


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
    from stillbox.devices.setup import prepare_process
    from stillbox.evaluation.files import write_whole
    from stillbox.evaluation.pictures import draw_marks, result_marks, save_picture
    from stillbox.evaluation.predictor import predict_images
    from stillbox.evaluation.program import predict_program

    profiler = batch_profiler(arguments.profile, arguments.output, "predict")
    prepare_process()
    model = load_model(arguments).named_by_config()
    slots = model.slots()
    names = model.class_names()
    arguments.output.mkdir(parents=True, exist_ok=True)
    records = []
    pictures = picture_names(arguments.images)
    detect = predict_program(model.experiment).bind(model.params, model.stats)
    resizer = model.experiment.model.resizer
    found_in = predict_images(detect, arguments.images, resizer, slots, watch=profiler)
    with profiler:
        for (path, image, found), picture in zip(found_in, pictures, strict=True):
            shown = found.at_least(arguments.min_score)
            marks = result_marks(shown, names, min_score=arguments.min_score, max_boxes=100)
            save_picture(draw_marks(image, marks), arguments.output / picture)
            records.append(
                {
                    "image": str(path),
                    "height": image.shape[0],
                    "width": image.shape[1],
                    "picture": picture,
                    "detections": _detections(shown, names),
                }
            )
            print(f"{path}: {len(shown.scores)} objects -> {arguments.output / picture}")
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


def _detections(found: "ImageResult", names: Mapping[int, str]) -> list[dict[str, Any]]:
    return [
        {
            "class_id": int(class_id),
            "class": names.get(int(class_id), str(int(class_id))),
            "score": round(float(score), 6),
            "box": dict(zip(_SIDES, box.round(2).tolist(), strict=True)),
        }
        for class_id, score, box in zip(found.class_ids, found.scores, found.boxes, strict=True)
    ]

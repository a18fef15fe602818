"""Sixteen photographs of COCO, crowds among them, for detectors to learn by heart."""

import json
from pathlib import Path

from stillbox.cli.main import main
from stillbox.evaluation.history import HISTORY, read_history
from tests.small import SHARED

TINY_COCO = SHARED / "data/tiny_coco"
# All four images of the excerpt that have crowds, and the first twelve of the file with at most ten
# objects none of which is narrower than 8 pixels at 300: the least default box of SSD has 21.
CROWDS = (184613, 204805, 223648, 293802)
OTHERS = (391895, 522418, 60623, 224736, 483108, 403013)
OTHERS += (328757, 86408, 372938, 384553, 12448, 79841)


def write_photographs(folder: Path) -> None:
    """Writes the records `train.record-*` and their label map."""
    content = json.loads((TINY_COCO / "annotations/instances_train2017.json").read_text())
    chosen = {*CROWDS, *OTHERS}
    content["images"] = [image for image in content["images"] if image["id"] in chosen]
    content["annotations"] = [
        annotation for annotation in content["annotations"] if annotation["image_id"] in chosen
    ]
    assert len(content["images"]) == 16
    assert sum(annotation["iscrowd"] for annotation in content["annotations"]) == 5
    (folder / "sixteen.json").write_text(json.dumps(content))
    words = ["data", "convert", "coco", "--images", str(TINY_COCO / "train2017")]
    words += ["--annotations", str(folder / "sixteen.json"), "--name", "train"]
    assert main([*words, "--output", str(folder)]) == 0


def write_blood_cells(folder: Path) -> None:
    """Writes the records `train.record-*` and `test.record-*` of BCCD and their label map."""
    for name in ("train", "test"):
        words = ["data", "convert", "voc", "--root", str(SHARED / "data/bccd")]
        words += ["--set", name, "--name", name, "--output", str(folder)]
        assert main(words) == 0


def train_and_score(recipe: str, folder: Path, changes: dict[str, object]) -> dict[str, float]:
    """Trains a recipe with changes into `folder`; prints all scores and returns the last."""
    words = [word for item in changes.items() for word in ("--set", "{}={}".format(*item))]
    assert main(["train", recipe, "--model-dir", str(folder), *words]) == 0
    evaluations = read_history(folder / HISTORY).evaluations
    for step, scores in evaluations:
        print(f"{recipe} step {step}: AP {scores['AP']:.3f}, AP50 {scores['AP50']:.3f}")
    return evaluations[-1][1]

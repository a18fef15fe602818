"""A complete COCO-trained SSD through our own records, resizer, model, NMS and scorer."""

import json

import pytest

from stillbox.cli.main import main
from tests.shared import SHARED, needs_shared

pytestmark = [pytest.mark.proof, needs_shared]

COCO = SHARED / "data/tiny_coco"
# What the weights' own README says: a 0.75 wide SSD MobileNet v1 whose images were resized with an
# antialiasing filter, and whose anchors list 0.5 before 3.
SETTINGS = {
    "data.evaluation.paths": "{records}/val.record-*",
    "data.evaluation.label_map": "{records}/label_map.pbtxt",
    "model.backbone.depth_multiplier": "0.75",
    "model.neck.depth_multiplier": "0.75",
    "model.anchors.aspect_ratios": "[1, 2, 0.5, 3, 0.33333]",
    "model.resizer.method": "bilinear_antialias",
}


def test_published_weights_reach_their_ap_through_the_command_line(tmp_path):
    records, report = tmp_path / "records", tmp_path / "report"
    annotations = COCO / "annotations/instances_val2017.json"
    sources = ["--images", str(COCO / "val2017"), "--annotations", str(annotations)]
    assert (
        main(["data", "convert", "coco", *sources, "--output", str(records), "--name", "val"]) == 0
    )
    overrides = [
        word
        for field, value in SETTINGS.items()
        for word in ("--set", f"{field}={value.format(records=records)}")
    ]
    weights = str(SHARED / "weights/ssd_mobilenet_v1_0.75_coco_folded.npz")
    command = ["evaluate", "ssd_mobilenet_v1_300x300", "--weights", weights, *overrides]
    assert main([*command, "--output", str(report)]) == 0
    metrics = json.loads((report / "metrics.json").read_text())
    assert metrics["images"] == 50
    assert metrics["summary"]["AP"] == pytest.approx(0.222, abs=0.003)
    assert metrics["summary"]["AP50"] == pytest.approx(0.384, abs=0.003)
    assert metrics["summary"]["AP75"] == pytest.approx(0.210, abs=0.003)

"""What was published: the AP of an SSD's weights, and the model sizes of RetinaNet's files.

The weights go through our own records, resizer, model, NMS and scorer.
"""

import json

import numpy as np
import pytest

from stillbox.cli.main import main
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.experiment.params_dict import read_params
from stillbox.experiment.rules import check, check_trainable
from stillbox.models.build import abstract_detector
from stillbox.training.loop import train
from tests.small import SHARED, needs_shared

pytestmark = [pytest.mark.proof, needs_shared]

COCO = SHARED / "data/tiny_coco"
# What the weights' own README says: a 0.75 wide SSD MobileNet v1, trained on images that an
# antialiasing filter has resized, with anchors that list 0.5 before 3.
SETTINGS = {
    "data.evaluation.paths": "{records}/val.record-*",
    "data.evaluation.label_map": "{records}/label_map.pbtxt",
    "model.backbone.depth_multiplier": "0.75",
    "model.neck.depth_multiplier": "0.75",
    "model.anchors.aspect_ratios": "[1, 2, 0.5, 3, 0.33333]",
    "model.resizer.method": "bilinear_antialias",
}


@pytest.mark.slow
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


FOLDER = SHARED / "configs" / "yaml"
# Trainable parameters; AutoAugment's model is the default one.
PARAMETERS = {
    "retinanet_autoaugment": 34_091_159,
    "retinanet_nasfpn": 51_810_455,
    "spinenet49S_retinanet": 11_265_942,
    "spinenet49_retinanet": 28_543_383,
    "spinenet96_retinanet": 42_974_871,
    "spinenet143_retinanet": 66_959_511,
    "spinenet190_retinanet": 163_637_351,
    "spinenet-mbconv49_retinanet": 2_337_579,
}
# Small enough for a CPU, in the files' own words; no file asks for all of it.
SMALL = """
train: {{train_file_pattern: {scenes}/train.record-*, train_batch_size: 2, total_steps: 2}}
retinanet_parser: {{output_size: [128, 128]}}
resnet: {{resnet_depth: 10}}
fpn: {{fpn_feat_dims: 16}}
nasfpn: {{fpn_feat_dims: 16}}
spinenet: {{filter_size_scale: 0.125, block_repeats: 1, endpoints_num_filters: 16}}
retinanet_head: {{num_filters: 16, num_convs: 1}}
"""


def test_no_file_is_left_out():
    assert {path.stem for path in FOLDER.glob("*retinanet*.yaml")} == set(PARAMETERS)


LARGE = {"spinenet96_retinanet", "spinenet143_retinanet", "spinenet190_retinanet"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in PARAMETERS],
)
def test_the_size_of_a_files_model(name):
    model = read_params(config_file=FOLDER / f"{name}.yaml").experiment.model
    parameters = sum(array.size for array in abstract_detector(model, "float32").params.values())
    assert parameters == PARAMETERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_files_model_takes_steps(name, scenes, tmp_path):
    reading = read_params(
        config_file=FOLDER / f"{name}.yaml", params_override=SMALL.format(scenes=scenes)
    )
    check(reading.experiment, reading.origins)
    check_trainable(reading.experiment, reading.origins)
    train(reading.experiment, tmp_path)
    _, losses = read_history(tmp_path / HISTORY).series("loss")
    assert len(losses) and np.all(np.isfinite(losses))

"""The published files of RetinaNet on TPU: their models' sizes, and a step of each."""

import numpy as np
import pytest

from stillbox.evaluation.history import HISTORY, read_history
from stillbox.experiment.params_dict import read_params
from stillbox.experiment.rules import check, check_trainable
from stillbox.models.abstract import abstract_detector
from stillbox.training.loop import train
from tests.shared import SHARED, needs_shared

pytestmark = [pytest.mark.proof, needs_shared]

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


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_size_of_a_files_model(name):
    model = read_params(config_file=FOLDER / f"{name}.yaml").experiment.model
    found = sum(array.size for array in abstract_detector(model, "float32").params.values())
    assert found == PARAMETERS[name]


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

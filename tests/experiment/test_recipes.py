"""The recipes that we ship.

What docs/experiment.md shows works as it is shown.
"""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.experiment import schema
from stillbox.experiment.params_dict import read_params
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check, warnings_about
from stillbox.experiment.values import differences
from stillbox.experiment.yaml_config import read_yaml
from tests.helpers import refusal
from tests.small import SHARED, needs_shared

ORIGINALS = {
    "ssd_mobilenet_v1_300x300": "ssd_mobilenet_v1_300x300",
    "ssd_mobilenet_v1_ppn_300x300": "ssd_mobilenet_v1_ppn_shared_box_predictor_300x300",
    "ssd_mobilenet_v1_fpn_640x640": "ssd_mobilenet_v1_fpn_shared_box_predictor_640x640",
    "ssd_resnet50_v1_fpn_640x640": "ssd_resnet50_v1_fpn_shared_box_predictor_640x640",
}
# From random weights.
MOBILE = {
    "ssdlite_mobilenet_v3_large_320x320": "ssdlite_mobilenet_v3_large_320x320_coco",
    "ssdlite_mobiledet_cpu_320x320": "ssdlite_mobiledet_cpu_320x320_coco_sync_4x4",
}
# The original in the zoo, and what its recipe leaves out beside places.
ZOO = {
    "efficientdet_d0_512x512": (
        "ssd_efficientdet_d0_512x512_coco17_tpu-8",
        {"data.evaluation.num_epochs", "train.fine_tune.min_loaded"},
    ),
    "ssd_mobilenet_v2_fpnlite_320x320": (
        "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8",
        {"data.evaluation.num_epochs", "train.fine_tune.min_loaded"},
    ),
    "ssdlite_mobilenet_v2_coco": ("ssdlite_mobilenet_v2_coco", {"evaluation.max_evaluations"}),
    "faster_rcnn_resnet50_v1_640x640": (
        "faster_rcnn_resnet50_v1_640x640_coco17_tpu-8",
        {"data.evaluation.num_epochs", "evaluation.batch_size"},
    ),
    "faster_rcnn_resnet101_coco": ("faster_rcnn_resnet101_coco", {"train.steps"}),
    "faster_rcnn_inception_v2_coco": ("faster_rcnn_inception_v2_coco", set[str]()),
}
# The rate falls after steps that there are not, for weights of a detector.
LATER = {
    "train.optimizer.schedule.kind",
    "train.optimizer.schedule.schedule",
    "train.optimizer.schedule.warmup",
    "train.optimizer.schedule.warmup_learning_rate",
    "train.optimizer.schedule.warmup_steps",
    "train.fine_tune.scope",
    "train.fine_tune.min_loaded",
    "evaluation.max_evaluations",
}
TEMPLATES = (
    "retinanet_nasfpn",
    "retinanet_autoaugment",
    "spinenet49S_retinanet",
    "spinenet49_retinanet",
    "spinenet96_retinanet",
    "spinenet143_retinanet",
    "spinenet190_retinanet",
    "spinenet-mbconv49_retinanet",
)
# Side of the image, channels and repetitions of the pyramid, layers of a tower, and the anchors'
# scale: hparams_config.py of google/automl.
LITE = {
    "lite0": (320, 64, 3, 3, 3.0),
    "lite1": (384, 88, 4, 3, 3.0),
    "lite2": (448, 112, 5, 3, 3.0),
    "lite3": (512, 160, 6, 4, 4.0),
    "lite4": (640, 224, 7, 4, 4.0),
}
# Fields that a dictionary sets and a recipe leaves to the command line.
RUN = {"train.fine_tune.scope", "evaluation.per_category"}
# Where things lie is everybody's own.
PLACES = {
    "name",
    "data.train.paths",
    "data.train.label_map",
    "data.evaluation.paths",
    "data.evaluation.label_map",
    "train.fine_tune.checkpoint",
}


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_resolves_under_its_name_without_warnings(name):
    resolved = resolve(name)
    assert resolved.experiment.name == name
    assert warnings_about(resolved.experiment, resolved.origins) == ()


@needs_shared
@pytest.mark.proof
@pytest.mark.parametrize("name", ORIGINALS)
def test_the_original_config_is_the_same_experiment(name):
    config = SHARED / "configs/pipeline" / f"{ORIGINALS[name]}_coco14_sync.config"
    ours, theirs = resolve(name).experiment, resolve(config).experiment
    assert {path for path, _, _ in differences(ours, theirs)} == PLACES


@needs_shared
@pytest.mark.proof
@pytest.mark.parametrize("name", MOBILE)
def test_the_original_of_a_mobile_backbone_is_the_same_experiment(name):
    ours = resolve(name).experiment
    theirs = resolve(SHARED / "configs/pipeline" / f"{MOBILE[name]}.config").experiment
    paths = {path for path, _, _ in differences(ours, theirs)}
    # Evaluation goes through its records once, whatever is said.
    assert paths | {"data.evaluation.num_epochs"} == (
        PLACES - {"train.fine_tune.checkpoint"} | {"data.evaluation.num_epochs"}
    )


@needs_shared
@pytest.mark.parametrize("name", ZOO)
def test_the_original_in_the_zoo_is_the_same_model(name):
    original, others = ZOO[name]
    config = SHARED / f"goldens/detection_zoo/configs/{original}.config"
    ours, theirs = resolve(name).experiment, resolve(config).experiment
    paths = {path for path, _, _ in differences(ours, theirs)}
    assert others <= paths <= PLACES | others | LATER
    assert theirs.model == ours.model


@pytest.mark.parametrize("size", LITE)
def test_efficientdet_lite_has_the_fields_of_its_authors(size):
    experiment = resolve(f"efficientdet_{size}").experiment
    model, side = experiment.model, LITE[size][0]
    assert model.network_size == (side, side)
    assert experiment.train.augmentations[1].output_size == side
    backbone = schema.EFFICIENTNET_LITE_SIZES[size]
    assert model.backbone == replace(backbone, conv=model.backbone.conv)
    assert model.head.depth == model.neck.depth
    numbers = (model.neck.depth, model.neck.num_repeats, model.head.layers_before)
    assert (side, *numbers, model.anchors.anchor_scale) == LITE[size]


def test_the_defaults_of_the_parameter_dictionary_are_the_plain_recipe():
    ours, theirs = resolve("retinanet").experiment, read_params().experiment
    assert {path for path, _, _ in differences(ours, theirs)} == RUN


@needs_shared
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_original_template_is_the_same_experiment(name):
    theirs = read_params(config_file=SHARED / f"configs/yaml/{name}.yaml").experiment
    ours = resolve(name).experiment
    assert {path for path, _, _ in differences(ours, theirs)} == RUN


PAGE = (Path(__file__).parents[2] / "docs" / "experiment.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_every_yaml_example_is_a_sound_experiment(text):
    reading = read_yaml(text, "example.yaml")
    check(reading.experiment, reading.origins)


@pytest.mark.parametrize(
    "line", [line for block in blocks("console") for line in block.splitlines()]
)
def test_every_command_line_resolves(line):
    words = shlex.split(line)
    assert words[:3] == ["$", "stillbox", "config"]
    resolve(words[3], changes_of([word for word in words[4:] if word != "--set"]))


def test_the_python_example_runs(capsys):
    (example,) = blocks("python")
    exec(compile(example, "docs/experiment.md", "exec"), {})
    assert "train.batch_size=32" in capsys.readouterr().out


def test_the_errors_are_those_of_the_page():
    first, second = blocks("text")
    caught = refusal(
        read_pipeline_config, "\n" * 11 + "model { ssd { \n num_clases: 1 } }", "pets.config"
    )
    assert str(caught).partition(" ")[2] == first.strip().partition(" ")[2]
    caught = refusal(
        resolve, "ssd_mobilenet_v1_300x300", changes_of(["model.anchors.num_layers=5"])
    )
    assert f"--set {caught}" == second.strip()

import re
from pathlib import Path

import pytest

from stillbox.checkpoints.pretrained import ARCHIVES
from stillbox.experiment.known_weights import (
    KnownFile,
    advise_weights,
    known_weights,
    suggest_weights,
)
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.resolve import resolve
from stillbox.experiment.schema import OneStage, ResNetV1
from tests.experiment.sample import FASTER_RCNN

ROWS = known_weights()
SUFFIXES = {"torch": ".pth", "tfjs": ".json", "tflite": ".tflite"}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_whole(name):
    row = ROWS[name]
    assert row.about and row.publisher and row.licence and row.files
    assert row.scope in ("classification", "detection")
    assert Path(row.path).suffix == SUFFIXES.get(row.kind, Path(row.path).suffix)
    assert bool(row.measured) <= bool(row.checked)
    for file in row.files:
        assert file.address.startswith("https://") or file.package
        assert re.fullmatch(r"([0-9a-f]{8}|[0-9a-f]{64})?", file.sha256)
        # A registry's file never changes.
        assert not file.package or (file.bytes and len(file.sha256) == 64)
    names = [file.name for file in row.files]
    archived = names[0].endswith(ARCHIVES)
    assert archived or row.path in names or f"{row.path}.index" in names


@pytest.mark.parametrize("name", ROWS)
def test_the_recipes_of_a_row_take_the_weights(name):
    row = ROWS[name]
    for recipe in row.recipes:
        experiment = resolve(recipe, row.overrides()).experiment
        assert row.fits(experiment.model), recipe
        assert experiment.train.fine_tune.checkpoint == name
        assert experiment.train.fine_tune.scope == row.scope


@pytest.mark.parametrize(
    ("recipe", "scope", "first"),
    [
        ("ssd_mobilenet_v1_300x300", "detection", "ssd_mobilenet_v1_coco"),
        ("ssd_mobilenet_v1_300x300", "classification", "mobilenet_v1_1.0_224"),
        ("ssd_mobilenet_v1_fpn_640x640", "detection", "ssd_mobilenet_v1_fpn_coco"),
        ("ssd_mobilenet_v1_ppn_300x300", "detection", "ssd_mobilenet_v1_ppn_coco"),
        ("ssd_resnet50_v1_fpn_640x640", "detection", "ssd_resnet50_v1_fpn_coco"),
        ("faster_rcnn_resnet101_coco", "detection", "faster_rcnn_resnet101_coco"),
        (
            "faster_rcnn_resnet50_v1_640x640",
            "detection",
            "faster_rcnn_resnet50_v1_640x640_coco17",
        ),
        ("faster_rcnn_inception_v2_coco", "detection", "faster_rcnn_inception_v2_coco"),
        ("ssd_resnet34", "classification", "resnet34_tpu"),
        ("retinanet", "classification", "resnet50_tpu"),
    ],
)
def test_a_model_gets_the_weights_that_fit_it(recipe, scope, first):
    model = resolve(recipe).experiment.model
    assert suggest_weights("PATH_TO_BE_CONFIGURED/model.ckpt", model, scope)[0].name == first


@pytest.mark.parametrize("kind", ["resnet50", "resnet101", "inception_v2"])
def test_a_faster_rcnn_of_the_first_generation_gets_its_own_weights(kind):
    text = FASTER_RCNN.replace("faster_rcnn_resnet50", f"faster_rcnn_{kind}")
    model = read_pipeline_config(text, "p").experiment.model
    names = [row.name for row in suggest_weights("model.ckpt", model, "detection")]
    assert names == [f"faster_rcnn_{kind}_coco"]


def test_the_name_decides_between_weights_that_fit():
    model = resolve("ssd_resnet34").experiment.model
    rows = suggest_weights("x/torchvision_resnet34", model, "classification")
    assert [row.name for row in rows] == ["torchvision_resnet34", "resnet34_tpu"]


def test_without_a_model_only_similar_names_are_suggested():
    text = "weights/ssd_mobilenet_v1_coco_2018_01_28/model.ckpt"
    assert [row.name for row in suggest_weights(text, None)] == ["ssd_mobilenet_v1_coco"]
    assert suggest_weights("photos/holiday", None) == ()
    assert advise_weights("photos/holiday", None) == ""


def test_nothing_is_suggested_for_a_model_that_nothing_fits():
    assert suggest_weights("model.ckpt", OneStage(backbone=ResNetV1(depth=101))) == ()


def test_advice_has_the_command_the_address_and_the_overrides():
    text = advise_weights("model.ckpt", resolve("ssd_resnet34").experiment.model, "classification")
    assert "`stillbox weights get torchvision_resnet34`" in text
    assert "https://download.pytorch.org/models/resnet34-b627a593.pth" in text
    assert "--set model.backbone.pool_padding=symmetric" in text


@pytest.mark.parametrize(
    ("address", "command", "name"),
    [
        ("pkg:npm/handtrackjs@0.1.5", "npm pack handtrackjs@0.1.5", "handtrackjs-0.1.5.tgz"),
        ("pkg:npm/@scope/net@1.0", "npm pack @scope/net@1.0", "scope-net-1.0.tgz"),
        (
            "pkg:pypi/net@1.0?file_name=net-1.0-py3-none-any.whl",
            "pip download --no-deps net==1.0",
            "net-1.0-py3-none-any.whl",
        ),
    ],
)
def test_a_package_has_a_command_and_a_file(address, command, name):
    file = KnownFile(address=address)
    assert (file.package.command, file.name) == (command, name)
    assert file.describe() == f"`{command}` (size unknown, sha256 unknown)"

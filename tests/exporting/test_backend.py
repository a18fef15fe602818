"""How an artefact of one size is fed, and how its boxes come back."""

from dataclasses import replace

import numpy as np
import pytest

import stillbox
from stillbox.checkpoints.trained import TrainedModel
from stillbox.errors import UserError
from stillbox.exporting.export import export_model
from stillbox.exporting.settings import ExportSettings
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.predictor import Predictor
from tests.small import EVERY_DETECTION


@pytest.fixture(scope="module")
def padded(model):
    """The tiny model with a resizer that keeps the aspect ratio and pads."""
    changes = {"model.resizer": {"kind": "scale_jitter", "height": 64, "width": 64}}
    return replace(model, experiment=model.experiment.with_changes(changes))


@pytest.fixture(scope="module")
def exported(padded: TrainedModel, tmp_path_factory):
    """Its artefact, of one input size."""
    settings = ExportSettings(
        format="stablehlo", input_type="float_image_tensor", platforms=("cpu",)
    )
    return export_model(padded, tmp_path_factory.mktemp("export") / "out", settings, [])


def test_detections_in_the_padding_are_left_out(padded: TrainedModel, exported):
    image = np.random.default_rng(0).integers(0, 256, (40, 80, 3), np.uint8)
    got = stillbox.load(exported.folder).predict(image, **EVERY_DETECTION)
    wanted = Predictor(CheckpointBackend(padded)).predict(image, **EVERY_DETECTION)
    assert exported.manifest.settings.image_size == (64, 64)
    assert len(got) > 10
    assert (got.boxes >= 0).all() and (got.boxes <= [40, 80, 40, 80]).all()
    # The checkpoint takes the size of the image; the artefact finds boxes in the padding too.
    same = [np.abs(wanted.boxes - box).max(axis=1).min() < 0.5 for box in got.boxes]
    assert np.mean(same) > 0.8


def test_it_is_said_that_a_program_is_run(exported):
    said = []
    stillbox.load(exported.folder, say=said.append)
    assert said == [
        f"{exported.folder} (stablehlo): an export, a program that runs with your rights"
    ]


def test_raw_predictions_that_are_not_finite_are_refused(exported, monkeypatch):
    predictor = stillbox.load(exported.folder)
    run = predictor.backend._run

    def spoilt(images):
        outputs = run(images)
        return outputs | {"raw_detection_scores": outputs["raw_detection_scores"] * np.nan}

    monkeypatch.setattr(predictor.backend, "_run", spoilt)
    with pytest.raises(UserError, match="not finite"):
        predictor.predict(np.zeros((40, 80, 3), np.uint8))

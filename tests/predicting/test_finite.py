"""Predictions that are not finite are refused, with the image, wherever a model runs."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.api import load_model
from stillbox.boxes.structures import Detections
from stillbox.errors import UserError
from stillbox.evaluation.program import score_program
from stillbox.evaluation.scoring import open_evaluation, score_dataset
from stillbox.models import detector as detectors
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.scoring import score_backend
from tests.small import EVERY_DETECTION

BLANK = np.zeros((40, 60, 3), np.uint8)


@pytest.fixture(params=[np.nan, np.inf])
def spoilt(request, trained_once):
    """The small model with one number of its class head's bias spoilt."""
    model = load_model(trained_once)
    name = next(name for name in sorted(model.params) if "class" in name and "bias" in name)
    bias = np.array(model.params[name])
    bias[0] = request.param
    return replace(model, params={**model.params, name: bias})


def test_predicting_names_the_image(spoilt, tmp_path):
    predictor = Predictor(CheckpointBackend(spoilt))
    with pytest.raises(UserError, match="not finite") as caught:
        predictor.predict(BLANK, **EVERY_DETECTION)
    assert "an earlier checkpoint" in caught.value.fix


def test_evaluating_names_the_image(spoilt):
    dataset = open_evaluation(spoilt.experiment)
    detect = score_program(spoilt.experiment).bind(spoilt.params, spoilt.stats)
    with pytest.raises(UserError, match=r"image .*: the model's predictions .* not finite"):
        score_dataset(detect, spoilt.experiment, dataset)
    with pytest.raises(UserError, match=r"image .*: the model's predictions .* not finite"):
        score_backend(CheckpointBackend(spoilt), spoilt.experiment, dataset)


def test_a_sound_model_passes(trained_once):
    predictor = Predictor(CheckpointBackend(load_model(trained_once)))
    assert len(predictor.predict(BLANK, **EVERY_DETECTION)) > 0


def test_a_detector_that_says_nothing_is_judged_by_its_detections(monkeypatch):
    class Silent:
        def detect(self, images, true_sizes):
            boxes = jnp.zeros((3, 2, 4)).at[1, 0, 2].set(jnp.nan)
            scores = jnp.ones((3, 2)).at[2, 1].set(jnp.inf)
            counts = jnp.full(3, 2)
            return Detections(boxes, scores, jnp.zeros((3, 2), int), counts, jnp.zeros((3, 2), int))

    monkeypatch.setattr(detectors, "bind_detector", lambda *arrays: Silent())
    found = detectors.detect_function(None)({}, {}, jnp.zeros((3, 4, 4, 3)), jnp.full((3, 2), 4))
    assert found.finite.tolist() == [True, False, False]

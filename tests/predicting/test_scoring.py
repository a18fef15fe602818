"""The scoring of a backend, such as an export, on an evaluation set."""

import pytest

from stillbox.evaluation.scoring import open_evaluation
from stillbox.inputs import dataset as datasets
from stillbox.inputs.decode import decode_image
from stillbox.predicting.scoring import score_backend
from tests.helpers import refused
from tests.predicting.test_selection import Cards


@pytest.fixture
def scored(experiment):
    """The function from overrides to the result of a backend that finds the same everywhere."""

    def make(*overrides):
        settings = experiment(*overrides)
        dataset, backend = open_evaluation(settings), Cards()
        backend.class_names = dataset.class_names
        return score_backend(backend, settings, dataset)

    return make


def test_scores_of_a_backend_are_of_all_its_detections(scored):
    assert [len(result.scores) for result in scored().results] == [4] * 6


def test_images_beyond_the_limit_are_a_warning(scored):
    result = scored("evaluation.max_examples=5")
    assert len(result.truths) == 5
    assert result.warnings[-1].startswith("scored: the first 5 of 6 images")


def test_each_image_is_decoded_once(scored, monkeypatch):
    decoded = []

    def decode(file, kind):
        decoded.append(file)
        return decode_image(file, kind=kind)

    monkeypatch.setattr(datasets, "decode_image", decode)
    scored()
    assert len(decoded) == 6


def test_several_processes_are_refused(scored, monkeypatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with refused("cards"):
        scored()

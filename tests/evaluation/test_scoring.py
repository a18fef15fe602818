"""An experiment's evaluation set, scored as the experiment says."""

import json

import numpy as np
import pytest

from stillbox.boxes.detections import Detections
from stillbox.errors import UserError
from stillbox.evaluation.history import History
from stillbox.evaluation.scoring import score_dataset, write_evaluation
from stillbox.inputs.dataset import open_dataset


def perfect(dataset):
    """A detector that knows the answers, in the order in which the images come."""
    records = iter(range(len(dataset)))

    def detect(images, true_sizes):
        count = len(images)
        boxes, classes = np.zeros((count, 9, 4), np.float32), np.zeros((count, 9), np.int32)
        scores, counts = np.zeros((count, 9), np.float32), np.zeros(count, np.int32)
        for row in range(count):
            record = next(records, None)
            example = dataset.source.example(record) if record is not None else None
            if example is None:
                continue
            found = len(example.boxes)
            boxes[row, :found], classes[row, :found] = example.boxes, example.class_ids - 1
            scores[row, :found], counts[row] = 0.9, found
        return Detections(boxes, scores, classes, counts)

    return detect


@pytest.fixture
def opened(experiment):
    def make(*overrides):
        settings = experiment(*overrides)
        return settings, open_dataset(settings.data, settings.data.evaluation, settings.model)

    return make


def test_the_right_answers_score_1_on_every_image(opened):
    settings, dataset = opened()
    seen = []
    result = score_dataset(
        perfect(dataset), settings, dataset, lambda done, of: seen.append((done, of))
    )
    assert result.scores.summary["AP"] == pytest.approx(1)
    assert len(result.truths) == 6
    assert seen == [(4, 6), (6, 6)]  # batches of 4 and 2


@pytest.mark.parametrize("workers", [0, 2])
def test_as_many_images_are_scored_as_are_asked_for(opened, workers):
    settings, dataset = opened("evaluation.max_examples=5", f"data.workers={workers}")
    assert len(score_dataset(perfect(dataset), settings, dataset).truths) == 5


def test_classes_of_other_names_than_trained_are_refused(opened):
    settings, dataset = opened()

    def never(images, true_sizes):
        raise AssertionError("nothing is to be computed")

    with pytest.raises(UserError, match="class id 2 is 'ring' in the label map and 'hoop'"):
        score_dataset(never, settings, dataset, trained_names={1: "disc", 2: "hoop"})


def test_an_evaluation_leaves_numbers_detections_pictures_and_a_page(opened, tmp_path):
    settings, dataset = opened("evaluation.num_visualizations=2", "name=mine")
    result = score_dataset(perfect(dataset), settings, dataset)
    folder = tmp_path / "deep/report"
    page = write_evaluation(
        result, settings, dataset, folder, source="weights.npz", history=History()
    )
    assert page == folder / "report.html"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["weights"] == "weights.npz"
    assert metrics["images"] == 6
    assert metrics["summary"]["AP"] == pytest.approx(1)
    assert metrics["summary"]["APl"] is None
    assert set(metrics["per_class"]) == {"disc", "ring", "square", "triangle", "star", "cross"}
    boxes = sum(len(truth.boxes) for truth in result.truths)
    assert len(json.loads((folder / "detections.json").read_text())) == boxes
    text = page.read_text()
    assert "mine" in text
    assert "weights.npz, scored on 6 images" in text
    # Two pictures, each with a caption and a text for those who cannot see it.
    assert text.count("in the ground truth,") == 2 * 2

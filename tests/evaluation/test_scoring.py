"""The scoring of an experiment's evaluation set by its settings."""

import json
import shutil

import numpy as np
import pytest

from stillbox.boxes.structures import Detections
from stillbox.evaluation.history import History
from stillbox.evaluation.scoring import score_dataset, write_evaluation
from stillbox.evaluation.voc import VocRules
from stillbox.inputs.dataset import open_dataset
from stillbox.records.label_map import LabelMap
from stillbox.references import worded
from tests.helpers import read_json, refused
from tests.kills import kills


def perfect(dataset):
    """A detector that returns the truth, in the order of the images."""
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
            end = len(example.boxes)
            boxes[row, :end], classes[row, :end] = example.boxes, example.class_ids - 1
            scores[row, :end], counts[row] = 0.9, end
        return Detections(boxes, scores, classes, counts, np.zeros_like(classes))

    return detect


@pytest.fixture
def opened(experiment):
    def make(*overrides):
        settings = experiment(*overrides)
        return settings, open_dataset(settings.data, settings.data.evaluation, settings.model)

    return make


@pytest.fixture
def written(opened, tmp_path, no_charts):
    """The function from overrides to the result, the page and the folder of an evaluation."""

    def make(*overrides):
        settings, dataset = opened(*overrides)
        result = score_dataset(perfect(dataset), settings, dataset)
        folder = tmp_path / "deep/report"
        page = write_evaluation(
            result, settings, dataset, folder, source="weights.npz", history=History()
        )
        assert page == folder / "report.html"
        return result, page.read_text(), folder

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
def test_max_examples_limits_the_images(opened, workers):
    settings, dataset = opened("evaluation.max_examples=5", f"data.workers={workers}")
    assert len(score_dataset(perfect(dataset), settings, dataset).truths) == 5


def test_images_beyond_the_limit_are_a_warning(written):
    result, page, _ = written("evaluation.max_examples=5")
    sentence = (
        "scored: the first 5 of 6 images (evaluation.max_examples); "
        "evaluation.max_examples=0 scores all"
    )
    assert sentence in map(worded, result.warnings)
    assert sentence in page


@pytest.mark.parametrize("most", [0, 6, 7])
def test_a_limit_beyond_the_set_is_no_warning(opened, most):
    settings, dataset = opened(f"evaluation.max_examples={most}")
    warnings = score_dataset(perfect(dataset), settings, dataset).warnings
    assert not any("max_examples" in warning for warning in warnings)


def test_limits_and_classes_without_ap_are_in_the_report(written):
    limits = "model.postprocessing.nms={max_per_class: 1, max_total: 2}"
    result, page, folder = written(limits)
    metrics = read_json(folder / "metrics.json")
    assert metrics["limits"] == json.loads(json.dumps(result.limits.to_dict()))
    assert "model.postprocessing.nms.max_total" in [row.path for row in result.limits.costly]
    assert "6 of 6 images to score on" in page
    for row in result.limits.costly:
        assert worded(row.remedy) in page
    assert (result.unfound, metrics["unfound"]) == ((), [])


def test_the_metrics_of_the_experiment_are_computed_and_written_down(written):
    result, _, folder = written(
        "evaluation.metrics=[pascal_voc, weighted_pascal_voc]",
        "evaluation.best_metric=VOC_mAP",
        "evaluation.voc_interpolation=eleven_points",
        "evaluation.voc_min_iou=0.4",
        "evaluation.voc_inclusive_pixels=true",
    )
    assert result.scores.summary == {"VOC_mAP": 1.0, "VOC_weighted_mAP": 1.0}
    metrics = read_json(folder / "metrics.json")
    assert metrics["summary"] == result.scores.summary
    assert metrics["object_detection_api"]["PascalBoxes_Precision/mAP@0.4IOU"] == 1.0
    rules = VocRules(interpolation="eleven_points", min_iou=0.4, inclusive=True)
    assert result.scores.voc.rules == rules
    assert set(metrics["per_class"]["disc"]) == {"VOC_AP"}


def test_the_interpolation_is_that_of_the_experiment(opened):
    def half(dataset):
        """Finds every second box of each image, so curves end before recall 1."""
        detect_all = perfect(dataset)

        def detect(images, true_sizes):
            every = detect_all(images, true_sizes)
            return every._replace(count=(every.count + 1) // 2)

        return detect

    numbers = []
    for interpolation in ("all_points", "eleven_points"):
        settings, dataset = opened(
            "evaluation.metrics=[weighted_pascal_voc]",
            "evaluation.best_metric=VOC_weighted_mAP",
            f"evaluation.voc_interpolation={interpolation}",
        )
        scores = score_dataset(half(dataset), settings, dataset).scores
        numbers.append(scores.summary["VOC_weighted_mAP"])
        recall = scores.voc.detections / scores.voc.truths
    # Precision is 1 up to the highest recall.
    assert numbers == pytest.approx([recall, (int(10 * recall) + 1) / 11])
    assert 0.5 < recall < 0.9


def test_the_report_links_the_page_of_the_conversion(written, tmp_path, scenes):
    (tmp_path / "data #1").mkdir()
    for file in scenes.glob("*.record*"):
        shutil.copy(file, tmp_path / "data #1")
    records = f"data.train.paths=['{tmp_path}/data #1/train.record*']"
    assert "<a href=" not in written(records)[1]
    (tmp_path / "data #1/conversion.html").touch()
    assert '<a href="../../data%20%231/conversion.html">' in written(records)[1]


@pytest.mark.parametrize(("more", "keys"), [("false", 4), ("true", 12)])
def test_a_class_has_all_twelve_numbers_on_request(written, more, keys):
    _, page, folder = written(f"evaluation.all_metrics_per_category={more}")
    assert len(read_json(folder / "metrics.json")["per_class"]["disc"]) == keys
    assert ('<th scope="col" class="number">ARs</th>' in page) == (keys == 12)


def test_classes_of_other_names_than_trained_are_refused(opened):
    settings, dataset = opened()

    def never(images, true_sizes):
        raise AssertionError("nothing is to be computed")

    with refused(None, 2, "ring", "hoop"):
        score_dataset(never, settings, dataset, trained=LabelMap.from_names(("disc", "hoop")))


def test_an_evaluation_writes_numbers_detections_pictures_and_a_page(written):
    result, page, folder = written(
        "evaluation.num_visualizations=2", "evaluation.pictures_directory=shown", "name=mine"
    )
    exported = sorted(path.name for path in (folder / "shown").iterdir())
    assert exported == ["export-image-0.png", "export-image-1.png"]
    metrics = read_json(folder / "metrics.json")
    assert (metrics["weights"], metrics["images"]) == ("weights.npz", 6)
    summary = metrics["summary"]
    assert (summary["AP"], summary["APl"]) == (pytest.approx(1), None)
    assert set(metrics["per_class"]) == {"disc", "ring", "square", "triangle", "star", "cross"}
    boxes = sum(len(truth.boxes) for truth in result.truths)
    assert len(read_json(folder / "detections.json")) == boxes
    assert "mine" in page
    assert "weights.npz, scored on 6 images" in page
    assert page.count("in the ground truth,") == 2
    figures = read_json(folder / "report.json")
    assert figures["all_classes"]["F1"] == pytest.approx(1)
    assert figures["threshold"] == pytest.approx(0.9)


def test_a_kill_leaves_each_file_of_a_report_old_or_new(opened, tmp_path, no_charts):
    def writer(overrides):
        settings, dataset = opened(overrides)
        result = score_dataset(perfect(dataset), settings, dataset)
        about = {"source": "weights.npz", "history": History()}
        return lambda: write_evaluation(result, settings, dataset, tmp_path, **about)

    def state():
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {path: path.read_bytes() for path in files if path.suffix != ".partial"}

    writer("evaluation.max_examples=5")()
    old = state()
    between = [state() for _ in kills(writer("evaluation.max_examples=6"))]
    new = state()
    assert any(old != files != new for files in between)
    assert not any(path.suffix == ".partial" for path in tmp_path.rglob("*"))
    for files in between:
        assert files.keys() >= old.keys()
        assert all(content in (old.get(path), new[path]) for path, content in files.items())

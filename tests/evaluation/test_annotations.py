"""Ground truth from a COCO file: it takes the place of the records', image by image."""

import json
from dataclasses import replace

import pytest

from stillbox.errors import UserError
from stillbox.evaluation.annotations import read_annotations
from stillbox.evaluation.coco_json import truths_to_coco
from stillbox.evaluation.ground_truth import read_truths
from stillbox.evaluation.scoring import check_annotations, score_dataset
from stillbox.inputs.dataset import open_dataset
from tests.evaluation.builders import truth
from tests.evaluation.test_scoring import perfect


@pytest.fixture
def records(experiment):
    """The evaluation set, and its ground truth as COCO's dictionary."""
    settings = experiment()
    dataset = open_dataset(settings.data, settings.data.evaluation, settings.model)
    truths = read_truths(dataset.source, range(len(dataset))).values()
    return dataset, truths_to_coco(list(truths), dataset.class_names)


@pytest.fixture
def opened(experiment, records, tmp_path):
    """The function from a changed dictionary to experiment and evaluation set."""

    def make(content):
        path = tmp_path / "instances.json"
        path.write_text(json.dumps(content))
        settings = experiment(f"data.evaluation.annotations={path}")
        return settings, open_dataset(settings.data, settings.data.evaluation, settings.model)

    return make


def test_boxes_areas_and_crowds_are_those_of_the_file(records, opened):
    _, content = records
    first, second, *_ = content["annotations"]
    first["iscrowd"], second["area"] = 1, 7.0
    removed = content["annotations"].pop(2)
    content["images"].append({"id": "another", "width": 5, "height": 5})
    settings, dataset = opened(content)
    result = score_dataset(perfect(dataset), settings, dataset)
    # The records' answers are right but for the box that only they have.
    assert result.scores.coco.crowds == 1
    assert result.scores.coco.truths == len(content["annotations"]) - 1
    assert result.scores.summary["AR100"] == pytest.approx(1)
    assert result.scores.summary["AP"] < 1
    assert 7.0 in result.truths[0].area
    of_image = {t.image_id: t for t in result.truths}[str(removed["image_id"])]
    same = [a for a in content["annotations"] if a["image_id"] == removed["image_id"]]
    assert len(of_image.boxes) == len(same)
    assert len(result.truths) == len(dataset)


def test_an_image_that_the_file_lacks_is_refused_before_anything_is_detected(records, opened):
    _, content = records
    gone = content["images"].pop(0)["id"]
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] != gone]
    settings, dataset = opened(content)
    with pytest.raises(UserError, match=f"no image with the id {gone}, which the eval") as caught:
        score_dataset(None, settings, dataset)
    assert "instances.json" in caught.value.where
    assert "--set data.evaluation.annotations= to take" in caught.value.fix


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content["images"][0].update(width=9), "so that its boxes do not fit"),
        (lambda content: content["categories"][0].update(name="dog"), "'dog' elsewhere"),
        (lambda content: content["annotations"][0].update(category_id=99), "class id 99 of 1 box"),
        (lambda content: content.pop("images"), "no COCO ground truth"),
    ],
)
def test_a_file_that_does_not_belong_is_refused_before_training(records, opened, spoil, message):
    dataset, content = records
    spoil(content)
    settings, dataset = opened(content)
    with pytest.raises(UserError, match=message):
        check_annotations(dataset, dataset.slots)
    with pytest.raises(UserError, match=message):
        score_dataset(None, settings, dataset)


def test_a_missing_file_is_refused_and_no_file_is_allowed(records):
    dataset, _ = records
    check_annotations(dataset, dataset.slots)
    dataset.annotations = "gone.json"
    with pytest.raises(UserError, match="No such file"):
        check_annotations(dataset, dataset.slots)


def test_ids_may_be_padded_with_zeros(tmp_path):
    path = tmp_path / "instances.json"
    images = [replace(truth("139", [[0, 0, 9, 9]]), width=30, height=20), truth("0")]
    path.write_text(json.dumps(truths_to_coco(images, {1: "disc"})))
    annotations = read_annotations(str(path))
    annotations.refuse_missing(["139", "000000000139", "0"])
    assert annotations.truth_of("000139", (20, 30)).image_id == "139"
    with pytest.raises(UserError, match="the id 13, 14, 15 and 1 more, which"):
        annotations.refuse_missing(["13", "139", "14", "15", "16"])

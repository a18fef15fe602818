"""Ground truth from a COCO file in place of the records', and its comparison with them."""

import json
from dataclasses import replace

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.evaluation.coco import truths_to_coco
from stillbox.evaluation.ground_truth import check_agreement, read_annotations, read_truths
from stillbox.evaluation.scoring import check_annotations, score_dataset
from stillbox.inputs.dataset import open_dataset
from stillbox.records.export import export_records
from stillbox.records.label_map import ClassSlots
from stillbox.records.source import ExampleSource
from stillbox.references import worded
from tests.evaluation.builders import by_id, truth
from tests.evaluation.test_scoring import perfect
from tests.helpers import refusal, refused
from tests.records.builders import CAT_DOG, make_example, write_records

BOX = [0, 0, 10, 10]
NAMES = {1: "cat", 3: "dog"}


def test_a_matching_set_gives_no_warning():
    assert check_agreement([truth("a", [BOX, BOX], [1, 3])], NAMES, slots=by_id(3)) == ()


def test_everything_that_disagrees_is_listed_at_once():
    truths = [truth("a"), truth("b", [BOX, BOX, BOX], [2, 1, 2])]
    others = {1: "dog", 3: "dog", 9: "horse"}
    message = str(refusal(check_agreement, truths, NAMES, slots=by_id(2), other_names=others))
    for part in (
        "class id 2 of 2 boxes (first in image 'b')",
        "the model has 2 classes and can only find ids 1 to 2",
        "also has 3 (dog)",
        "class id 1 is 'cat' in the label map and 'dog' elsewhere",
        "fix:",
    ):
        assert part in message


def test_id_0_is_the_background_and_nothing_else():
    check_agreement([truth("a", [BOX])], {0: "background", 1: "cat"}, slots=by_id(1))
    with refused(None, 0):
        check_agreement([truth("a", [BOX])], {0: "dog", 1: "cat"}, slots=by_id(1))


def test_long_lists_are_cut():
    boxes = [BOX] * 8
    with refused(None, 3):
        check_agreement([truth("a", boxes, list(range(11, 19)))], NAMES, slots=by_id(3))


def test_more_classes_and_absent_classes_are_warnings():
    warnings = check_agreement([truth("a", [BOX], [1])], NAMES, slots=by_id(5))
    assert len(warnings) == 2
    assert "ids 4 to 5 is not scored" in warnings[0]
    assert "no ground truth of dog" in warnings[1]


def test_contiguous_slots_are_named_with_their_ids():
    slots = ClassSlots((1, 3))
    assert check_agreement([truth("a", [BOX, BOX], [1, 3])], NAMES, slots=slots) == ()
    # Three classes as well, but the third of them is 4 here and 3 there.
    with refused(None, 1, 2, 4, 3):
        check_agreement((), {1: "cat", 2: "cow", 3: "dog"}, slots=ClassSlots((1, 2, 4)))


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
    # All detections of the records are right but for the box that only the records have.
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
    with refused("instances.json", gone) as caught:
        score_dataset(None, settings, dataset)
    assert "instances.json" in caught.value.where
    assert "data.evaluation.annotations= to take" in worded(caught.value.fix)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content["images"][0].update(width=9), "so that its boxes do not fit"),
        (lambda content: content["categories"][0].update(name="dog"), "'dog' elsewhere"),
        (lambda content: content["annotations"][0].update(category_id=99), "class id 99 of 1 box"),
        (lambda content: content.pop("images"), "no COCO ground truth"),
    ],
)
def test_a_file_of_other_images_is_refused_before_training(records, opened, spoil, message):
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
    with refused("gone.json"):
        check_annotations(dataset, dataset.slots)


def test_ids_may_be_padded_with_zeros(tmp_path):
    path = tmp_path / "instances.json"
    images = [replace(truth("139", [[0, 0, 9, 9]]), width=30, height=20), truth("0")]
    path.write_text(json.dumps(truths_to_coco(images, {1: "disc"})))
    annotations = read_annotations(str(path))
    annotations.refuse_missing(["139", "000000000139", "0", "000"])
    assert annotations.truth_of("000139", (20, 30)).image_id == "139"
    with refused("instances.json", 13, 14, 15):
        annotations.refuse_missing(["13", "139", "14", "15", "16"])


def exported(tmp_path, ids):
    """The records of these ids, and the file that `data export coco` writes of them."""
    boxes = [[0.1 * number, 0, 1, 1] for number in range(1, len(ids) + 1)]
    examples = [
        make_example(image_id=image_id, filename="a.png", boxes=np.array([box], np.float32))
        for image_id, box in zip(ids, boxes, strict=True)
    ]
    path = str(write_records(tmp_path / "val.record", examples))
    export_records([path], CAT_DOG, tmp_path / "coco", "coco", split="val")
    return ExampleSource([path], CAT_DOG), tmp_path / "coco/annotations/instances_val.json"


@pytest.mark.parametrize("ids", [["b.png", "a/b.png", "7"], ["3", "2", "1"], ["2", "1", "x"]])
def test_an_export_is_the_ground_truth_of_its_own_records(tmp_path, ids):
    source, path = exported(tmp_path, ids)
    truths = read_truths(source, range(3), read_annotations(str(path)))
    expected = read_truths(source, range(3))
    for record in range(3):
        np.testing.assert_allclose(truths[record].boxes, expected[record].boxes, atol=1e-4)


def test_records_of_one_id_have_no_ground_truth_in_an_export(tmp_path):
    # The file numbers its images 1 to 3: its number 2 is not the image with the id 2.
    source, path = exported(tmp_path, ["2", "2", "2"])
    message = str(refusal(read_truths, source, range(3), read_annotations(str(path))))
    assert "the file has no image with the id 2" in message


def test_a_file_of_another_program_is_matched_by_the_names_of_its_images(tmp_path):
    source, path = exported(tmp_path, ["x.png", "y.png"])
    content = json.loads(path.read_text())
    for image, name in zip(content["images"], ("x.png", "y.png"), strict=True):
        image.pop("source_id")
        image["file_name"] = name
    path.write_text(json.dumps(content))
    truths = read_truths(source, range(2), read_annotations(str(path)))
    expected = read_truths(source, range(2))
    assert truths[1].image_id == "2"
    np.testing.assert_allclose(truths[1].boxes, expected[1].boxes, atol=1e-4)

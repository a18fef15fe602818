"""COCO's metrics and files, and the programs of the documentation that use them."""

import json
import logging
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from stillbox.errors import UserError
from stillbox.evaluation.coco import (
    NO_TRUTH,
    NO_TRUTH_OF_SIZE,
    SUMMARY_MEANINGS,
    encode_results,
    from_coco_json,
    results_from_coco_json,
    results_to_coco,
    score_coco,
    truths_to_coco,
)
from stillbox.evaluation.results import ImageResult
from stillbox.evaluation.voc import score_voc
from tests.evaluation.builders import random_set, result, truth
from tests.helpers import read_json, refused
from tests.small import SHARED, needs_shared

GOLDEN = Path(__file__).resolve().parents[1] / "goldens" / "coco_metric.json"
NAMES = {1: "cat", 2: "dog"}
BOX = [10, 10, 60, 60]
OTHER_BOX = [100, 100, 150, 150]


def reference_numbers(truths, results, names):
    """The twelve numbers of pycocotools and its AP of every class; -1: no objects."""
    coco = COCO()
    coco.dataset = truths_to_coco(truths, names)
    coco.createIndex()
    evaluation = COCOeval(coco, coco.loadRes(results_to_coco(results)), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    per_class = evaluation.eval["precision"][:, :, :, 0, 2]
    return evaluation.stats, [
        p[p > -1].mean() if (p > -1).any() else -1 for p in np.moveaxis(per_class, 2, 0)
    ]


def test_results_are_encoded_with_every_digit():
    boxes = np.random.default_rng(0).normal(0, 1e3, (3, 4)).astype(np.float32)
    scores = np.array([1e-7, 1 / 3, 1], np.float32)
    kinds = np.array([1, 2, 3])
    results = [
        ImageResult(
            image_id=name, boxes=boxes[:count], scores=scores[:count], class_ids=kinds[:count]
        )
        for name, count in (("empty", 0), ('0\u00fc"7', 3), ("8", 1), ("9", 0))
    ]
    assert json.loads(encode_results(results)) == results_to_coco(results)
    assert encode_results(results[:1]) == b"[]"
    # One line for each image with detections.
    assert len(encode_results(results).splitlines()) == 2


def test_the_golden_of_the_original_is_reproduced(tmp_path):
    golden = read_json(GOLDEN)
    (tmp_path / "truth.json").write_text(json.dumps(golden["gt"]))
    (tmp_path / "results.json").write_text(json.dumps(golden["detections"]))
    truths, names = from_coco_json(tmp_path / "truth.json")
    scores = score_coco(truths, results_from_coco_json(tmp_path / "results.json"), names)
    expected = golden["expected"]["summary"]
    expected["AP"] = expected.pop("mAP")
    assert scores.summary == pytest.approx(expected, abs=1e-9)
    per_class = [-1 if (ap := c.numbers["AP"]) is None else ap for c in scores.per_class.values()]
    assert per_class == pytest.approx(golden["expected"]["per_category"], abs=1e-9)
    # Image 2 has no boxes at all and still counts.
    assert (scores.images, scores.truths, scores.crowds, scores.detections) == (20, 82, 5, 139)


@pytest.mark.proof
@needs_shared
def test_the_published_oracle_is_reproduced():
    folder = SHARED / "data" / "coco_eval_oracle"
    truths, names = from_coco_json(folder / "instances_val2014_100.json")
    results = results_from_coco_json(folder / "instances_val2014_fakebbox100_results.json")
    summary = score_coco(truths, results, names).summary
    precisions = [0.504581, 0.696973, 0.572982, 0.585563, 0.519400, 0.501399]
    recalls = [0.386813, 0.593680, 0.595353, 0.639811, 0.566422, 0.564291]
    published = dict(zip(SUMMARY_MEANINGS, [*precisions, *recalls], strict=True))
    # The published figures of three sizes come from an older release than the one that people
    # compare with today: pycocotools 2.0.11 itself says APs .585626, APl .501398, ARm .566421.
    today = dict(zip(SUMMARY_MEANINGS, reference_numbers(truths, results, names)[0], strict=True))
    assert summary == pytest.approx(today, abs=1e-9)
    for key in set(SUMMARY_MEANINGS) - {"APs", "APl", "ARm"}:
        assert summary[key] == pytest.approx(published[key], abs=1e-6), key
    assert summary["APl"] == pytest.approx(published["APl"], abs=2e-6)
    assert summary["ARm"] == pytest.approx(published["ARm"], abs=2e-6)
    assert summary["APs"] == pytest.approx(published["APs"], abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_random_sets_score_as_in_pycocotools(seed):
    truths, results = random_set(seed)
    names = {1: "a", 2: "b", 3: "c"}
    scores = score_coco(truths, results, names)
    stats, per_class = reference_numbers(truths, results, names)
    assert list(scores.summary.values()) == pytest.approx(stats.tolist(), abs=1e-9)
    aps = [class_scores.numbers["AP"] for class_scores in scores.per_class.values()]
    assert aps == pytest.approx(per_class, abs=1e-9)


def test_the_order_of_the_images_makes_no_difference():
    truths, results = random_set(7)
    names = {1: "a", 2: "b", 3: "c"}
    forward = score_coco(truths, results, names)
    assert score_coco(truths[::-1], results[::-1], names).summary == forward.summary


def test_average_precision_by_hand():
    # Two cats. Found, best first: one of them exactly (right), a box on nothing (wrong), the other
    # exactly (right). Precision after each: 1/1, 1/2, 2/3; recall: 1/2, 1/2, 1. The curve never
    # rises to the left, so precision is 1 up to recall .5 (51 of the 101 points) and 2/3 beyond
    # (50 points): AP50 = (51 + 50 * 2/3) / 101. Exact boxes count at every IoU, so AP is the same.
    scores = score_coco(
        [truth("a", [BOX, OTHER_BOX])],
        [result("a", [BOX, [0, 150, 20, 170], OTHER_BOX], [0.9, 0.8, 0.7])],
        {1: "cat"},
    )
    expected = (51 + 50 * 2 / 3) / 101
    # With one detection an image, one of two cats is found.
    numbers = {"AP50": expected, "AP": expected, "AR1": 0.5, "AR10": 1.0}
    assert {key: scores.summary[key] for key in numbers} == pytest.approx(numbers)
    # The two cats are medium, 50 x 50; the wrong box is small and changes no medium AP.
    assert scores.summary["APm"] == pytest.approx(1.0)
    assert scores.summary["APs"] is None
    cat = scores.per_class["cat"]
    assert cat.precision50 == pytest.approx([1.0] * 51 + [2 / 3] * 50)
    assert cat.precision == pytest.approx(cat.precision50)
    assert scores.recalls[50] == 0.5


def test_the_mean_over_thresholds_by_hand():
    # 50 x 50 against 50 x 40 inside it: IoU .8. That is enough at .50, .55 ... .80, seven of ten.
    scores = score_coco([truth("a", [BOX])], [result("a", [[10, 10, 60, 50]], [1.0])], {1: "cat"})
    assert scores.summary["AP"] == pytest.approx(0.7)
    assert (scores.summary["AP50"], scores.summary["AP75"]) == (pytest.approx(1), pytest.approx(1))


def test_the_area_of_the_segment_decides_the_size():
    # The box has 2,500 square pixels (medium), its segment 900 (small).
    scores = score_coco([truth("a", [BOX], area=[900])], [result("a", [BOX], [1.0])], {1: "cat"})
    # pycocotools divides by the sum of right and wrong detections and `np.spacing(1)`.
    assert scores.summary["APs"] == 1 / (1 + np.spacing(1))
    assert scores.summary["APm"] is None


def test_no_detections_score_zero():
    scores = score_coco([truth("a", [BOX]), truth("b")], [], NAMES)
    assert (scores.summary["AP"], scores.summary["AR100"], scores.detections) == (0.0, 0.0, 0)
    assert scores.images == 2


def test_no_ground_truth_scores_none():
    scores = score_coco([truth("a"), truth("b")], [result("a", [BOX], [0.9])], NAMES)
    assert set(scores.summary.values()) == {None}
    assert scores.text("AP") == scores.text("APs") == NO_TRUTH
    assert scores.per_class["cat"].precision50 is None


def test_crowds_alone_score_none_and_detections_in_them_are_ignored():
    crowd_only = score_coco([truth("a", [BOX], is_crowd=[True])], [], {1: "cat"})
    assert (crowd_only.summary["AP"], crowd_only.truths, crowd_only.crowds) == (None, 0, 1)
    # A detection inside the crowd scores higher than the right one and changes nothing.
    scores = score_coco(
        [truth("a", [BOX, OTHER_BOX], is_crowd=[True, False])],
        [result("a", [[20, 20, 40, 40], OTHER_BOX], [0.9, 0.5])],
        {1: "cat"},
    )
    assert scores.summary["AP"] == pytest.approx(1.0)


def test_an_absent_class_is_left_out_of_the_mean():
    scores = score_coco([truth("a", [BOX])], [result("a", [BOX], [0.9])], NAMES)
    assert scores.summary["AP"] == pytest.approx(1.0)
    assert (scores.per_class["dog"].numbers["AP"], scores.per_class["dog"].truths) == (None, 0)
    assert scores.text("AP") == "1.000"
    assert scores.text("APl") == NO_TRUTH_OF_SIZE


def test_a_class_in_a_gap_of_the_label_map_is_counted_and_not_scored():
    scores = score_coco([truth("a", [BOX])], [result("a", [BOX], [0.9], [7])], {1: "cat"})
    assert (scores.detections, scores.foreign_detections, scores.summary["AP"]) == (0, 1, 0.0)


def test_two_classes_of_one_name_have_two_rows():
    scores = score_coco([truth("a", [BOX])], [], {1: "cat", 2: "cat"})
    assert list(scores.per_class) == ["cat (id 1)", "cat (id 2)"]


def test_scoring_is_quiet(capsys, caplog):
    caplog.set_level(logging.INFO, logger="stillbox")
    score_coco([truth("a", [BOX])], [result("a", [BOX], [0.9])], {1: "cat"})
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("truths", "results", "message"),
    [
        ([], [], "no image"),
        ([truth("a"), truth("a")], [], "more than one ground truth, 'a'"),
        ([truth("a")], [result("a"), result("a")], "more than one result, 'a'"),
        ([truth("a")], [result("b")], "1 result of images without ground truth, 'b'"),
        ([truth("a", [BOX], [9])], [], "image 'a': the label map has no class with id 9"),
        ([truth("a")], [result("a", [BOX], [np.nan])], "image 'a': a detection has a box or score"),
    ],
)
@pytest.mark.parametrize("score", [score_coco, score_voc])
def test_unusable_truths_and_results_are_refused(truths, results, message, score):
    with pytest.raises(UserError, match=message):
        score(truths, results, {1: "cat"})


def test_ground_truth_survives_the_file(tmp_path):
    truths = [
        truth("5", [[1, 2, 11, 32]], [3], is_crowd=[True], area=[120.5], size=(50, 60)),
        truth("000123"),
    ]
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(truths_to_coco(truths, {3: "cat"})))
    # x 2, y 1, 30 wide, 10 high.
    assert read_json(path)["annotations"][0]["bbox"] == [2, 1, 30, 10]
    back, names = from_coco_json(path)
    assert names == {3: "cat"}
    assert [t.image_id for t in back] == ["5", "000123"]
    for was, now in zip(truths, back, strict=True):
        assert (now.width, now.height) == (was.width, was.height)
        for field in ("boxes", "class_ids", "is_crowd", "area"):
            np.testing.assert_array_equal(getattr(now, field), getattr(was, field))


def test_an_annotation_without_area_has_that_of_its_box(tmp_path):
    content = truths_to_coco([truth("1", [[0, 0, 10, 20]])], {1: "cat"})
    del content["annotations"][0]["area"]
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert from_coco_json(tmp_path / "t.json")[0][0].areas().tolist() == [200]


def test_results_survive_the_file(tmp_path):
    path = tmp_path / "results.json"
    detections = result("7", [[1, 2, 3, 5], [0, 0, 1, 1]], [0.5, 0.25], [2, 1])
    path.write_text(json.dumps(results_to_coco([detections, result("8")])))
    first = {"image_id": 7, "category_id": 2, "bbox": [2.0, 1.0, 3.0, 2.0], "score": 0.5}
    assert read_json(path)[0] == first
    (back,) = results_from_coco_json(path)
    for field in ("boxes", "scores", "class_ids"):
        np.testing.assert_array_equal(getattr(back, field), getattr(detections, field))


def test_at_least_takes_the_best_first():
    detections = result("7", [[0, 0, 1, 1]] * 4, [0.2, 0.9, 0.5, 0.9], [1, 2, 3, 4])
    assert detections.at_least(0.5).class_ids.tolist() == [2, 4, 3]
    assert detections.at_least(0.0, limit=1).class_ids.tolist() == [2]
    assert len(detections.at_least(0.95).boxes) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "no COCO ground truth"),
        ("{", "this is not JSON"),
        (
            '{"images": [], "categories": [], "annotations": [{"id": 4, "image_id": 2}]}',
            "annotation 4 belongs to image 2",
        ),
    ],
)
def test_a_file_that_is_no_ground_truth_is_refused_by_name(tmp_path, content, message):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(UserError, match=rf"t\.json.*: {message}"):
        from_coco_json(tmp_path / "t.json")


def test_a_file_that_is_no_result_list_is_refused_by_name(tmp_path):
    (tmp_path / "r.json").write_text("{}")
    with refused("r.json"):
        results_from_coco_json(tmp_path / "r.json")
    (tmp_path / "r.json").write_text('[{"image_id": 1, "bbox": [0, 0, 1, 1], "score": 1}]')
    with refused("r.json: detection 0", "category_id"):
        results_from_coco_json(tmp_path / "r.json")
    with refused("none.json"):
        results_from_coco_json(tmp_path / "none.json")


def changed_truth(folder, **values):
    """A ground truth with three annotations, of which the second has these values."""
    content = truths_to_coco([truth("5", [BOX, OTHER_BOX]), truth("6", [BOX])], {1: "cat"})
    entry = content["annotations"][1] | values
    content["annotations"][1] = {name: field for name, field in entry.items() if field != "absent"}
    (folder / "truth.json").write_text(json.dumps(content))
    return folder / "truth.json"


BAD_BOXES = {
    "empty": ([], "[]"),
    "three numbers": ([1, 2, 3], "[1, 2, 3]"),
    "five numbers": ([1, 2, 3, 4, 5], "[1, 2, 3, 4, 5]"),
    "null": (None, "null"),
    "null inside": ([1, 2, None, 4], "[1, 2, null, 4]"),
    "text": ("box", '"box"'),
    "text inside": ([1, 2, "wide", 4], "wide"),
    "not a number": ([1, 2, float("nan"), 4], "NaN"),
    "infinite": ([1, 2, float("inf"), 4], "Infinity"),
    "nested": ([[1, 2, 3, 4]], "[[1, 2, 3, 4]]"),
    "missing": ("absent", "missing"),
}


@pytest.mark.parametrize("case", BAD_BOXES)
def test_an_annotation_without_a_box_is_named(tmp_path, case):
    bbox, said = BAD_BOXES[case]
    with refused("truth.json: annotations[1] (id 2, image_id 5)", said) as caught:
        from_coco_json(changed_truth(tmp_path, bbox=bbox))
    assert caught.value.where == f"{tmp_path}/truth.json: annotations[1] (id 2, image_id 5)"
    assert caught.value.fix == "write its box, or leave the entry out"


def test_a_segmentation_in_place_of_a_box_gives_the_box_around_it(tmp_path):
    outline = [[10, 20, 60, 20, 60, 70]]
    truths, _ = from_coco_json(changed_truth(tmp_path, bbox="absent", segmentation=outline))
    assert [20, 10, 70, 60] in [box for truth in truths for box in truth.boxes.tolist()]
    with refused("truth.json: annotations[1] (id 2, image_id 5)"):
        from_coco_json(changed_truth(tmp_path, bbox="absent", segmentation=[]))


@pytest.mark.parametrize("category", [None, "cat", 1.5, "absent", []])
def test_an_annotation_without_a_class_is_named(tmp_path, category):
    with refused("truth.json: annotations[1] (id 2, image_id 5)", "category_id"):
        from_coco_json(changed_truth(tmp_path, category_id=category))


def test_a_detection_without_a_box_is_named(tmp_path):
    entries = results_to_coco([result("7", [BOX, BOX], [0.5, 0.25])])
    entries[1]["bbox"] = []
    (tmp_path / "r.json").write_text(json.dumps(entries))
    with refused("r.json: detection 1 (image_id 7)"):
        results_from_coco_json(tmp_path / "r.json")


def test_numbers_that_are_spelt_as_text_are_numbers(tmp_path):
    values = {"bbox": ["1", "2.5", "30", "4e1"], "category_id": "1", "iscrowd": "0", "area": "50"}
    truths, _ = from_coco_json(changed_truth(tmp_path, **values))
    # x 1, y 2.5, 30 wide, 40 high.
    assert truths[0].boxes[1].tolist() == [2.5, 1, 42.5, 31]
    assert truths[0].is_crowd.tolist() == [False, False]
    assert truths[0].areas()[1] == 50
    assert from_coco_json(changed_truth(tmp_path, iscrowd=True))[0][0].is_crowd.tolist()[1]
    detection = {"image_id": 1, "category_id": "2", "bbox": ["1", 2, 3, 4], "score": "0.5"}
    (tmp_path / "r.json").write_text(json.dumps([detection]))
    (read,) = results_from_coco_json(tmp_path / "r.json")
    assert (read.class_ids.tolist(), read.scores.tolist()) == ([2], [0.5])


@pytest.mark.parametrize("spell", [str, int, float])
@pytest.mark.parametrize("of", ["truth", "annotations", "results"])
def test_an_image_id_is_the_same_as_text_and_as_number(tmp_path, of, spell):
    content = truths_to_coco([truth("5", [BOX])], {1: "cat"})
    detections = results_to_coco([result("5", [BOX], [0.9]), result("5", [OTHER_BOX], [0.1])])
    entries = {
        "truth": content["images"],
        "annotations": content["annotations"],
        "results": detections,
    }
    entry = entries[of][0]
    name = "id" if of == "truth" else "image_id"
    entry[name] = spell(entry[name])
    (tmp_path / "t.json").write_text(json.dumps(content))
    (tmp_path / "r.json").write_text(json.dumps(detections))
    truths, names = from_coco_json(tmp_path / "t.json")
    results = results_from_coco_json(tmp_path / "r.json")
    # One result of two detections, in whichever way each has its id.
    assert [image_result.image_id for image_result in results] == ["5"]
    assert score_coco(truths, results, names).summary["AP"] == pytest.approx(1)


@needs_shared
def test_a_dense_truth_scores_as_in_pycocotools():
    folder = SHARED / "cases" / "data" / "ev"
    truths, names = from_coco_json(folder / "dense_truth.json")
    results = results_from_coco_json(folder / "dense_results.json")
    scores = score_coco(truths, results, names)
    stats, _ = reference_numbers(truths, results, names)
    assert scores.summary["AP"] == pytest.approx(stats[0]) == pytest.approx(0.337, abs=5e-4)
    with refused("", "annotations[0]", 1, "image_id"):
        from_coco_json(folder / "truth_empty_bbox.json")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"


def test_the_programs_on_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    box = [[10, 10, 60, 60]]
    Path("truth.json").write_text(json.dumps(truths_to_coco([truth("1", box)], {1: "cat"})))
    Path("detections.json").write_text(json.dumps(results_to_coco([result("1", box, [0.9])])))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
    said = capsys.readouterr().out
    assert "AP50 1.000" in said
    assert "APl no ground truth of this size" in said
    assert Path("scenes/label_map.pbtxt").is_file()


def test_classes_without_objects_need_no_memory():
    # The library's arrays have 10 x 101 x 4 x 3 numbers for a class, 97 kB.
    names = {number: f"class {number}" for number in range(1, 5001)}
    truths = [truth("1", [[0, 0, 50, 50]], [4999])]
    results = [result("1", [[0, 0, 50, 50]] * 2, [0.9, 0.8], [4999, 3])]
    tracemalloc.start()
    scores = score_coco(truths, results, names)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5000 * 5_000
    assert (scores.detections, len(scores.per_class)) == (2, 5000)
    assert scores.summary["AP"] == pytest.approx(1.0)
    assert scores.per_class["class 4999"].numbers["AP50"] == pytest.approx(1.0)
    assert scores.per_class["class 3"].numbers["AP50"] is None
    assert scores.per_class["class 3"].detections == 1

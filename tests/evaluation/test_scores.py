"""Several metrics of one set of detections, their names, and scores on a terminal.

Open Images V2: wrong detections inside groups are ignored, and groups need not be found. The
expected numbers come from the original's `OpenImagesDetectionEvaluator`
(`object_detection/utils/object_detection_evaluation.py` of PyPI's
tf-models-research-object-detection 2.8.0.post1), executed on the images of the test.
"""

import numpy as np
import pytest

from stillbox.evaluation.analysis import analyse
from stillbox.evaluation.coco import SUMMARY_MEANINGS
from stillbox.evaluation.scores import MEANINGS, score, scores_table, steps_table, threshold_text
from stillbox.evaluation.voc import VocRules
from stillbox.records.example import Example
from stillbox.records.tf_example import parse_example, serialize_example
from stillbox.records.wire import parse_features, serialize_features
from tests.evaluation.builders import result, truth

BOX, OTHER = [10, 10, 60, 60], [100, 100, 150, 150]
NAMES = {1: "cat", 2: "dog", 3: "owl"}
TRUTHS = [truth("1", [BOX, OTHER, [0, 100, 30, 130]], [1, 1, 2])]
# The two cats are found; the best score of all is a wrong detection in place of the dog.
RESULTS = [result("1", [BOX, OTHER, [150, 0, 190, 40]], [0.9, 0.8, 0.95], [1, 1, 2])]
ALL = ("coco", "pascal_voc", "weighted_pascal_voc")


@pytest.mark.parametrize(
    ("metrics", "keys"),
    [
        (("coco",), list(SUMMARY_MEANINGS)),
        (("pascal_voc",), ["VOC_mAP"]),
        (("weighted_pascal_voc",), ["VOC_weighted_mAP"]),
        (("weighted_pascal_voc", "coco"), [*SUMMARY_MEANINGS, "VOC_weighted_mAP"]),
        ((*ALL, "open_images"), list(MEANINGS)),
    ],
)
def test_the_requested_metrics_are_computed(metrics, keys):
    scores = score(TRUTHS, RESULTS, NAMES, metrics=metrics)
    assert list(scores.summary) == keys
    assert scores.first.truths == 3


def test_the_numbers_of_all_metrics():
    scores = score(TRUTHS, RESULTS, NAMES, metrics=ALL)
    # Cats 1, dogs 0, owls do not count.
    assert scores.summary["AP50"] == pytest.approx(0.5)
    assert scores.summary["VOC_mAP"] == pytest.approx(0.5)
    # Wrong, right, right of three: precision 2/3 up to recall 2/3.
    assert scores.summary["VOC_weighted_mAP"] == pytest.approx(4 / 9)
    assert scores.headline() == (
        "AP 0.500, AP50 0.500, AP75 0.500, VOC_mAP 0.500, VOC_weighted_mAP 0.444"
    )


def test_eleven_point_interpolation():
    rules = VocRules(interpolation="eleven_points")
    scores = score(TRUTHS, RESULTS, NAMES, metrics=["weighted_pascal_voc"], rules=rules)
    # Recalls 0 to .6: seven points at 2/3.
    assert scores.summary["VOC_weighted_mAP"] == pytest.approx(7 * 2 / 3 / 11)


def test_no_ground_truth_has_a_text():
    scores = score([truth("1")], [], NAMES, metrics=ALL)
    assert scores.text("VOC_mAP") == scores.text("AP") == "no ground truth"
    assert scores.curves() == {}


@pytest.mark.parametrize("metrics", [("coco",), ("pascal_voc",)])
def test_every_class_with_something_to_find_has_a_curve(metrics):
    curves = score(TRUTHS, RESULTS, NAMES, metrics=metrics).curves()
    assert {name: ap for name, (ap, _) in curves.items()} == {"cat": 1.0, "dog": 0.0}
    assert curves["cat"][1].tolist() == [1.0] * 101


def test_the_numbers_of_a_class():
    scores = score(TRUTHS, RESULTS, NAMES, metrics=ALL)
    few = scores.class_numbers("cat")
    assert list(few) == ["AP", "AP50", "AP75", "AR100", "VOC_AP"]
    assert few["VOC_AP"] == 1.0
    every = scores.class_numbers("dog", all_metrics=True)
    assert list(every) == [*SUMMARY_MEANINGS, "VOC_AP"]
    # The dog is of 30 x 30 pixels: small.
    assert (every["APs"], every["APm"]) == (0.0, None)
    assert scores.class_numbers("owl")["AP"] is None


def test_the_original_s_names():
    scores = score(TRUTHS, RESULTS, NAMES, metrics=ALL)
    summary = scores.original_names()
    ranges = ("small", "medium", "large")
    precisions = ("", "@.50IOU", "@.75IOU", *(f" ({size})" for size in ranges))
    recalls = ("1", "10", "100", *(f"100 ({size})" for size in ranges))
    assert list(summary) == [
        *(f"DetectionBoxes_Precision/mAP{end}" for end in precisions),
        *(f"DetectionBoxes_Recall/AR@{end}" for end in recalls),
        "PascalBoxes_Precision/mAP@0.5IOU",
        "WeightedPascalBoxes_Precision/mAP@0.5IOU",
    ]
    assert list(summary.values()) == list(scores.summary.values())


def test_the_original_s_names_of_classes():
    scores = score(TRUTHS, RESULTS, NAMES, metrics=("coco", "pascal_voc"))
    summary = scores.original_names()
    named = scores.original_names(per_category=True)
    values = {"cat": 1.0, "dog": 0.0, "owl": None}.items()
    assert {name: named[name] for name in named.keys() - summary.keys()} == {
        **{f"DetectionBoxes_PerformanceByCategory/mAP/{name}": ap for name, ap in values},
        **{f"PascalBoxes_PerformanceByCategory/AP@0.5IOU/{name}": ap for name, ap in values},
    }
    every = scores.original_names(per_category=True, all_metrics=True)
    assert every["DetectionBoxes_Precision/mAP@.75IOU ByCategory/cat"] == 1.0
    assert len(every.keys() - named.keys()) == 3 * 12


def test_the_rules_of_voc_are_part_of_the_meaning_and_of_the_original_s_name():
    rules = VocRules(interpolation="eleven_points", min_iou=0.75, inclusive=True)
    scores = score(TRUTHS, RESULTS, NAMES, metrics=["pascal_voc"], rules=rules)
    meaning = "mean over classes, IoU at least .75, inclusive pixels, eleven points"
    assert scores.meaning("VOC_mAP") == meaning
    assert "PascalBoxes_Precision/mAP@0.75IOU" in scores.original_names()


def scores(*metrics):
    box = [10, 10, 60, 60]  # 2,500 square pixels: of medium size
    truths = [truth("1", [box, [100, 100, 150, 150]], [1, 2])]
    results = [result("1", [box], [0.9], [1])]
    return score(truths, results, NAMES, metrics=metrics or ("coco",))


def test_every_number_has_a_line_with_its_meaning():
    lines = scores_table(scores(), per_category=False).splitlines()
    assert len(lines) == 12
    for line, (name, meaning) in zip(lines, SUMMARY_MEANINGS.items(), strict=True):
        assert line.startswith(name)
        assert line.endswith(meaning)
    # The cat is found, the dog is not: (1 + 0) / 2.
    assert lines[0].split()[1] == "0.500"
    assert "no ground truth of this size" in lines[3]


def test_classes_with_ground_truth_follow_on_request():
    lines = scores_table(scores(), per_category=True).splitlines()
    assert lines[12] == ""
    assert lines[13].split() == ["class", "AP", "AP50", "boxes"]
    rows = [line.split() for line in lines[14:]]
    assert rows == [["cat", "1.000", "1.000", "1"], ["dog", "0.000", "0.000", "1"]]


def test_all_twelve_numbers_of_a_class_on_request():
    lines = scores_table(scores(), per_category=True, all_metrics=True).splitlines()
    assert lines[13].split() == ["class", *SUMMARY_MEANINGS, "boxes"]
    # Nothing of the cat is small or large: - stands for "nothing to find".
    cat = dict(zip(lines[13].split(), lines[14].split(), strict=True))
    assert (cat["AP"], cat["APm"], cat["APs"], cat["ARl"]) == ("1.000", "1.000", "-", "-")


def test_voc_s_numbers_stand_alone_or_behind_coco_s():
    alone = scores_table(scores("pascal_voc"), per_category=True).splitlines()
    assert alone[0].split()[:2] == ["VOC_mAP", "0.500"]
    rows = [line.split() for line in alone[2:4]]
    assert rows == [["class", "VOC_AP", "boxes"], ["cat", "1.000", "1"]]
    both = scores_table(scores("pascal_voc", "coco"), per_category=True).splitlines()
    assert both[12].startswith("VOC_mAP")
    assert both[14].split() == ["class", "AP", "AP50", "VOC_AP", "boxes"]


def test_checkpoints_are_compared_line_by_line_and_the_best_is_marked():
    evaluations = [
        (500, {"AP": 0.1234567, "AP50": 0.5, "APs": None}),
        (1000, {"AP": 0.1, "AP50": 0.75, "APs": 0.2}),
    ]
    assert [line.split() for line in steps_table(evaluations, "AP50").splitlines()] == [
        ["step", "AP50", "AP"],
        ["500", "0.50000", "0.12346"],
        ["1000", "0.75000", "0.10000", "best"],
    ]
    rows = steps_table(evaluations, "APs").splitlines()
    assert rows[1].split() == ["500", "-", "0.12346", "0.50000"]
    assert rows[2].endswith("best")
    assert len({len(row.removesuffix(" best")) for row in rows}) == 1


def test_without_detections_no_checkpoint_is_marked_as_best():
    assert "best" not in steps_table([(5, {"AP": 0.0}), (6, {"AP": None})], "AP")


def test_the_best_threshold_comes_with_its_figures():
    box, far = [10, 10, 60, 60], [100, 100, 150, 150]
    truths = [truth("1", [box, far], [1, 2])]
    results = [result("1", [box, far, far], [0.9, 0.7, 0.5], [1, 3, 2])]
    # F1 from 0.9 on: 2 * 1 / (1 + 2); from 0.7 on: 2 / (2 + 2); from 0.5 on: 4 / (3 + 2).
    assert threshold_text(analyse(truths, results, NAMES).overall) == (
        "best threshold: 0.500, precision 0.667, recall 1.000, F1 0.800"
    )
    wrong = [result("1", [far], [0.9], [1])]
    text = threshold_text(analyse(truths, wrong, NAMES).overall)
    assert text == "best threshold: none, because no detection is correct"


CLASSES = {1: "a", 2: "b", 3: "c"}


def boxes(rng, count):
    corners = rng.uniform(0, 80, (count, 2))
    return np.concatenate([corners, corners + rng.uniform(5, 60, (count, 2))], 1).astype(np.float32)


def images():
    """Yields ground truth, classes, groups, detections, their classes and scores of an image."""
    rng = np.random.RandomState(7)
    for _ in range(12):
        truths, detections_count = rng.randint(0, 7), rng.randint(0, 12)
        objects, classes = boxes(rng, truths), rng.randint(1, 4, truths)
        groups = rng.uniform(size=truths) < 0.35
        near = boxes(rng, detections_count) if not truths else None
        if truths:
            near = objects[rng.randint(0, truths, detections_count)] + rng.uniform(
                -6, 6, (detections_count, 4)
            )
        close = rng.uniform(size=detections_count) < 0.7
        detections = np.where(close[:, None], near, boxes(rng, detections_count)).astype(np.float32)
        kinds, scores = (
            rng.randint(1, 4, detections_count),
            rng.uniform(size=detections_count).astype(np.float32),
        )
        if truths:
            chosen = classes[rng.randint(0, truths, detections_count)]
            kinds = np.where(rng.uniform(size=detections_count) < 0.6, chosen, kinds)
        yield objects, classes, groups, detections, kinds, scores


def test_the_scores_are_those_of_the_original():
    truths, results = [], []
    for number, (objects, classes, groups, detections, kinds, scores) in enumerate(images()):
        truths.append(truth(str(number), objects, classes, is_crowd=groups))
        results.append(result(str(number), detections, scores, kinds))
    scores = score(truths, results, CLASSES, metrics=["open_images"])
    assert scores.original_names(per_category=True) == pytest.approx(
        {
            "OpenImagesV2_Precision/mAP@0.5IOU": 0.17255291005291004,
            "OpenImagesV2_PerformanceByCategory/AP@0.5IOU/a": 0.3601190476190476,
            "OpenImagesV2_PerformanceByCategory/AP@0.5IOU/b": 0.09642857142857142,
            "OpenImagesV2_PerformanceByCategory/AP@0.5IOU/c": 0.06111111111111111,
        }
    )
    # Pascal VOC differs by the groups.
    pascal = score(truths, results, CLASSES, metrics=["pascal_voc"])
    assert pascal.summary["VOC_mAP"] != pytest.approx(0.17255291, abs=1e-3)


def test_groups_are_read_where_there_are_no_crowds():
    example = Example(
        image_id="a",
        encoded=b"\x89PNG",
        boxes=np.array([[0, 0, 0.5, 0.5], [0, 0, 1, 1]], np.float32),
        class_ids=np.array([1, 1], np.int32),
    )
    features = parse_features(serialize_example(example))
    features["image/object/group_of"] = np.array([0, 1])
    assert not parse_example(serialize_features(features)).example.is_crowd.any()
    del features["image/object/is_crowd"]
    assert parse_example(serialize_features(features)).example.is_crowd.tolist() == [False, True]

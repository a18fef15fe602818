"""Several metrics of one set of detections, and what they are called."""

import pytest

from stillbox.evaluation.coco import SUMMARY_MEANINGS
from stillbox.evaluation.scores import MEANINGS, score
from stillbox.evaluation.voc import VocRules
from tests.evaluation.builders import result, truth

BOX, OTHER = [10, 10, 60, 60], [100, 100, 150, 150]
NAMES = {1: "cat", 2: "dog", 3: "owl"}
TRUTHS = [truth("1", [BOX, OTHER, [0, 100, 30, 130]], [1, 1, 2])]
# Both cats are found; in place of the dog something else is, with the best score of all.
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
    assert list(summary) == [
        "DetectionBoxes_Precision/mAP",
        "DetectionBoxes_Precision/mAP@.50IOU",
        "DetectionBoxes_Precision/mAP@.75IOU",
        "DetectionBoxes_Precision/mAP (small)",
        "DetectionBoxes_Precision/mAP (medium)",
        "DetectionBoxes_Precision/mAP (large)",
        "DetectionBoxes_Recall/AR@1",
        "DetectionBoxes_Recall/AR@10",
        "DetectionBoxes_Recall/AR@100",
        "DetectionBoxes_Recall/AR@100 (small)",
        "DetectionBoxes_Recall/AR@100 (medium)",
        "DetectionBoxes_Recall/AR@100 (large)",
        "PascalBoxes_Precision/mAP@0.5IOU",
        "WeightedPascalBoxes_Precision/mAP@0.5IOU",
    ]
    assert list(summary.values()) == list(scores.summary.values())


def test_the_original_s_names_of_classes():
    scores = score(TRUTHS, RESULTS, NAMES, metrics=("coco", "pascal_voc"))
    summary = scores.original_names()
    named = scores.original_names(per_category=True)
    assert {name: named[name] for name in named.keys() - summary.keys()} == {
        "DetectionBoxes_PerformanceByCategory/mAP/cat": 1.0,
        "DetectionBoxes_PerformanceByCategory/mAP/dog": 0.0,
        "DetectionBoxes_PerformanceByCategory/mAP/owl": None,
        "PascalBoxes_PerformanceByCategory/AP@0.5IOU/cat": 1.0,
        "PascalBoxes_PerformanceByCategory/AP@0.5IOU/dog": 0.0,
        "PascalBoxes_PerformanceByCategory/AP@0.5IOU/owl": None,
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

"""Scores on a terminal."""

from stillbox.evaluation.analysis import analyse
from stillbox.evaluation.coco import SUMMARY_MEANINGS
from stillbox.evaluation.scores import score
from stillbox.evaluation.table import scores_table, steps_table, threshold_text
from tests.evaluation.builders import result, truth

NAMES = {1: "cat", 2: "dog", 3: "owl"}


def scores(*metrics):
    box = [10, 10, 60, 60]  # 2,500 square pixels: of medium size
    truths = [truth("1", [box, [100, 100, 150, 150]], [1, 2])]
    found = [result("1", [box], [0.9], [1])]
    return score(truths, found, NAMES, metrics=metrics or ("coco",))


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
    assert [line.split() for line in lines[14:]] == [
        ["cat", "1.000", "1.000", "1"],
        ["dog", "0.000", "0.000", "1"],
    ]


def test_all_twelve_numbers_of_a_class_on_request():
    lines = scores_table(scores(), per_category=True, all_metrics=True).splitlines()
    assert lines[13].split() == ["class", *SUMMARY_MEANINGS, "boxes"]
    # Nothing of the cat is small or large: - stands for "nothing to find".
    cat = dict(zip(lines[13].split(), lines[14].split(), strict=True))
    assert (cat["AP"], cat["APm"], cat["APs"], cat["ARl"]) == ("1.000", "1.000", "-", "-")


def test_voc_s_numbers_stand_alone_or_behind_coco_s():
    alone = scores_table(scores("pascal_voc"), per_category=True).splitlines()
    assert alone[0].split()[:2] == ["VOC_mAP", "0.500"]
    assert [line.split() for line in alone[2:4]] == [
        ["class", "VOC_AP", "boxes"],
        ["cat", "1.000", "1"],
    ]
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


def test_nothing_is_best_where_nothing_was_found():
    assert "best" not in steps_table([(5, {"AP": 0.0}), (6, {"AP": None})], "AP")


def test_the_best_threshold_stands_with_what_it_gives():
    box, far = [10, 10, 60, 60], [100, 100, 150, 150]
    truths = [truth("1", [box, far], [1, 2])]
    found = [result("1", [box, far, far], [0.9, 0.7, 0.5], [1, 3, 2])]
    # F1 from 0.9 on: 2 * 1 / (1 + 2); from 0.7 on: 2 / (2 + 2); from 0.5 on: 4 / (3 + 2).
    assert threshold_text(analyse(truths, found, NAMES).overall) == (
        "best threshold: 0.500, precision 0.667, recall 1.000, F1 0.800"
    )
    wrong = [result("1", [far], [0.9], [1])]
    text = threshold_text(analyse(truths, wrong, NAMES).overall)
    assert text == "best threshold: none, because no detection is correct"

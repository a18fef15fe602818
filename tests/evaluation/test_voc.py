"""Pascal VOC's metrics by hand, against published unit tests, brute force and COCO's AP50."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from stillbox.evaluation.coco import score_coco
from stillbox.evaluation.ground_truth import read_truths
from stillbox.evaluation.voc import VocRules, average_precision, precision_recall, score_voc
from stillbox.records.formats.voc import read_voc
from stillbox.records.problems import ConversionLog
from tests.evaluation.builders import overlap, random_set, result, truth
from tests.inputs.helpers import dataset, example
from tests.small import SHARED, needs_shared

BOX, OTHER = [10, 10, 60, 60], [100, 100, 150, 150]
NOWHERE = [0, 150, 20, 170]
NAMES = {1: "a", 2: "b", 3: "c"}


def test_the_published_average_precision():
    # object_detection/utils/metrics_test.py. Best precision from each recall on:
    # .9 .9 .9 .7 .7 .55 .55 0;
    # steps of recall: .3 0 .1 0 .05 0 .05 0. .27 + .09 + .035 + .0275 = .4225.
    precision = np.array([0.8, 0.76, 0.9, 0.65, 0.7, 0.5, 0.55, 0])
    recall = np.array([0.3, 0.3, 0.4, 0.4, 0.45, 0.45, 0.5, 0.5])
    assert average_precision(precision, recall, "all_points") == pytest.approx(0.4225)
    # At recalls 0 to .4 the best is .9, at .5 it is .55, beyond nothing: (5 * .9 + .55) / 11.
    assert average_precision(precision, recall, "eleven_points") == pytest.approx(5.05 / 11)


def test_the_published_precision_and_recall():
    # object_detection/utils/metrics_test.py: of ten boxes, by score, wrong, right, wrong, ...
    scores = np.array([0.4, 0.3, 0.6, 0.2, 0.7, 0.1])
    labels = np.array([False, True, True, False, False, True])
    precision, recall = precision_recall(scores, labels, 10)
    assert precision.tolist() == [0 / 1, 1 / 2, 1 / 3, 2 / 4, 2 / 5, 3 / 6]
    assert recall.tolist() == [0, 0.1, 0.1, 0.2, 0.2, 0.3]


def test_the_published_evaluation_of_three_images():
    # object_detection/utils/object_detection_evaluation_test.py, without its group box.
    truths = [
        truth("img1", [[0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]], [1, 3, 1]),
        truth("img2", [[10, 10, 11, 11], [500, 500, 510, 510]], [1, 1], is_difficult=[False, True]),
        truth("img3", [[0, 0, 1, 1]], [2]),
    ]
    boxes = [[10, 10, 11, 11], [100, 100, 120, 120], [100, 100, 220, 220]]
    scores = score_voc(truths, [result("img2", boxes, [0.7, 0.8, 0.9], [1, 1, 3])], NAMES)
    # Class a has three boxes to find: wrong at .8, right at .7: 1/3 * 1/2.
    assert [class_scores.ap for class_scores in scores.per_class.values()] == pytest.approx(
        [1 / 6, 0, 0]
    )
    assert scores.mean_ap == pytest.approx(0.0555556, abs=1e-7)
    assert [class_scores.truths for class_scores in scores.per_class.values()] == [3, 1, 1]
    assert (scores.truths, scores.difficult, scores.detections) == (5, 1, 3)
    # In one list: wrong (.9), wrong (.8), right (.7); five boxes: 1/5 * 1/3.
    assert scores.pooled_ap == pytest.approx(1 / 15)


def test_eleven_points_by_hand():
    # Twenty boxes, the first seven detections find seven: precision 1 up to recall .35.
    boxes = [[0, 20 * n, 10, 20 * n + 10] for n in range(20)]
    scores = score_voc(
        [truth("1", boxes)],
        [result("1", boxes[:7], 0.9 - np.arange(7) / 10)],
        {1: "a"},
        rules=VocRules(interpolation="eleven_points"),
    )
    assert scores.mean_ap == pytest.approx(4 / 11)  # recalls 0, .1, .2, .3
    curve = scores.per_class["a"].precision
    assert (curve[35], curve[36]) == (1, 0)


@pytest.mark.parametrize("truths", [10, 20, 30, 70])
@pytest.mark.parametrize("tenths", range(11))
def test_a_recall_of_whole_tenths_reaches_the_points_of_the_devkit(tenths, truths):
    # VOCevaldet.m asks `rec >= t` for t of 0:0.1:1. In double precision 3 * .1, 6 * .1 and 7 * .1
    # are above 3 / 10, 6 / 10 and 7 / 10, so the highest point is not reached; all others are.
    correct = tenths * truths // 10
    precision, recall = precision_recall(
        -np.arange(correct, dtype=float), np.ones(correct, bool), truths
    )
    points = 0 if not tenths else tenths + 1 - (tenths in (3, 6, 7))
    assert average_precision(precision, recall, "eleven_points") == pytest.approx(points / 11)


@pytest.mark.parametrize(
    ("detections", "expected"),
    [
        ([BOX], 1.0),
        ([], 0.0),
        # The second one on the same box is wrong, but comes after everything is found.
        ([BOX, BOX], 1.0),
        ([NOWHERE, BOX], 0.5),
        # All detections on the difficult box are ignored, neither right nor wrong.
        ([OTHER, OTHER, BOX], 1.0),
        ([OTHER], 0.0),
    ],
)
def test_a_difficult_box_counts_neither_way(detections, expected):
    scores = 0.9 - 0.1 * np.arange(len(detections))
    answer = score_voc(
        [truth("1", [BOX, OTHER], is_difficult=[False, True])],
        [result("1", detections, scores)],
        {1: "a"},
    )
    assert answer.mean_ap == pytest.approx(expected)
    assert (answer.truths, answer.difficult) == (1, 1)


def test_an_overlap_of_exactly_half_counts_and_the_best_box_decides():
    # 50 x 50 against 50 x 25 inside it: IoU .5.
    half = score_voc([truth("1", [BOX])], [result("1", [[10, 10, 60, 35]], [0.9])], {1: "a"})
    assert half.mean_ap == 1.0
    less = score_voc([truth("1", [BOX])], [result("1", [[10, 10, 60, 34.9]], [0.9])], {1: "a"})
    assert less.mean_ap == 0.0
    # Two boxes that overlap: the second detection is best at the taken one, so it is wrong though
    # it overlaps the other, free one by 40 / 60. COCO would give it the free one.
    truths = [truth("1", [[0, 0, 10, 50], [0, 10, 10, 60]])]
    results = [result("1", [[0, 0, 10, 50], [0, 1, 10, 51]], [0.9, 0.8])]
    assert score_voc(truths, results, {1: "a"}).mean_ap == pytest.approx(0.5)
    assert score_coco(truths, results, {1: "a"}).summary["AP50"] == pytest.approx(1.0)


def test_classes_without_ground_truth_are_left_out():
    truths = [truth("1", [BOX, OTHER], [1, 2], is_difficult=[False, True])]
    scores = score_voc(truths, [result("1", [BOX, NOWHERE], [0.5, 0.9], [1, 2])], NAMES)
    assert [class_scores.ap for class_scores in scores.per_class.values()] == [1.0, None, None]
    # The wrong detection of class b does not change the pool either.
    assert (scores.mean_ap, scores.pooled_ap) == (1.0, 1.0)
    nothing = score_voc([truth("1")], [result("1", [BOX], [0.9])], NAMES)
    assert (nothing.mean_ap, nothing.pooled_ap) == (None, None)


def test_detections_outside_the_label_map_are_counted_and_not_scored():
    scores = score_voc([truth("1", [BOX])], [result("1", [BOX, BOX], [0.9, 1], [1, 9])], NAMES)
    assert (scores.mean_ap, scores.detections, scores.foreign_detections) == (1.0, 1, 1)


def judged(truths, results, class_id):
    """Whether each counting detection of a class is right, best first; and the boxes to find."""
    free = {t.image_id: list(np.flatnonzero(t.class_ids == class_id)) for t in truths}
    by_id = {t.image_id: t for t in truths}
    candidates = [
        (-score, int(r.image_id), number, r.image_id, box)
        for r in results
        for number, (box, score, c) in enumerate(zip(r.boxes, r.scores, r.class_ids, strict=True))
        if c == class_id
    ]
    verdicts = []
    for negated, image, number, image_id, box in sorted(
        candidates, key=lambda candidate: candidate[:3]
    ):
        t = by_id[image_id]
        overlaps = [(overlap(box, t.boxes[i]), -i) for i in np.flatnonzero(t.class_ids == class_id)]
        most, index = max(overlaps, default=(0, 0))
        if most >= 0.5 and t.is_difficult[-index]:
            continue
        right = most >= 0.5 and -index in free[image_id]
        if right:
            free[image_id].remove(-index)
        verdicts.append(((negated, image, number), right))
    wanted = sum(int(((t.class_ids == class_id) & ~t.is_difficult).sum()) for t in truths)
    return verdicts, wanted


def brute_force(verdicts, wanted):
    """The mean, over the boxes to find, of the best precision at which so many are found."""
    rights = [right for _, right in verdicts]
    points = [(sum(rights[: n + 1]), n + 1) for n in range(len(rights))]
    best = [
        max((Fraction(tp, n) for tp, n in points if tp >= k), default=Fraction(0))
        for k in range(wanted + 1)
    ]
    eleven = [
        max((Fraction(tp, n) for tp, n in points if tp / wanted >= k * 0.1), default=Fraction(0))
        for k in range(11)
    ]
    return float(sum(best[1:]) / wanted), float(sum(eleven) / 11)


@pytest.mark.parametrize("seed", range(4))
def test_random_sets_agree_with_brute_force(seed):
    truths, results = random_set(seed)
    area = score_voc(truths, results, NAMES)
    eleven = score_voc(truths, results, NAMES, rules=VocRules(interpolation="eleven_points"))
    by_class = [judged(truths, results, class_id) for class_id in NAMES]
    expected = [brute_force(*rows) for rows in by_class]
    assert [c.ap for c in area.per_class.values()] == pytest.approx([a for a, _ in expected])
    assert [c.ap for c in eleven.per_class.values()] == pytest.approx([e for _, e in expected])
    assert area.mean_ap == pytest.approx(np.mean([a for a, _ in expected]))
    assert any(t.is_difficult.any() for t in truths)


def devkit_ap(truths, results, class_id, min_iou, *, points):
    """AP by the rules of `VOCevaldet.m`, one detection after the other; NaN without objects."""
    objects = {
        t.image_id: [
            {"box": box, "difficult": hard, "found": False}
            for box, hard, c in zip(t.boxes, t.is_difficult, t.class_ids, strict=True)
            if c == class_id
        ]
        for t in truths
    }
    candidates = [
        (score, r.image_id, box)
        for r in sorted(results, key=lambda r: int(r.image_id))
        for box, score, c in zip(r.boxes, r.scores, r.class_ids, strict=True)
        if c == class_id
    ]
    right, wrong, precision, recall = 0, 0, [], []
    wanted = sum(
        not object_["difficult"]
        for objects_of_image in objects.values()
        for object_ in objects_of_image
    )
    for _, image_id, (top, left, bottom, end) in sorted(
        candidates, key=lambda candidate: -candidate[0]
    ):
        most, best = -np.inf, None
        for object_ in objects[image_id]:
            y0, x0, y1, x1 = object_["box"]
            width, height = min(end, x1) - max(left, x0) + 1, min(bottom, y1) - max(top, y0) + 1
            if width > 0 and height > 0:
                both = (end - left + 1) * (bottom - top + 1) + (x1 - x0 + 1) * (y1 - y0 + 1)
                ratio = width * height / (both - width * height)
                if ratio > most:
                    most, best = ratio, object_
        if most < min_iou:
            wrong += 1
        elif not best["difficult"]:
            right, wrong = right + (not best["found"]), wrong + best["found"]
            best["found"] = True
        precision.append(right / max(right + wrong, 1))
        recall.append(right / wanted)
    precision, recall = np.array(precision), np.array(recall)
    if points == 11:
        return np.mean([max(precision[recall >= t * 0.1], default=0) for t in range(11)])
    rises = np.flatnonzero(np.diff(recall, prepend=0))
    return sum((recall[i] - (recall[i - 1] if i else 0)) * precision[i:].max() for i in rises)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("min_iou", "points", "interpolation"),
    [(0.5, 11, "eleven_points"), (0.7, 0, "all_points"), (0.3, 11, "eleven_points")],
)
def test_inclusive_pixels_give_the_devkit_s_figures(seed, min_iou, points, interpolation):
    truths, results = random_set(seed)
    # Whole pixels and small objects, where one pixel decides.
    truths = [dataclasses.replace(t, boxes=np.round(t.boxes / 3)) for t in truths]
    results = [dataclasses.replace(r, boxes=np.round(r.boxes / 3)) for r in results]
    expected = [devkit_ap(truths, results, c, min_iou, points=points) for c in NAMES]
    rules = VocRules(interpolation=interpolation, min_iou=min_iou, inclusive=True)
    scores = score_voc(truths, results, NAMES, rules=rules)
    assert [class_scores.ap for class_scores in scores.per_class.values()] == pytest.approx(
        expected
    )
    without = score_voc(truths, results, NAMES, rules=dataclasses.replace(rules, inclusive=False))
    if min_iou < 0.7:
        assert without.mean_ap != pytest.approx(scores.mean_ap, abs=1e-4)


def test_the_extra_pixel_decides_at_the_limit():
    # 10 x 10 of 10 x 20 pixels with the last ones, otherwise 9 x 9 of 9 x 19.
    truths, results = [truth("1", [[1, 1, 10, 10]])], [result("1", [[1, 1, 10, 20]], [0.9])]
    inclusive = VocRules(min_iou=0.5, inclusive=True)
    assert score_voc(truths, results, {1: "a"}, rules=inclusive).mean_ap == 1.0
    assert score_voc(truths, results, {1: "a"}).mean_ap == 0.0


def test_all_classes_in_one_list_agree_with_brute_force():
    truths, results = random_set(11)
    # No two scores are equal, so the order of the classes in the pool has no effect.
    rng = np.random.default_rng(0)
    results = [dataclasses.replace(r, scores=rng.uniform(size=len(r.scores))) for r in results]
    by_class = [judged(truths, results, class_id) for class_id in NAMES]
    pool = sorted(
        (verdict for verdicts, _ in by_class for verdict in verdicts),
        key=lambda verdict: verdict[0],
    )
    expected, _ = brute_force(pool, sum(wanted for _, wanted in by_class))
    scores = score_voc(truths, results, NAMES)
    assert scores.pooled_ap == pytest.approx(expected)
    assert scores.pooled_ap != pytest.approx(scores.mean_ap, abs=1e-4)


def test_the_order_of_the_images_makes_no_difference():
    truths, results = random_set(7)
    forward = score_voc(truths, results, NAMES)
    backward = score_voc(truths[::-1], results[::-1], NAMES)
    assert (backward.mean_ap, backward.pooled_ap) == (forward.mean_ap, forward.pooled_ap)


def test_a_difficult_mark_goes_from_the_record_into_the_ground_truth(tmp_path):
    # The second box has no area and is dropped, with its mark.
    difficult_example = example(
        0, [(0.1, 0.2, 0.5, 0.6), [0.5, 0.5, 0.5, 0.9], [0.5, 0.5, 0.9, 0.9]]
    )
    difficult_example = dataclasses.replace(
        difficult_example, difficult=np.array([False, False, True])
    )
    source = dataset(tmp_path, [difficult_example]).source
    (read,) = read_truths(source, [0]).values()
    assert read.is_difficult.tolist() == [False, True]
    scores = score_voc([read], [result(read.image_id, read.boxes[1:], [0.9])], {1: "a"})
    assert (scores.truths, scores.difficult, scores.mean_ap) == (1, 1, 0.0)


@needs_shared
@pytest.mark.proof
def test_blood_cells_score_about_as_in_coco_at_iou_half():
    bccd = SHARED / "data/bccd"
    items, label_map = read_voc(bccd / "Annotations", bccd / "JPEGImages", ConversionLog())
    names = {item.id: label_map.name_of(item.id) for item in label_map}
    rng = np.random.default_rng(3)
    truths, results = [], []
    for number, item in enumerate(list(items)[:150]):
        boxes, ids = np.asarray(item.pixel_boxes, np.float64), np.asarray(item.class_ids)
        truths.append(truth(str(number), boxes, ids, size=(item.height, item.width)))
        # Nine of ten are found, somewhat beside their places; some detections are wrong.
        seen = rng.uniform(size=len(boxes)) < 0.9
        size = boxes[:, 2:] - boxes[:, :2]
        moved = boxes + np.tile(size * rng.normal(0, 0.08, (len(boxes), 2)), 2)
        wrong = rng.uniform(0, 300, (4, 2))
        found_boxes = np.concatenate([moved[seen], np.concatenate([wrong, wrong + 90], axis=1)])
        scores = np.concatenate([rng.beta(5, 2, int(seen.sum())), rng.beta(2, 4, 4)])
        found_ids = np.concatenate([ids[seen], rng.integers(1, len(names) + 1, 4)])
        results.append(result(str(number), found_boxes, scores, found_ids))
    voc, coco = score_voc(truths, results, names), score_coco(truths, results, names)
    assert 0.5 < coco.summary["AP50"] < 0.95
    # COCO reads the curve at 101 recalls, VOC takes its area: half a hundredth at most.
    assert voc.mean_ap == pytest.approx(coco.summary["AP50"], abs=0.005)
    # Read at the same recalls they differ only where cells overlap so much that COCO gives a
    # detection to its second-best cell.
    for name, class_scores in voc.per_class.items():
        expected = coco.per_class[name].numbers["AP50"]
        assert class_scores.precision.mean() == pytest.approx(expected, abs=0.003)

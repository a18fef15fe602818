"""Thresholds, confusions, the six kinds of mistakes and their cost, against brute force."""

import dataclasses

import numpy as np
import pytest

from stillbox.evaluation.analysis import KINDS, analyse
from stillbox.evaluation.coco import from_coco_json, results_from_coco_json, score_coco
from stillbox.evaluation.matching import match
from tests.evaluation.builders import overlap, random_set, result, truth
from tests.small import SHARED, needs_shared

NAMES = {1: "a", 2: "b", 3: "c"}
BOX, HALF, OTHER = [0, 0, 50, 50], [0, 0, 50, 20], [100, 100, 150, 150]


def noisy_set(seed):
    """Truths and results with mistakes of all kinds, crowds, and scores that differ."""
    truths, results = random_set(seed)
    rng = np.random.default_rng(seed)
    noisy = []
    for image_result in results:
        n = len(image_result.scores)
        size = image_result.boxes[:, 2:] - image_result.boxes[:, :2]
        moved = image_result.boxes + np.tile(size * rng.choice([0, 0.2, 0.5], (n, 1)), 2)
        corner, side = rng.uniform(0, 300, (2, 2)), rng.uniform(10, 80, (2, 2))
        boxes = np.concatenate([moved, np.concatenate([corner, corner + side], axis=1)])
        ids = np.concatenate([image_result.class_ids, rng.integers(1, 4, 2)])
        noisy.append(
            dataclasses.replace(
                image_result, boxes=boxes, class_ids=ids, scores=rng.uniform(size=n + 2)
            )
        )
    return truths, noisy


def brute_force(truths, results, least=-1.0):
    """Matches one detection after the other.

    Returns one row for each: its kind of mistake (`right` if none), class, score, the object that
    it matches or would match if corrected; and all objects by (image, index).
    """
    results_by_id = {r.image_id: r for r in results}
    rows, objects = [], {}
    for t in truths:
        wanted = [i for i in range(len(t.boxes)) if not t.is_crowd[i]]
        objects |= {(t.image_id, i): int(t.class_ids[i]) for i in wanted}
        image_result, taken, wrong = results_by_id[t.image_id], {}, []
        order = [d for d in np.argsort(-image_result.scores) if image_result.scores[d] >= least]
        ious = {
            (d, i): overlap(image_result.boxes[d], t.boxes[i], t.is_crowd[i])
            for d in order
            for i in range(len(t.boxes))
        }
        for d in order:
            c = image_result.class_ids[d]
            free = [i for i in wanted if t.class_ids[i] == c and i not in taken]
            best = max(free, key=lambda i: ious[d, i], default=None)
            inside = [i for i in range(len(t.boxes)) if t.is_crowd[i] and t.class_ids[i] == c]
            if best is not None and ious[d, best] >= 0.5:
                taken[best] = d
                rows.append(["right", int(c), image_result.scores[d], (t.image_id, best)])
            elif not any(ious[d, i] >= 0.5 for i in inside):
                wrong.append(d)
        for d in wrong:
            c = image_result.class_ids[d]
            same = max(
                (i for i in wanted if t.class_ids[i] == c), key=lambda i: ious[d, i], default=None
            )
            other = max(
                (i for i in wanted if t.class_ids[i] != c), key=lambda i: ious[d, i], default=None
            )
            kind, partner = "both", None
            if same is not None and 0.1 <= ious[d, same] <= 0.5:
                kind, partner = "misplaced", same
            elif other is not None and ious[d, other] >= 0.5:
                kind, partner = "confused", other
            elif any(ious[d, i] >= 0.5 for i in taken if t.class_ids[i] == c):
                kind = "double"
            elif all(ious[d, i] <= 0.1 for i in wanted):
                kind = "background"
            free = partner is not None and partner not in taken
            rows.append(
                [kind, int(c), image_result.scores[d], (t.image_id, partner) if free else None]
            )
    return rows, objects


def coco_ap(rows, objects, ids):
    aps = []
    for c in ids:
        ranked = sorted((-score, right) for right, k, score in rows if k == c)
        wanted = sum(k == c for k in objects.values())
        right = np.cumsum([r for _, r in ranked] or [0])
        precision, recall = right / np.arange(1, len(right) + 1), right / max(wanted, 1)
        levels = np.linspace(0, 1, 101)
        aps.append(np.mean([max(precision[recall >= level], default=0) for level in levels]))
    return np.mean(aps)


def costs(rows, objects):
    """The gain of correcting each kind, and the cost of all wrong detections and missed objects."""
    ids = sorted(set(objects.values()))
    plain = [(kind == "right", c, score) for kind, c, score, _ in rows]
    ap = coco_ap(plain, objects, ids)
    best = {}  # an object matches the best detection near it, of either kind
    for kind, _, score, place in rows:
        if kind != "right" and place is not None:
            best[place] = max(best.get(place, -1), score)
    gains = {}
    for kind in KINDS[:-1]:
        mended = [
            (k == "right", c, score) if k != kind else (True, objects[place], score)
            for k, c, score, place in rows
            if k != kind or best.get(place) == score
        ]
        gains[kind] = coco_ap(mended, objects, ids) - ap
    near = {place for *_, place in rows if place is not None}
    gains["missed"] = coco_ap(plain, {o: c for o, c in objects.items() if o in near}, ids) - ap
    right = [row for row in plain if row[0]]
    hit = {place for kind, *_, place in rows if kind == "right"}
    whole = coco_ap(plain, {o: c for o, c in objects.items() if o in hit}, ids) - ap
    return ap, gains, coco_ap(right, objects, ids) - ap, whole


@pytest.mark.parametrize("seed", range(3))
def test_mistakes_and_their_costs_are_those_of_brute_force(seed):
    truths, results = noisy_set(seed)
    analysed = analyse(truths, results, NAMES)
    rows, objects = brute_force(truths, results)
    ap, gains, wrong, missing = costs(rows, objects)
    assert analysed.costs.ap == pytest.approx(ap)
    assert analysed.costs.ap == pytest.approx(score_coco(truths, results, NAMES).summary["AP50"])
    assert analysed.costs.kinds == pytest.approx({k: max(v, 0) for k, v in gains.items()})
    assert min(gains[kind] for kind in ("confused", "misplaced", "background", "missed")) > 0.001
    assert analysed.costs.false_positives == pytest.approx(wrong)
    assert analysed.costs.false_negatives == pytest.approx(missing)
    # Counts are about the detections above the threshold alone.
    rows, objects = brute_force(truths, results, analysed.overall.threshold)
    counted = {kind: sum(row[0] == kind for row in rows) for kind in KINDS[:-1]}
    near = {place for *_, place in rows if place is not None}
    assert analysed.mistakes.counts() == {**counted, "missed": len(objects.keys() - near)}


@pytest.mark.parametrize("seed", range(3))
def test_the_best_threshold_is_that_of_trying_every_score(seed):
    truths, results = noisy_set(seed)
    analysed = analyse(truths, results, NAMES)
    rows, objects = brute_force(truths, results)
    for class_id, thresholds in [(None, analysed.overall), *analysed.per_class.items()]:
        scored = [(row[2], row[0] == "right") for row in rows if class_id in (None, row[1])]
        wanted = sum(class_id in (None, c) for c in objects.values())

        def f1(score, scored=scored, wanted=wanted):
            kept = [right for s, right in scored if s >= score]
            return 2 * sum(kept) / (len(kept) + wanted)

        best = max((score for score, _ in scored), key=f1)
        assert thresholds.threshold == best
        assert thresholds.at_best["F1"] == pytest.approx(f1(best))
        assert thresholds.detections == sum(score >= best for score, _ in scored)
        assert thresholds.truths == wanted
        assert thresholds.f1[30] == pytest.approx(f1(thresholds.levels[30]))
        kept = [right for s, right in scored if s >= thresholds.levels[30]]
        assert thresholds.precision[30] == pytest.approx(np.mean(kept))
        assert thresholds.recall[30] == pytest.approx(sum(kept) / wanted)


def test_the_confusion_matrix_counts_every_object_and_every_detection_once():
    truths, results = noisy_set(5)
    analysed = analyse(truths, results, NAMES)
    counts, shown = analysed.confusion.counts, analysed.shown
    for row, class_analysis in enumerate(analysed.per_class.values()):
        assert counts[row].sum() == class_analysis.truths
    for column, class_id in enumerate(NAMES):
        of_class = (shown.class_ids == class_id) & ~analysed.matched.ignored
        assert counts[:, column].sum() == of_class.sum()
        # Correct detections at the threshold are on the diagonal.
        assert counts[column, column] == (of_class & analysed.matched.correct).sum()
    assert counts[-1, -1] == 0
    assert counts[:3, :3].sum() > np.trace(counts)


def test_the_confusion_matrix_by_hand():
    truths = [truth("1", [BOX, OTHER], [1, 2]), truth("2", [BOX], [3])]
    # On BOX: right and double. On OTHER: its class is wrong. In image 2 nothing.
    results = [result("1", [BOX, BOX, OTHER], [0.9, 0.8, 0.95], [1, 1, 3])]
    analysed = analyse(truths, results, NAMES)
    assert analysed.overall.threshold == 0.9
    assert analysed.confusion.counts.tolist() == [
        [1, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 0],
    ]
    counts = analysed.mistakes.counts()
    assert {kind: count for kind, count in counts.items() if count} == {"confused": 1, "missed": 1}


@pytest.mark.parametrize(
    ("boxes", "class_ids", "kind"),
    [
        ([BOX, BOX], [1, 2], "confused"),
        ([BOX, [30, 30, 80, 80]], [1, 1], "background"),  # IoU 400 / 4600
        ([[0, 0, 50, 20], BOX], [1, 1], "misplaced"),
        ([BOX, HALF], [1, 1], "misplaced"),
        ([BOX, HALF], [1, 2], "both"),
        ([BOX, [0, 0, 50, 40]], [1, 1], "double"),
        ([BOX, OTHER], [1, 1], "background"),
    ],
)
def test_each_kind_by_hand(boxes, class_ids, kind):
    results = [result("1", boxes, [0.9, 0.9], class_ids)]
    counts = analyse([truth("1", [BOX], [1])], results, NAMES).mistakes.counts()
    assert {name: n for name, n in counts.items() if n} == {kind: 1}


def test_matching_equals_one_detection_after_the_other():
    rng = np.random.default_rng(0)
    for _ in range(20):
        overlaps = rng.uniform(size=(12, 7)) * (rng.uniform(size=(12, 7)) < 0.5)
        free, expected = set(range(7)), set()
        for detection, row in enumerate(overlaps):
            best = max(free, key=lambda index: row[index], default=None)
            if best is not None and row[best] > 0:
                free.remove(best)
                expected.add((detection, best))
        detection, other = np.nonzero(overlaps)
        order = np.lexsort((-overlaps[detection, other], detection))
        detection, other = detection[order], other[order]
        places = match(detection, other)
        assert set(zip(detection[places].tolist(), other[places].tolist(), strict=True)) == expected


def test_sizes_and_ratios_by_hand():
    tall, flat, large = [0, 0, 40, 20], [0, 100, 10, 120], [100, 100, 300, 300]
    truths = [truth("1", [tall, flat, large], [1, 1, 1], size=(400, 400))]
    shapes = analyse(truths, [result("1", [tall, large], [0.9, 0.8])], NAMES).shapes
    assert [*shapes.sizes, *shapes.ratios] == ["small", "medium", "large", "tall", "square", "wide"]
    assert [(g.truths, g.correct) for g in shapes.sizes.values()] == [(2, 1), (0, 0), (1, 1)]
    assert [(g.truths, g.correct) for g in shapes.ratios.values()] == [(1, 1), (1, 1), (1, 0)]
    assert shapes.sizes["medium"].numbers == {"precision": None, "recall": None}
    # A correct detection counts where its object does, a wrong one where it is itself; without
    # objects there is no precision.
    near, stray = [0, 0, 50, 21], [200, 0, 250, 50]
    shapes = analyse(truths, [result("1", [near, stray], [0.9, 0.95])], NAMES).shapes
    assert [group.detections for group in shapes.sizes.values()] == [1, 1, 0]
    assert shapes.sizes["small"].numbers == {"precision": 1.0, "recall": 0.5}
    assert shapes.sizes["medium"].numbers == {"precision": None, "recall": None}
    shapes = analyse(truths, [result("1", [tall, large], [0.9, 0.8])], NAMES).shapes
    assert (shapes.side.correct.sum(), shapes.side.missed.sum()) == (2, 1)
    assert (shapes.side.edges[0], shapes.side.edges[-1]) == (pytest.approx(2**3.5), 256)


def test_difficult_objects_are_ignored_in_place_of_crowds():
    truths = [truth("1", [BOX, OTHER], is_difficult=[False, True])]
    results = [result("1", [BOX, OTHER], [0.5, 0.9])]
    assert analyse(truths, results, NAMES).overall.truths == 2
    voc = analyse(truths, results, NAMES, crowds=False, difficult=True)
    assert (voc.overall.truths, voc.overall.detections, voc.overall.correct) == (1, 1, 1)


def test_open_images_ignores_groups_and_difficult_objects():
    marks = {"is_crowd": [False, False, True], "is_difficult": [False, True, False]}
    truths = [truth("1", [BOX, OTHER, [0, 0, 90, 90]], **marks)]
    both = analyse(truths, [result("1", [BOX], [0.5])], NAMES, difficult=True)
    assert (both.overall.truths, both.overall.detections) == (1, 1)


@pytest.mark.parametrize(
    ("truths", "results"),
    [
        ([truth("1")], []),
        ([truth("1")], [result("1", [BOX], [0.5])]),
        ([truth("1", [BOX])], []),
        ([truth("1", [[5, 5, 5, 9]])], [result("1", [[5, 5, 5, 5]], [0.5])]),
        ([truth("1", [BOX])], [result("1", [BOX], [0.5], [77])]),
    ],
)
def test_nothing_correct_means_no_threshold(truths, results):
    analysed = analyse(truths, results, NAMES)
    assert analysed.overall.threshold is None
    assert all(class_analysis.threshold is None for class_analysis in analysed.per_class.values())
    assert analysed.confusion.counts[:, :-1].sum() == len(analysed.shown.scores)


@needs_shared
def test_costs_on_the_oracle_are_those_of_the_authors_program():
    """tidecv 1.0.1, its mean taken over classes with objects before and after mending.

    The recalls of tidecv are k / 100, of pycocotools `linspace`: 0.0002 at most.
    """
    folder = SHARED / "data/coco_eval_oracle"
    truths, names = from_coco_json(folder / "instances_val2014_100.json")
    results = results_from_coco_json(folder / "instances_val2014_fakebbox100_results.json")
    costs = analyse(truths, results, names).costs
    expected = {"confused": 0.1675, "misplaced": 0.0025, "both": 0, "background": 0}
    assert {k: costs.kinds[k] for k in expected} == pytest.approx(expected, abs=2e-4)
    assert costs.kinds["missed"] == pytest.approx(0.0815, abs=1e-3)
    assert costs.false_positives == pytest.approx(0.0739, abs=3e-4)
    assert costs.false_negatives == pytest.approx(0.1797, abs=1e-3)

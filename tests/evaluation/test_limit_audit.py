"""Fixed numbers of a program beside boxes: what is needed, what is lost, and what mends it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from stillbox.boxes.nms_unrolled import searched_anchors
from stillbox.cli.overrides import changes_of
from stillbox.evaluation.coco import from_coco_json, results_from_coco_json, score_coco
from stillbox.evaluation.limit_audit import audit, greatest_ap
from stillbox.evaluation.limits import NO_LIMITS, limit_lines, limit_section
from stillbox.evaluation.results import ImageResult
from stillbox.experiment.resolve import resolve
from stillbox.references import worded
from tests.evaluation.builders import truth
from tests.small import DENSE, DENSE_HEADS, SHARED, SMALL, needs_shared

NAMES = {1: "cat", 2: "dog"}
NMS = "model.postprocessing.nms"


def grid(count, side=30):
    """Boxes that do not overlap."""
    places = np.stack(np.divmod(np.arange(count), 20), axis=1) * 50.0
    return np.concatenate([places, places + side], axis=1)


def image(number, *classes, side=30, **columns):
    """An image with a box of each of the classes."""
    boxes = grid(len(classes), side)
    return truth(str(number), boxes, list(classes), size=(1000, 1000), **columns)


def audited(truths, *overrides, split="train", recipe="demo_scenes", base=SMALL, **options):
    experiment = resolve(recipe, changes_of([*base, *overrides])).experiment
    return audit(experiment, truths, NAMES, split=split, **options)


def row(table, name):
    (limit,) = (limit for limit in table.rows if limit.name == name)
    return limit


# Seven objects in the first image, five of them cats; one in the second.
IMAGES = [image(1, 1, 1, 1, 1, 2, 2, 1), image(2, 2)]


def test_the_last_boxes_of_an_image_are_cut_in_training():
    limit = row(audited(IMAGES, "data.train.max_boxes=4"), "boxes to train on")
    assert (limit.path, limit.value, limit.needed) == ("data.train.max_boxes", 4, 7)
    # Two dogs and a cat are behind the fourth box.
    assert (limit.lost, limit.objects) == (3, 8)
    assert limit.classes == {"dog": 2 / 3, "cat": 1 / 5}
    assert limit.certain
    assert worded(limit.remedy) == "data.train.max_boxes=7"
    enough = row(audited(IMAGES, worded(limit.remedy)), "boxes to train on")
    assert (enough.lost, enough.classes, enough.remedy) == (0, {}, "")


def test_tiles_have_the_objects_of_a_tile_and_cocos_rule_those_of_the_image():
    # Rows of 20 boxes of 30 pixels, 50 pixels apart: the upper left quarter has 10 x 3 of them.
    full = [image(1, *[1] * 120)]
    tiles = "data.tiles={side: 500, overlap: 0}"
    whole, cut = (audited(full, *more, split="evaluation") for more in ([], [tiles]))
    assert row(whole, "detections").needed == 120
    assert row(cut, "detections").needed == 60
    assert row(cut, "COCO's of a class").lost == row(whole, "COCO's of a class").lost == 20


def test_crowds_fill_a_row_unless_they_are_dropped():
    crowded = [image(1, 1, 1, 2, is_crowd=[True, False, False])]
    limit = row(audited(crowded, "data.train.max_boxes=2"), "boxes to train on")
    assert (limit.needed, limit.lost, limit.classes) == (3, 1, {"dog": 1.0})
    dropped = row(audited(crowded, "data.train={max_boxes: 2, crowds: drop}"), "boxes to train on")
    assert (dropped.needed, dropped.lost) == (2, 0)


def test_the_boxes_of_combined_images_are_those_of_images_drawn_at_random():
    steps = "train.augmentations=[mixup]"
    images = [image(1, 1, 1, 1), image(2, 2)]
    limit = row(audited(images, steps, "data.train.max_boxes=3"), "boxes of 2 combined")
    # Pairs have 6, 4, 4 or 2 boxes: 5 of 16 are beyond the third, so one of three cats and no dog.
    assert (limit.needed, limit.lost, limit.certain) == (6, 1, False)
    assert limit.classes == {"cat": 1 / 3}
    assert worded(limit.remedy) == "data.train.max_boxes=6"
    assert not row(audited(images, steps, worded(limit.remedy)), "boxes of 2 combined").lost


def test_rows_of_boxes_cost_no_score():
    table = audited(IMAGES, "data.evaluation.max_boxes=1", split="evaluation")
    assert not row(table, "boxes to score on").lost


def test_detections_are_lost_beyond_the_limits_of_suppression():
    limits = f"{NMS}={{max_per_class: 2, max_total: 3}}"
    table = audited(IMAGES, limits)
    in_all = row(table, "detections")
    assert (in_all.value, in_all.needed, in_all.lost) == (3, 7, 4)
    # Four of five cats may be lost, or both dogs of the image.
    assert in_all.classes == {"cat": 4 / 5, "dog": 2 / 3}
    assert in_all.certain
    assert not in_all.certain_of_class
    assert worded(in_all.remedy) == f"{NMS}.max_total=7"
    of_class = row(table, "detections of a class")
    assert (of_class.value, of_class.needed, of_class.lost) == (2, 5, 3)
    assert of_class.classes == {"cat": 3 / 5}
    # A class may not have more than the image.
    assert worded(of_class.remedy) == f"{NMS}.max_total=7 {NMS}.max_per_class=5"
    mended = audited(IMAGES, *(str(word) for word in worded(of_class.remedy).split()))
    assert not mended.costly
    agnostic = audited(IMAGES, limits.replace("3}", "3, class_agnostic: true}"))
    assert all(limit.name != "detections of a class" for limit in agnostic.rows)


@pytest.mark.parametrize(
    ("field", "name", "needed", "lost"),
    [
        # Ten candidates for each of seven objects, and for each of five cats.
        ("max_candidates_per_level", "candidates of a map", 70, 4),
        ("max_candidates_per_class", "candidates of a class", 50, 2),
    ],
)
def test_an_object_needs_several_candidates(field, name, needed, lost):
    # 39 candidates are enough for three objects.
    limit = row(audited(IMAGES, f"{NMS}.{field}=39"), name)
    assert (limit.value, limit.needed, limit.lost) == (39, needed, lost)
    assert not limit.certain
    assert worded(limit.remedy) == f"{NMS}.{field}={needed}"
    assert not row(audited(IMAGES, f"{NMS}.{field}={needed}"), name).lost


def test_anchors_that_an_artefact_searches():
    crowded = [image(1, *[1] * 201)]
    table = audited(crowded, searched_anchors=searched_anchors(100))
    limit = row(table, "anchors searched")
    assert (limit.value, limit.needed, limit.lost) == (2000, 2010, 1)
    more = audited(crowded, searched_anchors=searched_anchors(201))
    assert not row(more, "anchors searched").lost


def test_proposals_of_a_detector_of_two_stages():
    table = audited(
        IMAGES, "model.proposals.max_proposals=5", recipe="faster_rcnn_resnet50_v1_640x640", base=()
    )
    limit = row(table, "proposals")
    assert (limit.value, limit.needed, limit.lost) == (5, 7, 2)
    assert row(table, "detections").path == "model.boxes.postprocessing.nms.max_total"


def test_an_image_that_exceeds_the_canvas_is_lost_with_its_objects():
    small = replace(IMAGES[1], height=60, width=60)
    canvas = "model.resizer={kind: identity, canvas: [64, 64]}"
    base = [word for word in SMALL if not word.startswith("model.resizer")]
    limit = row(audited([IMAGES[0], small], canvas, base=base), "canvas")
    assert (limit.value, limit.needed, limit.lost) == ((64, 64), (1000, 1000), 7)
    assert worded(limit.remedy) == "model.resizer.canvas=[1000, 1000]"


def test_a_box_without_the_centre_of_an_anchor_has_none_in_training():
    # 1000 pixels become 64: a cell of 8 pixels is 125 pixels wide, with its centre at 62.5.
    boxes = [[50, 50, 70, 70], [0, 0, 60, 400], [70, 0, 100, 400], [0, 0, 500, 500]]
    images = [truth("1", boxes, [1, 1, 1, 2], size=(1000, 1000))]
    dense = (*DENSE_HEADS["gfl"], *DENSE)
    limit = row(audited(images, base=dense), "network input")
    assert (limit.value, limit.lost) == ((64, 64), 2)
    assert limit.classes == {"cat": 2 / 3}
    # The shorter sides are 60 and 30 pixels, so that an input of 125 / 30 times would do.
    assert limit.needed == (320, 320)
    assert "tiles" in limit.remedy
    # A tile of 400 pixels has cells of 50 pixels, and the first box has sides of 20.
    tiled = row(audited(images, "data.tiles={side: 400, overlap: 0}", base=dense), "network input")
    assert (tiled.lost, worded(tiled.remedy.split(",")[0])) == (1, "data.tiles.side=159")
    wide = [truth("1", boxes[:2], size=(1000, 1000))]
    larger = row(audited(wide, base=dense), "network input")
    assert "model.resizer.height=192 model.resizer.width=192" in worded(larger.remedy)


def perfect(images):
    """Detections of all objects, without a mistake."""
    return [
        ImageResult(
            image_id=each.image_id,
            boxes=each.boxes[~each.is_crowd],
            scores=np.linspace(1, 0.5, int((~each.is_crowd).sum())),
            class_ids=each.class_ids[~each.is_crowd],
        )
        for each in images
    ]


def test_cocos_rule_bounds_ap_as_its_own_program_does():
    images = [
        image(1, *[1] * 300),
        image(2, *[1] * 101, *[2] * 29),
        # Two classes of 100 boxes are within the limit, and so are crowds.
        image(3, *[1] * 100, *[2] * 100),
        image(4, *[1] * 150, is_crowd=[False] * 100 + [True] * 50),
    ]
    limit = row(audited(images, split="evaluation"), "COCO's of a class")
    assert (limit.path, limit.value, limit.needed, limit.lost) == ("", 100, 300, 201)
    scores = score_coco(images, perfect(images), NAMES)
    assert limit.greatest_ap == pytest.approx(scores.summary["AP"])
    assert limit.greatest_ap == pytest.approx(scores.summary["AP50"])
    assert f"{limit.greatest_ap:.3f}" in limit.remedy
    voc = ("evaluation.metrics=[pascal_voc]", "evaluation.best_metric=VOC_mAP")
    assert all("COCO" not in each.name for each in audited(images, *voc, split="evaluation").rows)
    assert not row(audited(images[2:], split="evaluation"), "COCO's of a class").lost


@pytest.mark.parametrize(("recall", "ap"), [(100 / 300, 34 / 101), (1.0, 1.0), (0.3, 31 / 101)])
def test_the_greatest_ap_counts_the_recalls_that_are_reached(recall, ap):
    assert greatest_ap(recall) == pytest.approx(ap)


@needs_shared
def test_a_dense_truth_loses_what_pycocotools_loses():
    folder = SHARED / "cases" / "data" / "ev"
    truths, names = from_coco_json(folder / "dense_truth.json")
    results = results_from_coco_json(folder / "dense_results.json")
    table = audit(resolve("demo_scenes").experiment, truths, names, split="evaluation")
    limit = row(table, "COCO's of a class")
    assert limit.lost == 200
    assert limit.greatest_ap >= score_coco(truths, results, names).summary["AP50"]


def test_a_set_without_images_or_objects_loses_nothing():
    for images in ([], [truth("1")]):
        for split in ("train", "evaluation"):
            table = audited(images, split=split, base=(*DENSE_HEADS["gfl"], *DENSE))
            assert table.rows
            assert not table.costly


def test_two_sets_are_one_table_with_the_worse_of_each_limit():
    few, many = (
        audited(images, f"{NMS}={{max_per_class: 2, max_total: 3}}", total=9)
        for images in (IMAGES[1:], IMAGES)
    )
    for both in (few.joined(many), many.joined(few)):
        assert row(both, "detections") == row(many, "detections")
        assert sorted(both.read) == ["1 of 9 images to train on", "2 of 9 images to train on"]


def test_a_terminal_and_a_page_show_the_same_rows():
    table = audited(IMAGES, f"{NMS}={{max_per_class: 3, max_total: 3}}")
    lines = [worded(line) for line in limit_lines(table)]
    assert "2 of 2 images to train on" in lines[0]
    assert len(lines) == 2 + 2 * len(table.costly) + 1
    assert f"    fix: {NMS}.max_total=7" in lines
    assert lines[-1].startswith("  harmless: ")
    page = limit_section(table)
    for limit in table.costly:
        assert limit.name in page
        assert worded(limit.remedy) in page
    plain = json.loads(json.dumps(table.to_dict()))
    assert [each["name"] for each in plain["rows"]] == [each.name for each in table.rows]
    assert plain["rows"][0]["remedy"] == worded(table.rows[0].remedy)


def test_harmless_limits_are_one_line_and_no_data_none():
    (line,) = limit_lines(audited(IMAGES))
    assert "harmless: " in line
    assert (limit_lines(NO_LIMITS), limit_section(NO_LIMITS)) == ([], "")

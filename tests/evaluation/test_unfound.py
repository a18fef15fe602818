"""A class that is never found is named with what of the data is likely the reason."""

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.evaluation.limit_audit import audit
from stillbox.evaluation.scores import score
from stillbox.evaluation.unfound import unfound_classes
from stillbox.experiment.resolve import resolve
from stillbox.references import worded
from tests.evaluation.builders import result, truth
from tests.records.builders import make_example, write_records
from tests.small import SMALL

NAMES = {number: f"kind_{number}" for number in range(1, 9)}
LARGE = [100, 100, 900, 900]


def image(boxes, class_ids):
    return truth("1", boxes, class_ids, size=(1000, 1000))


def unfound(truths, results=(), *overrides):
    experiment = resolve("demo_scenes", changes_of([*SMALL, *overrides])).experiment
    limits = audit(experiment, truths, NAMES, split="evaluation")
    scores = score(truths, list(results), NAMES)
    return [worded(line) for line in unfound_classes(experiment, scores, truths, limits)]


def test_a_class_with_an_ap_is_not_named():
    truths = [image([LARGE, LARGE], [1, 2])]
    (line,) = unfound(truths, [result("1", [LARGE], [0.9], [1])])
    assert "kind_2" in line
    assert unfound(truths, [result("1", [LARGE] * 2, [0.9, 0.8], [1, 2])]) == []


def test_without_a_reason_the_run_was_too_short():
    (line,) = unfound([image([LARGE], [1])])
    assert "AP 0 on 1 object" in line
    assert "train longer" in line


def test_small_objects_need_a_larger_input():
    # The finest map has cells of 2 pixels of 64: 31 of 1000. Boxes of 40 are 1.3 cells.
    (line,) = unfound([image([[0, 0, 40, 40]], [1])])
    assert "1.3 cells" in line
    assert "64x64" in line
    assert "model.resizer.height=128" in line


def test_a_limit_that_can_take_most_of_a_class_is_named_with_its_remedy():
    crowd = [image([LARGE] * 7, [1] * 5 + [2] * 2)]
    limits = "model.postprocessing.nms={max_per_class: 3, max_total: 3}"
    rare = next(line for line in unfound(crowd, [], limits) if "kind_2" in line)
    assert "up to 100 % of them" in rare
    assert "model.postprocessing.nms.max_total=7" in rare


@pytest.mark.parametrize(("boxes", "few"), [(49, True), (50, False)])
def test_few_boxes_to_train_on_are_a_reason(tmp_path, boxes, few):
    corners = [[0.1, 0.1, 0.9, 0.9]] * boxes
    write_records(tmp_path / "train.record", [make_example(corners, [1] * boxes)])
    overrides = [f"data.train.paths={tmp_path}/train.record", "data.train.label_map="]
    (line,) = unfound([image([LARGE], [1])], [], *overrides)
    assert (f"{boxes} boxes of it to train on" in line) == few


def test_many_classes_are_counted():
    lines = unfound([image([LARGE] * 8, range(1, 9))])
    assert len(lines) == 6
    assert lines[-1].startswith("3 more classes")

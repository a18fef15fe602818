import json

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.evaluation.coco_json import (
    from_coco_json,
    results_from_coco_json,
    results_to_coco,
    truths_to_coco,
)
from tests.evaluation.builders import result, truth


def test_ground_truth_survives_the_file(tmp_path):
    truths = [
        truth("5", [[1, 2, 11, 32]], [3], is_crowd=[True], area=[120.5], size=(50, 60)),
        truth("000123"),
    ]
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(truths_to_coco(truths, {3: "cat"})))
    # x 2, y 1, 30 wide, 10 high.
    assert json.loads(path.read_text())["annotations"][0]["bbox"] == [2, 1, 30, 10]
    back, names = from_coco_json(path)
    assert names == {3: "cat"}
    assert [t.image_id for t in back] == ["5", "000123"]
    for was, now in zip(truths, back, strict=True):
        assert (now.width, now.height) == (was.width, was.height)
        for field in ("boxes", "class_ids", "is_crowd", "area"):
            np.testing.assert_array_equal(getattr(now, field), getattr(was, field))


def test_an_annotation_without_area_has_the_boxs(tmp_path):
    content = truths_to_coco([truth("1", [[0, 0, 10, 20]])], {1: "cat"})
    del content["annotations"][0]["area"]
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert from_coco_json(tmp_path / "t.json")[0][0].areas().tolist() == [200]


def test_results_survive_the_file(tmp_path):
    path = tmp_path / "results.json"
    found = result("7", [[1, 2, 3, 5], [0, 0, 1, 1]], [0.5, 0.25], [2, 1])
    path.write_text(json.dumps(results_to_coco([found, result("8")])))
    assert json.loads(path.read_text())[0] == {
        "image_id": 7,
        "category_id": 2,
        "bbox": [2.0, 1.0, 3.0, 2.0],
        "score": 0.5,
    }
    (back,) = results_from_coco_json(path)
    for field in ("boxes", "scores", "class_ids"):
        np.testing.assert_array_equal(getattr(back, field), getattr(found, field))


def test_at_least_takes_the_best_first():
    found = result("7", [[0, 0, 1, 1]] * 4, [0.2, 0.9, 0.5, 0.9], [1, 2, 3, 4])
    assert found.at_least(0.5).class_ids.tolist() == [2, 4, 3]
    assert found.at_least(0.0, limit=1).class_ids.tolist() == [2]
    assert len(found.at_least(0.95).boxes) == 0


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
    with pytest.raises(UserError, match="not a list"):
        results_from_coco_json(tmp_path / "r.json")
    (tmp_path / "r.json").write_text('[{"image_id": 1, "bbox": [0, 0, 1, 1], "score": 1}]')
    with pytest.raises(UserError, match="detection 0: the detection has no category_id"):
        results_from_coco_json(tmp_path / "r.json")
    with pytest.raises(UserError, match=r"none\.json: cannot read it"):
        results_from_coco_json(tmp_path / "none.json")

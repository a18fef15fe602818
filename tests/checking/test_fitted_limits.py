"""Numbers of a model are raised for the fullest image, and never lowered."""

import pytest

from stillbox.checking.fitted_limits import fitted_limits, is_fitted
from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import resolve

NMS = "model.postprocessing.nms"


def fitted(recipe, most, *overrides):
    given = changes_of(overrides)
    return fitted_limits(resolve(recipe, given).experiment.model, most, given)


@pytest.mark.parametrize("most", [20, 100])
def test_limits_with_room_stay(most):
    assert fitted("gfl_mobile", most) == {}


def test_detections_have_room_for_the_fullest_image():
    changes = fitted("gfl_mobile", 260)
    assert changes == {f"{NMS}.max_total": 260, f"{NMS}.max_per_class": 260}
    assert resolve("gfl_mobile", changes).experiment.model.max_detections == 260
    assert all(is_fitted(path.removeprefix("model.")) for path in changes)


def test_candidates_are_ten_for_each_object():
    changes = fitted("atss_resnet50", 150)
    assert changes[f"{NMS}.max_candidates_per_level"] == 1500
    assert f"{NMS}.max_candidates_per_class" not in changes


def test_detectors_of_two_stages_have_as_many_proposals():
    nms = "model.boxes.postprocessing.nms"
    changes = fitted("faster_rcnn_resnet50_v1_640x640", 400)
    assert changes["model.proposals.max_proposals"] == 400
    assert (changes[f"{nms}.max_total"], changes[f"{nms}.max_per_class"]) == (400, 400)


@pytest.mark.parametrize(
    ("override", "changes"),
    [
        (f"{NMS}.max_per_class=30", {f"{NMS}.max_total": 260}),
        (f"{NMS}.max_total=200", {f"{NMS}.max_per_class": 200}),
        (f"{NMS}={{max_total: 100, max_per_class: 100}}", {}),
    ],
)
def test_what_is_given_stays(override, changes):
    assert fitted("gfl_mobile", 260, override) == changes

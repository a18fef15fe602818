"""Post-processing and calibration of a pipeline.config."""

from functools import partial

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.calibration import read_calibration
from stillbox.experiment.pipeline_config.postprocessing import read_postprocessing
from tests.experiment.sections import members_of, read_section

calibration_of = partial(read_section, read_calibration, "CalibrationConfig")


def ssd_postprocessing(text):
    def read(section, path):
        predictor = section.child("box_predictor")
        return read_postprocessing(section.child("post_processing"), path, predictor)

    return read_section(read, "Ssd", text)


def nms_of(text):
    result, log = ssd_postprocessing(
        f"post_processing {{ batch_non_max_suppression {{\n {text} }} }}"
    )
    return result.nms, log


def test_every_field_of_nms_reads():
    nms, log = nms_of(
        "score_threshold: 0.2 iou_threshold: 0.5 max_detections_per_class: 7 "
        "max_total_detections: 9 soft_nms_sigma: 0.25 use_class_agnostic_nms: true "
        "use_combined_nms: true change_coordinate_frame: false"
    )
    assert nms == schema.Nms(
        score_threshold=0.2,
        iou_threshold=0.5,
        max_per_class=7,
        max_total=9,
        soft_sigma=0.25,
        class_agnostic=True,
        combined=True,
        change_coordinate_frame=False,
    )
    assert log.origins["here.nms.soft_sigma"].startswith("p:2:")


def test_the_originals_defaults_are_ours():
    assert nms_of("")[0] == schema.Nms()
    assert ssd_postprocessing("")[0] == schema.Postprocessing()


def test_partitioned_nms_drops_at_the_threshold_where_shapes_are_static():
    nms, _ = nms_of("use_partitioned_nms: true use_static_shapes: true")
    assert nms == schema.Nms(drop_at_threshold=True)
    # The original looks at the one only where the other is set.
    nms, log = nms_of("use_partitioned_nms: true")
    assert nms == schema.Nms()
    (note,) = log.notes
    assert note.startswith("p:2:2: use_partitioned_nms has no effect without use_static_shapes")


def test_more_than_one_class_a_box_is_refused():
    assert nms_of("max_classes_per_detection: 1")[0] == schema.Nms()
    with pytest.raises(UserError, match=r"max_classes_per_detection = 2: a box stands for one"):
        nms_of("use_class_agnostic_nms: true max_classes_per_detection: 2")


@pytest.mark.parametrize("kind", ["convolutional", "weight_shared_convolutional"])
def test_the_range_of_encodings_comes_from_the_predictor(kind):
    text = f"box_predictor {{ {kind}_box_predictor {{ %s }} }}"
    result, log = ssd_postprocessing(text % "box_encodings_clip_range { min: -5 max: 4 }")
    assert result.box_encodings_clip == schema.BoxEncodingsClip(min=-5.0, max=4.0)
    assert log.origins["here.box_encodings_clip.min"].startswith("p:1:")
    assert ssd_postprocessing(text % "")[0].box_encodings_clip is None


def test_the_calibration_is_there_when_the_file_has_one():
    result, _ = ssd_postprocessing(
        "post_processing { calibration_config { temperature_scaling_calibration { scaler: 2 } } }"
    )
    assert result.calibration == schema.TemperatureCalibration(scaler=2.0)


PAIRS = "x_y_pair { x: 0.1 y: 0.2 } x_y_pair { x: 0.5 y: 0.9 }"


CALIBRATIONS = [
    (
        f"function_approximation {{ x_y_pairs {{ {PAIRS} }} }}",
        schema.CurveCalibration(scores=(0.1, 0.5), calibrated=(0.2, 0.9)),
    ),
    (
        f"class_id_function_approximations {{ class_id_xy_pairs_map {{ key: 3 value: {{ {PAIRS}"
        " }} class_id_xy_pairs_map { key: 1 value { x_y_pair { x: 0.4 } } } }",
        schema.ClassCurveCalibration(
            curves=(
                schema.ClassCurve(slot=3, scores=(0.1, 0.5), calibrated=(0.2, 0.9)),
                schema.ClassCurve(slot=1, scores=(0.4,), calibrated=(0.0,)),
            )
        ),
    ),
    (
        "sigmoid_calibration { sigmoid_parameters { b: 0.5 } }",
        schema.SigmoidCalibration(a=-1.0, b=0.5),
    ),
    # Two of a key stay two, for the rules to refuse.
    (
        "class_id_sigmoid_calibrations { class_id_sigmoid_parameters_map { key: 2 value { a: -3"
        " } } class_id_sigmoid_parameters_map { key: 2 value { a: -4 b: 1 } } }",
        schema.ClassSigmoidCalibration(
            sigmoids=(
                schema.ClassSigmoid(slot=2, a=-3.0, b=0.0),
                schema.ClassSigmoid(slot=2, a=-4.0, b=1.0),
            )
        ),
    ),
    (
        "temperature_scaling_calibration { scaler: 1.5 }",
        schema.TemperatureCalibration(scaler=1.5),
    ),
]


@pytest.mark.parametrize(("text", "calibration"), CALIBRATIONS)
def test_a_calibration_reads(text, calibration):
    assert calibration_of(text)[0] == calibration


def test_the_cases_above_are_all_calibrations():
    found = {type(calibration) for _, calibration in CALIBRATIONS}
    assert found == set(members_of(schema.Calibration))


def test_where_a_curve_comes_from_has_no_effect():
    pairs = "training_data_type: ALL_CLASSES " + PAIRS
    _, log = calibration_of(f"function_approximation {{ x_y_pairs {{ {pairs} }} }}")
    (note,) = log.notes
    assert "XYPairs.training_data_type has no effect here" in note


def test_points_have_the_places_of_their_numbers():
    _, log = calibration_of(
        "class_id_function_approximations {\nclass_id_xy_pairs_map { key: 3 value { x_y_pair {\n"
        "x: 0.5 } } } }"
    )
    assert log.origins["here.curves.0.scores"] == "p:3:1"
    assert log.origins["here.curves.0.slot"] == "p:2:25"


def test_a_weight_shared_predictor_may_have_the_score_converter():
    predictor = (
        "box_predictor { weight_shared_convolutional_box_predictor { score_converter: SIGMOID } }"
    )
    result, log = ssd_postprocessing(predictor)
    assert result.score_converter == "sigmoid"
    assert log.origins["here.score_converter"].startswith("p:1:")
    with pytest.raises(UserError, match="scores are converted twice"):
        ssd_postprocessing(f"{predictor} post_processing {{ score_converter: SIGMOID }}")

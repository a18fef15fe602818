"""Anchors, box coders, matchers, similarities, losses, post-processing and calibration."""

from typing import Any

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.section import MessageSection, choice
from stillbox.experiment.reading import FieldReader, field_mapping
from stillbox.references import Setting

_read_multiscale = field_mapping(
    schema.MultiscaleAnchors, "min_level max_level anchor_scale aspect_ratios scales_per_octave"
)
_read_grid = field_mapping(
    schema.GridAnchors,
    "scales aspect_ratios height_stride width_stride height_offset width_offset",
    base_height="height",
    base_width="width",
)
_read_flexible = field_mapping(
    schema.FlexibleGridAnchors,
    grids=(
        "anchor_grid",
        field_mapping(
            schema.AnchorGrid,
            "aspect_ratios height_stride width_stride height_offset width_offset",
            sizes="base_sizes",
        ),
    ),
)

read_anchors = choice(
    "anchor_generator_oneof",
    {
        "ssd_anchor_generator": field_mapping(
            schema.SsdAnchors,
            "num_layers min_scale max_scale scales aspect_ratios "
            "interpolated_scale_aspect_ratio reduce_boxes_in_lowest_layer "
            "base_anchor_height base_anchor_width",
            height_strides="height_stride",
            width_strides="width_stride",
            height_offsets="height_offset",
            width_offsets="width_offset",
        ),
        "multiscale_anchor_generator": _read_multiscale,
        "grid_anchor_generator": _read_grid,
        "flexible_grid_anchor_generator": _read_flexible,
    },
)
"""Reads `anchor_generator`. An empty list means "none", not "the default"."""


def _in_pixels(reader: FieldReader) -> FieldReader:
    """Returns a reader of anchors that are not normalised."""

    def read(section: MessageSection, path: str) -> schema.Anchors:
        name = "normalize_coordinates"
        if section.value(name):
            section.refuse(name, "anchors of proposals are in pixels", f"write {name}: false")
        anchors: schema.Anchors = reader(section, path)
        return anchors

    return read


read_pixel_anchors = choice(
    "anchor_generator_oneof",
    {
        "grid_anchor_generator": _read_grid,
        "multiscale_anchor_generator": _in_pixels(_read_multiscale),
        "flexible_grid_anchor_generator": _in_pixels(_read_flexible),
    },
)
"""Reads `first_stage_anchor_generator`."""

read_box_coder = choice(
    "box_coder_oneof",
    {
        "faster_rcnn_box_coder": field_mapping(
            schema.FasterRcnnBoxCoder, "y_scale x_scale height_scale width_scale"
        ),
        "mean_stddev_box_coder": field_mapping(schema.MeanStddevBoxCoder, "stddev"),
        "square_box_coder": field_mapping(schema.SquareBoxCoder, "y_scale x_scale length_scale"),
    },
)
"""Reads `box_coder`."""

read_matcher = choice(
    "matcher_oneof",
    {
        "argmax_matcher": field_mapping(
            schema.ArgmaxMatcher,
            "matched_threshold unmatched_threshold ignore_thresholds "
            "negatives_lower_than_unmatched force_match_for_each_row",
        ),
        "bipartite_matcher": field_mapping(schema.BipartiteMatcher),
    },
)
"""Reads `matcher`."""

read_similarity = choice(
    "region_similarity",
    {
        "iou_similarity": field_mapping(schema.IouSimilarity),
        "ioa_similarity": field_mapping(schema.IoaSimilarity),
        "neg_sq_dist_similarity": field_mapping(schema.NegSqDistSimilarity),
        "thresholded_iou_similarity": field_mapping(
            schema.ThresholdedIouSimilarity, "iou_threshold"
        ),
    },
)
"""Reads `similarity_calculator`."""


read_classification = choice(
    "classification_loss",
    {
        "weighted_sigmoid": field_mapping(schema.SigmoidLoss),
        # An alpha that is not set weighs nothing, unlike an alpha of zero.
        "weighted_sigmoid_focal": field_mapping(schema.SigmoidFocalLoss, "gamma alpha", "alpha"),
        "weighted_softmax": field_mapping(schema.SoftmaxLoss, "logit_scale"),
        "weighted_logits_softmax": field_mapping(schema.SoftmaxAgainstLogitsLoss, "logit_scale"),
        "bootstrapped_sigmoid": field_mapping(
            schema.BootstrappedSigmoidLoss, "alpha", hard="hard_bootstrap"
        ),
    },
)
"""Reads `ClassificationLoss`."""

_read_localization = choice(
    "localization_loss",
    {
        "weighted_smooth_l1": field_mapping(schema.SmoothL1Loss, "delta"),
        "weighted_l2": field_mapping(schema.L2Loss),
        "l1_localization_loss": field_mapping(schema.L1Loss),
        "weighted_iou": field_mapping(schema.IouLoss),
        "weighted_giou": field_mapping(schema.GiouLoss),
    },
)


def read_loss(ssd: MessageSection, path: str) -> schema.Loss:
    """Reads `ssd.loss` and its neighbours.

    The original always divides a loss by the matches of one replica's images and averages the
    gradients of the replicas (`object_detection/meta_architectures/ssd_meta_arch.py`, `loss`).
    """
    section = ssd.child("loss")
    return schema.Loss(
        normalizer="per_replica",
        classification=read_classification(
            section.child("classification_loss"), f"{path}.classification"
        ),
        localization=_read_localization(section.child("localization_loss"), f"{path}.localization"),
        hard_example_miner=read_miner(section, path),
        **section.read_fields(path, "classification_weight", "localization_weight"),
        **ssd.read_fields(
            path,
            "encode_background_as_zeros",
            "negative_class_weight",
            normalize_by_matches="normalize_loss_by_num_matches",
            normalize_localization_by_code_size="normalize_loc_loss_by_codesize",
        ),
    )


def read_miner(section: MessageSection, path: str, **values: int) -> schema.HardExampleMiner | None:
    """Reads the `hard_example_miner` of a section, if it has one; `values` are not read."""
    name = "hard_example_miner"
    if not section.has(name):
        return None
    # The section itself has an origin, because its mere presence can be the mistake.
    section.log.origins[f"{path}.{name}"] = section.where(name)
    reader = field_mapping(
        schema.HardExampleMiner,
        "num_hard_examples iou_threshold loss_type max_negatives_per_positive "
        "min_negatives_per_image",
    )
    return reader(section.child(name), f"{path}.{name}", **values)


# An entry of a map is a message of key and value. Of two with one key protobuf keeps the second;
# here the rules refuse them.
def _read_class_curve(entry: MessageSection, path: str) -> schema.ClassCurve:
    return schema.ClassCurve(
        **entry.read_fields(path, slot="key"), **_points(entry.child("value"), path)
    )


def _read_class_sigmoid(entry: MessageSection, path: str) -> schema.ClassSigmoid:
    return schema.ClassSigmoid(
        **entry.read_fields(path, slot="key"), **entry.child("value").read_fields(path, "a", "b")
    )


def _points(section: MessageSection, path: str) -> dict[str, Any]:
    pairs = section.children("x_y_pair")
    return {
        "scores": tuple(pair.value("x", f"{path}.scores") for pair in pairs),
        "calibrated": tuple(pair.value("y", f"{path}.calibrated") for pair in pairs),
    }


read_calibration = choice(
    "calibrator",
    {
        "function_approximation": lambda section, path: schema.CurveCalibration(
            **_points(section.child("x_y_pairs"), path)
        ),
        "class_id_function_approximations": field_mapping(
            schema.ClassCurveCalibration, curves=("class_id_xy_pairs_map", _read_class_curve)
        ),
        "sigmoid_calibration": lambda section, path: schema.SigmoidCalibration(
            **section.child("sigmoid_parameters").read_fields(path, "a", "b")
        ),
        "class_id_sigmoid_calibrations": field_mapping(
            schema.ClassSigmoidCalibration,
            sigmoids=("class_id_sigmoid_parameters_map", _read_class_sigmoid),
        ),
        "temperature_scaling_calibration": field_mapping(schema.TemperatureCalibration, "scaler"),
    },
)
"""Reads `calibration_config`."""


_read_nms = field_mapping(
    schema.Nms,
    "score_threshold iou_threshold change_coordinate_frame",
    max_per_class="max_detections_per_class",
    max_total="max_total_detections",
    soft_sigma="soft_nms_sigma",
    class_agnostic="use_class_agnostic_nms",
    combined="use_combined_nms",
)


def read_postprocessing(
    section: MessageSection, path: str, predictor: MessageSection | None = None
) -> schema.Postprocessing:
    """Reads a `PostProcessing`.

    The box predictor of an SSD may have a score converter, and the range that encodings are clipped
    to.
    """
    calibration, clip = None, None
    if section.has("calibration_config"):
        calibration = read_calibration(section.child("calibration_config"), f"{path}.calibration")
    converter = section.value("score_converter", f"{path}.score_converter")
    if predictor is not None:
        clip = _read_clip(predictor, f"{path}.box_encodings_clip")
        converter = _converter_before(predictor, converter, f"{path}.score_converter")
    nms = section.child("batch_non_max_suppression")
    return schema.Postprocessing(
        box_encodings_clip=clip,
        score_converter=converter,
        calibration=calibration,
        nms=_read_nms(nms, f"{path}.nms", drop_at_threshold=_drops(nms, f"{path}.nms")),
        **section.read_fields(path, "logit_scale"),
    )


def _converter_before(
    predictor: MessageSection, converter: schema.ScoreConverter, path: str
) -> schema.ScoreConverter:
    """Returns the score converter that a weight-shared predictor has, or else the given one."""
    section = predictor.child("weight_shared_convolutional_box_predictor")
    # The original applies the predictor's converter at inference alone, like the other one.
    if section.value("score_converter") != "sigmoid":
        return converter
    if converter != "identity":
        problem = (
            f"scores are converted twice: SIGMOID in the box predictor, {converter.upper()} "
            "behind it"
        )
        raise UserError(problem, where=section.where("score_converter"), fix="take one of them out")
    chosen: schema.ScoreConverter = section.value("score_converter", path)
    return chosen


def _drops(section: MessageSection, path: str) -> bool:
    """Reads whether a box is dropped if its overlap is the threshold itself."""
    partitioned: bool = section.value("use_partitioned_nms", f"{path}.drop_at_threshold")
    if partitioned and not section.value("use_static_shapes"):
        section.note(
            "use_partitioned_nms",
            "use_partitioned_nms has no effect without use_static_shapes; "
            f"{Setting(f'{path}.drop_at_threshold', True)} has its effect",
        )
        return False
    return partitioned


def _read_clip(predictor: MessageSection, path: str) -> schema.BoxEncodingsClip | None:
    for name in ("convolutional_box_predictor", "weight_shared_convolutional_box_predictor"):
        if predictor.has(name) and predictor.child(name).has("box_encodings_clip_range"):
            section = predictor.child(name).child("box_encodings_clip_range")
            return schema.BoxEncodingsClip(**section.read_fields(path, "min", "max"))
    return None

"""Anchors, matching, losses and post-processing."""

import math
from typing import Any

from stillbox.experiment.params_dict.section import KeySection
from stillbox.experiment.schema import (
    ArgmaxMatcher,
    FasterRcnnBoxCoder,
    Loss,
    MultiscaleAnchors,
    Nms,
    Postprocessing,
    SigmoidFocalLoss,
    SmoothL1Loss,
)

BOX_CODER = FasterRcnnBoxCoder(
    y_scale=1.0,
    x_scale=1.0,
    height_scale=1.0,
    width_scale=1.0,
    max_log_ratio=math.log(1000 / 16),
)
"""Codes without scales, decoded exactly as they are encoded. The original decodes with other edges:
`inclusive_edges: decode`."""
_NMS = "model.postprocessing.nms"


def read_anchors(root: KeySection) -> MultiscaleAnchors:
    """Reads `anchor`."""
    path = "model.anchors"
    anchors = MultiscaleAnchors(
        order="scale_major",
        **root.child("architecture").fill(path, "min_level", "max_level"),
        **root.child("anchor").fill(
            path, "aspect_ratios", anchor_scale="anchor_size", scales_per_octave="num_scales"
        ),
    )
    count = anchors.scales_per_octave * len(anchors.aspect_ratios)
    # The last version no longer reads this key, so that its value must agree.
    given = root.value("retinanet_head.anchors_per_location")
    if given not in (None, count):
        root.refuse(
            "retinanet_head.anchors_per_location",
            f"anchor.num_scales and anchor.aspect_ratios make {count} at a location",
            "take it out",
        )
    return anchors


def read_matcher(root: KeySection) -> ArgmaxMatcher:
    """Reads the thresholds; every box has its best anchor, whatever they are."""
    return ArgmaxMatcher(
        force_match_for_each_row=True,
        **root.child("retinanet_parser").fill(
            "model.matcher", "unmatched_threshold", matched_threshold="match_threshold"
        ),
    )


def read_loss(root: KeySection) -> Loss:
    """Reads `retinanet_loss`: both sums, divided by the matches of a replica's images plus one.

    A moving average of the matches is one number in the schema, and thus of the whole batch.
    """
    section, path = root.child("retinanet_loss"), "model.loss"
    focal = section.fill(
        f"{path}.classification", alpha="focal_loss_alpha", gamma="focal_loss_gamma"
    )
    return Loss(
        normalizer="global" if section.get("normalizer_momentum") else "per_replica",
        classification=SigmoidFocalLoss(**focal),
        localization=SmoothL1Loss(**section.fill(f"{path}.localization", delta="huber_loss_delta")),
        normalize_by_matches=True,
        normalize_localization_by_code_size=True,
        encode_background_as_zeros=True,
        added_matches=1.0,
        **section.fill(path, "normalizer_momentum", localization_weight="box_loss_weight"),
    )


def read_postprocessing(root: KeySection) -> Postprocessing:
    """Reads `postprocess`."""
    section, most = root.child("postprocess"), f"{_NMS}.max_candidates_per_class"
    versions = ("v1", "v2", "batched")
    version = section.choose("nms_version", versions, f"{_NMS}.drop_at_threshold", most)
    if section.value("use_batched_nms", most):
        version = "batched"
        section.warn(
            "use_batched_nms",
            "postprocess.use_batched_nms is deprecated; today's is "
            "postprocess.nms_version = batched",
        )
    if not section.value("apply_nms"):
        section.refuse(
            "apply_nms",
            "detections are the result of non-maximum suppression",
            "leave it at true",
        )
    sigmoid = section.value("apply_sigmoid", "model.postprocessing.score_converter")
    # The batched operation compares all boxes, and keeps one that overlaps by the threshold itself.
    limits: dict[str, Any] = {}
    if version != "batched":
        limits = section.fill(_NMS, max_candidates_per_class="pre_nms_num_boxes")
    return Postprocessing(
        score_converter="sigmoid" if sigmoid else "identity",
        nms=Nms(
            drop_at_threshold=version != "batched",
            clip_first=True,
            **limits,
            **section.fill(
                _NMS,
                "score_threshold",
                max_total="max_total_size",
                max_per_class="max_total_size",
                iou_threshold="nms_iou_threshold",
            ),
        ),
    )

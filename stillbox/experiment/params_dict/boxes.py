"""Anchors, matching, losses and what is left of the boxes (TPU detection fact sheet 5 and 6)."""

import math
from typing import Any

from stillbox.experiment.params_dict.reading import Reading
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
"""Plain codes. Decoding reads what training writes, which it does not quite in the original: that
is `inclusive_edges: decode`."""
_VERSIONS = ("v1", "v2", "batched")


def read_anchors(reading: Reading) -> MultiscaleAnchors:
    """Reads `anchor`."""
    anchors = MultiscaleAnchors(
        min_level=reading.take("architecture.min_level", "model.anchors.min_level"),
        max_level=reading.take("architecture.max_level", "model.anchors.max_level"),
        order="scale_major",
        **reading.fill(
            "anchor",
            "model.anchors",
            anchor_scale="anchor_size",
            aspect_ratios="aspect_ratios",
            scales_per_octave="num_scales",
        ),
    )
    count = anchors.scales_per_octave * len(anchors.aspect_ratios)
    # It was needed once and is not read any more, so it had better say the same.
    given = reading.take("retinanet_head.anchors_per_location")
    if given not in (None, count):
        reading.refuse(
            "retinanet_head.anchors_per_location",
            f"anchor.num_scales and anchor.aspect_ratios make {count} at a location",
            "take it out",
        )
    return anchors


def read_matcher(reading: Reading) -> ArgmaxMatcher:
    """Reads the thresholds; every box has its best anchor, whatever they say."""
    return ArgmaxMatcher(
        force_match_for_each_row=True,
        **reading.fill(
            "retinanet_parser",
            "model.matcher",
            matched_threshold="match_threshold",
            unmatched_threshold="unmatched_threshold",
        ),
    )


def read_loss(reading: Reading) -> Loss:
    """Reads `retinanet_loss`: both sums over the matches of a replica's images and one more.

    Each replica divides by its own matches (fact sheet 0, fact 4). A moving average of them is one
    number here, and so of the whole batch.
    """
    averaged = reading.params.value("retinanet_loss.normalizer_momentum")
    return Loss(
        normalizer="global" if averaged else "per_replica",
        classification=SigmoidFocalLoss(
            **reading.fill(
                "retinanet_loss",
                "model.loss.classification",
                alpha="focal_loss_alpha",
                gamma="focal_loss_gamma",
            )
        ),
        localization=SmoothL1Loss(
            **reading.fill("retinanet_loss", "model.loss.localization", delta="huber_loss_delta")
        ),
        normalize_by_matches=True,
        normalize_localization_by_code_size=True,
        encode_background_as_zeros=True,
        added_matches=1.0,
        **reading.fill(
            "retinanet_loss",
            "model.loss",
            localization_weight="box_loss_weight",
            normalizer_momentum="normalizer_momentum",
        ),
    )


def read_postprocessing(reading: Reading) -> Postprocessing:
    """Reads `postprocess`."""
    version = reading.choose(
        "postprocess.nms_version",
        _VERSIONS,
        "model.postprocessing.nms.drop_at_threshold",
        "model.postprocessing.nms.max_candidates_per_class",
    )
    if reading.take(
        "postprocess.use_batched_nms", "model.postprocessing.nms.max_candidates_per_class"
    ):
        version = "batched"
        reading.warnings.append(
            f"{reading.params.where('postprocess.use_batched_nms')}: postprocess.use_batched_nms "
            "is deprecated; today's is postprocess.nms_version = batched"
        )
    if not reading.take("postprocess.apply_nms"):
        reading.refuse(
            "postprocess.apply_nms",
            "detections are what non-maximum suppression leaves",
            "leave it at true",
        )
    sigmoid = reading.take("postprocess.apply_sigmoid", "model.postprocessing.score_converter")
    return Postprocessing(
        score_converter="sigmoid" if sigmoid else "identity",
        nms=_read_nms(reading, version, "model.postprocessing.nms"),
    )


def _read_nms(reading: Reading, version: str, path: str) -> Nms:
    limits: dict[str, Any] = reading.fill(
        "postprocess", path, max_total="max_total_size", max_per_class="max_total_size"
    )
    # The batched operation looks at all boxes, and keeps one that overlaps by the threshold itself.
    if version != "batched":
        limits |= reading.fill("postprocess", path, max_candidates_per_class="pre_nms_num_boxes")
    return Nms(
        drop_at_threshold=version != "batched",
        clip_first=True,
        **limits,
        **reading.fill(
            "postprocess",
            path,
            score_threshold="score_threshold",
            iou_threshold="nms_iou_threshold",
        ),
    )

"""`EvalConfig`: how the model is scored."""

import dataclasses
from typing import Any

from stillbox.errors import UserError, nearest
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import Evaluation

METRICS: dict[str, Any] = {
    "coco_detection_metrics": "coco",
    "pascal_voc_detection_metrics": "pascal_voc",
    "weighted_pascal_voc_detection_metrics": "weighted_pascal_voc",
}
"""Values of `metrics_set` that are understood, and our names for them."""
# The number of each that says which checkpoint is best.
_BEST: dict[str, Any] = {
    "coco": "AP",
    "pascal_voc": "VOC_mAP",
    "weighted_pascal_voc": "VOC_weighted_mAP",
}
_MASKS = "it scores masks, and stillbox detects boxes"
_IMAGE_LABELS = "it needs labels of whole images and groups of objects, which are not read"
# All other values that the format knows (fact sheet 5.3).
_NOT_HERE = {
    "coco_keypoint_metrics": "it scores keypoints, and stillbox detects boxes",
    "coco_mask_metrics": _MASKS,
    "coco_panoptic_metrics": _MASKS,
    "lvis_mask_metrics": _MASKS,
    "pascal_voc_instance_segmentation_metrics": _MASKS,
    "weighted_pascal_voc_instance_segmentation_metrics": _MASKS,
    "oid_V2_detection_metrics": _IMAGE_LABELS,
    "oid_challenge_detection_metrics": _IMAGE_LABELS,
    "oid_challenge_segmentation_metrics": _MASKS,
    "precision_at_recall_detection_metrics": "precision within bounds of recall is not computed",
}


def read_evaluation(section: Section) -> Evaluation:
    """Reads `eval_config`.

    What changes no score (batch size, AP per class) keeps stillbox's own default where the file
    does not set it; everything else takes the format's.
    """
    metrics = _read_metrics(section, "evaluation.metrics")
    evaluation = Evaluation(
        metrics=metrics,
        best_metric=_BEST[metrics[0]],
        show_labels=not section.value("skip_labels", "evaluation.show_labels"),
        show_scores=not section.value("skip_scores", "evaluation.show_scores"),
        **section.fill(
            "evaluation",
            "num_visualizations",
            "all_metrics_per_category",
            use_ema="use_moving_averages",
            min_score="min_score_threshold",
            max_boxes_drawn="max_num_boxes_to_visualize",
            draw_truth_on_predictions="visualize_groundtruth_boxes",
            truth_color="groundtruth_box_visualization_color",
            pictures_directory="visualization_export_dir",
            name_pictures_by_image="keep_image_id_for_visualization_export",
        ),
    )
    # Their defaults in the format are only slower and quieter (batches of 1, no AP per class), or
    # limits that nobody asked for (5000 images).
    free = {
        "batch_size": "batch_size",
        "per_category": "include_metrics_per_category",
        "max_examples": "num_examples",
        "max_evaluations": "max_evals",
    }
    given = {ours: theirs for ours, theirs in free.items() if section.has(theirs)}
    evaluation = dataclasses.replace(evaluation, **section.fill("evaluation", **given))
    _note_limits(section, evaluation)
    return evaluation


def _note_limits(section: Section, evaluation: Evaluation) -> None:
    if evaluation.max_examples:
        section.log.warnings.append(
            f"{section.position('num_examples')}: num_examples {evaluation.max_examples}: where "
            "there are more images, only the first so many are scored; "
            "--set evaluation.max_examples=0 scores all"
        )
    if evaluation.max_evaluations:
        section.log.notes.append(
            f"{section.position('max_evals')}: max_evals {evaluation.max_evaluations}: training "
            "evaluates that often at most, the last time at its end; "
            "--set evaluation.max_evaluations=0 lifts the limit"
        )


def _read_metrics(section: Section, path: str) -> tuple[Any, ...]:
    names = section.values("metrics_set", path)
    there_is = f"there is: {', '.join(METRICS)}"
    for name in names:
        if name in METRICS:
            continue
        why = f": {_NOT_HERE[name]}" if name in _NOT_HERE else ""
        close = nearest(name, METRICS, limit=1)
        guess = f"{close} " if close.startswith("did you mean") and not why else ""
        raise UserError(
            f"the metrics {name!r} are not supported{why}",
            where=section.position("metrics_set"),
            fix=guess + there_is,
        )
    # An empty set means COCO's metrics, and naming them twice does not compute them twice.
    return tuple(dict.fromkeys(METRICS[name] for name in names)) or ("coco",)

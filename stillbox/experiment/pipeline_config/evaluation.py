"""`EvalConfig`: how the model is scored."""

from pathlib import Path
from typing import Any

from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import Evaluation
from stillbox.experiment.sections import part

METRICS: dict[str, Any] = {
    "coco_detection_metrics": "coco",
    "pascal_voc_detection_metrics": "pascal_voc",
    "weighted_pascal_voc_detection_metrics": "weighted_pascal_voc",
    "oid_V2_detection_metrics": "open_images",
    # A deprecated name of the same (`legacy/evaluator.py`).
    "open_images_V2_detection_metrics": "open_images",
}
"""Supported values of `metrics_set`, and their names in the schema."""
# The number of each by which the best checkpoint is chosen.
_BEST: dict[str, Any] = {
    "coco": "AP",
    "pascal_voc": "VOC_mAP",
    "weighted_pascal_voc": "VOC_weighted_mAP",
    "open_images": "OpenImages_mAP",
}
_OLD_NAME = "open_images_V2_detection_metrics"
_MASKS = "it scores masks, and stillbox detects boxes"
_IMAGE_LABELS = (
    "it needs labels of whole images, which are not read; oid_V2_detection_metrics does without"
)
# All other values (`object_detection/eval_util.py`, `EVAL_METRICS_CLASS_DICT`).
_REFUSED_METRICS = {
    "coco_keypoint_metrics": "it scores keypoints, and stillbox detects boxes",
    "coco_mask_metrics": _MASKS,
    "coco_panoptic_metrics": _MASKS,
    "lvis_mask_metrics": _MASKS,
    "pascal_voc_instance_segmentation_metrics": _MASKS,
    "weighted_pascal_voc_instance_segmentation_metrics": _MASKS,
    "oid_challenge_detection_metrics": _IMAGE_LABELS,
    "oid_challenge_segmentation_metrics": _MASKS,
    "precision_at_recall_detection_metrics": "precision within bounds of recall is not computed",
}
# Fields that change no score keep stillbox's defaults: those of the format are only slower and
# quieter (batches of 1, no AP per class), limits that are seldom meant (5000 images), or a score of
# pictures that suits few models (0.5).
_read = part(
    Evaluation,
    ("batch_size", "per_category", "max_examples", "max_evaluations", "min_score"),
    per_category="include_metrics_per_category",
    max_examples="num_examples",
    max_evaluations="max_evals",
    use_ema="use_moving_averages",
    min_score="min_score_threshold",
    max_boxes_drawn="max_num_boxes_to_visualize",
    draw_truth_on_predictions="visualize_groundtruth_boxes",
    truth_color="groundtruth_box_visualization_color",
    name_pictures_by_image="keep_image_id_for_visualization_export",
)


def _read_pictures_directory(section: MessageSection) -> str:
    """Returns a folder below that of the results; the original's may be anywhere."""
    name = "visualization_export_dir"
    given = Path(str(section.value(name, "evaluation.pictures_directory")))
    if not given.anchor and ".." not in given.parts:
        return str(section.get(name))
    own = given.name if given.name != ".." else "exported"
    section.note(name, f"{name}: pictures are written into the folder {own!r} of the results")
    return own


def read_evaluation(section: MessageSection) -> Evaluation:
    """Reads `eval_config`."""
    names = section.choose("metrics_set", METRICS, "evaluation.metrics", reasons=_REFUSED_METRICS)
    # An empty set means COCO's metrics, and naming them twice does not compute them twice.
    if _OLD_NAME in names:
        section.warn("metrics_set", f"{_OLD_NAME} is deprecated; write oid_V2_detection_metrics")
    metrics = tuple(dict.fromkeys(METRICS[name] for name in names)) or ("coco",)
    evaluation: Evaluation = _read(
        section,
        "evaluation",
        metrics=metrics,
        best_metric=_BEST[metrics[0]],
        pictures_directory=_read_pictures_directory(section),
        show_labels=not section.value("skip_labels", "evaluation.show_labels"),
        show_scores=not section.value("skip_scores", "evaluation.show_scores"),
    )
    if evaluation.max_examples:
        section.warn(
            "num_examples",
            f"num_examples {evaluation.max_examples}: of more images only the first so many are "
            "scored; --set evaluation.max_examples=0 scores all",
        )
    if evaluation.max_evaluations:
        section.note(
            "max_evals",
            f"max_evals {evaluation.max_evaluations}: training evaluates at most that often, the "
            "last time at its end; --set evaluation.max_evaluations=0 lifts the limit",
        )
    return evaluation

"""Names of the numbers in the Object Detection API, in TensorBoard too.

Source: object_detection/metrics/coco_evaluation.py and utils/object_detection_evaluation.py.
"""

from collections.abc import Iterable, Mapping

_SUMMARY = {
    "AP": "DetectionBoxes_Precision/mAP",
    "AP50": "DetectionBoxes_Precision/mAP@.50IOU",
    "AP75": "DetectionBoxes_Precision/mAP@.75IOU",
    "APs": "DetectionBoxes_Precision/mAP (small)",
    "APm": "DetectionBoxes_Precision/mAP (medium)",
    "APl": "DetectionBoxes_Precision/mAP (large)",
    "AR1": "DetectionBoxes_Recall/AR@1",
    "AR10": "DetectionBoxes_Recall/AR@10",
    "AR100": "DetectionBoxes_Recall/AR@100",
    "ARs": "DetectionBoxes_Recall/AR@100 (small)",
    "ARm": "DetectionBoxes_Recall/AR@100 (medium)",
    "ARl": "DetectionBoxes_Recall/AR@100 (large)",
    "VOC_mAP": "PascalBoxes_Precision/mAP@0.5IOU",
    "VOC_weighted_mAP": "WeightedPascalBoxes_Precision/mAP@0.5IOU",
}
_VOC_CLASSES = {
    "VOC_mAP": "PascalBoxes_PerformanceByCategory/AP@0.5IOU/",
    "VOC_weighted_mAP": "WeightedPascalBoxes_PerformanceByCategory/AP@0.5IOU/",
}


def original_names(summary: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns a summary under the original's names."""
    return {_SUMMARY[key]: value for key, value in summary.items()}


def original_class_names(
    name: str, numbers: Mapping[str, float | None], voc_keys: Iterable[str]
) -> dict[str, float | None]:
    """Returns the numbers of one class under the original's names.

    Args:
        name: of the class.
        numbers: COCO's, four or twelve of them, and `VOC_AP`; either may be absent.
        voc_keys: Pascal VOC's metrics that were asked for.
    """
    named: dict[str, float | None] = {}
    if "AP" in numbers:
        named[f"DetectionBoxes_PerformanceByCategory/mAP/{name}"] = numbers["AP"]
    if "AR1" in numbers:  # all twelve
        for key, original in _SUMMARY.items():
            if key in numbers:
                named[f"{original} ByCategory/{name}"] = numbers[key]
    named |= {_VOC_CLASSES[key] + name: numbers["VOC_AP"] for key in voc_keys}
    return named

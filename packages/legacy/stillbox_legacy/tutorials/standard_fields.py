"""`object_detection.core.standard_fields`: names of arrays in dictionaries and in records."""

from typing import Any


def _fields(name: str, words: str, **others: str) -> Any:  # noqa: ANN401
    """Returns a class; the value of an attribute is its name, but for `others`."""
    return type(name, (), {**dict(zip(words.split(), words.split(), strict=True)), **others})


InputDataFields = _fields(
    "InputDataFields",
    "image image_additional_channels original_image original_image_spatial_shape key source_id "
    "filename groundtruth_image_classes groundtruth_image_confidences groundtruth_labeled_classes "
    "groundtruth_boxes groundtruth_classes groundtruth_confidences groundtruth_label_types "
    "groundtruth_is_crowd groundtruth_area groundtruth_difficult groundtruth_group_of "
    "groundtruth_instance_masks groundtruth_instance_boundaries groundtruth_instance_classes "
    "groundtruth_keypoints groundtruth_keypoint_visibilities groundtruth_keypoint_weights "
    "groundtruth_label_weights groundtruth_weights num_groundtruth_boxes is_annotated "
    "true_image_shape multiclass_scores proposal_boxes proposal_objectness",
)
DetectionResultFields = _fields(
    "DetectionResultFields",
    "source_id key detection_boxes detection_scores detection_multiclass_scores "
    "detection_features detection_classes detection_masks detection_boundaries "
    "detection_keypoints detection_keypoint_scores num_detections raw_detection_boxes "
    "raw_detection_scores detection_anchor_indices",
)
BoxListFields = _fields(
    "BoxListFields",
    "boxes classes scores weights confidences objectness masks boundaries keypoints "
    "keypoint_heatmaps is_crowd",
)
_ATTRIBUTES = "view truncated occluded difficult group_of depiction is_crowd weight"
_BOX, _OBJECT, _DETECTION = "image/object/bbox", "image/object", "image/detection"
TfExampleFields = _fields(
    "TfExampleFields",
    "",
    image_encoded="image/encoded",
    image_format="image/format",
    filename="image/filename",
    channels="image/channels",
    colorspace="image/colorspace",
    height="image/height",
    width="image/width",
    source_id="image/source_id",
    image_class_text="image/class/text",
    image_class_label="image/class/label",
    object_class_text=f"{_OBJECT}/class/text",
    object_class_label=f"{_OBJECT}/class/label",
    **{f"object_bbox_{side}": f"{_BOX}/{side}" for side in ("ymin", "xmin", "ymax", "xmax")},
    **{f"object_{name}": f"{_OBJECT}/{name}" for name in _ATTRIBUTES},
    object_segment_area=f"{_OBJECT}/segment/area",
    instance_masks="image/segmentation/object",
    instance_boundaries="image/boundaries/object",
    instance_classes="image/segmentation/object/class",
    detection_class_label=f"{_DETECTION}/label",
    **{
        f"detection_bbox_{side}": f"{_DETECTION}/bbox/{side}"
        for side in ("ymin", "xmin", "ymax", "xmax")
    },
    detection_score=f"{_DETECTION}/score",
)

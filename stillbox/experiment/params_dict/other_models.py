"""Types and sections of other models, which are refused by name."""

from stillbox.errors import UserError

_TWO_STAGES = "a detector of two stages with masks, and stillbox has one-stage detectors of boxes"
_NO_MASKS = "it predicts masks, and stillbox detects boxes"
_WHOLE_IMAGES = "it labels whole images, and stillbox detects boxes"
_PIXELS = "it labels pixels, and stillbox detects boxes"
FIX = "there is: type retinanet, with retinanet_parser, retinanet_head and retinanet_loss"
"""Remedy of all refusals."""

TYPES = {
    "mask_rcnn": f"Mask R-CNN is {_TWO_STAGES}",
    "cascade_mask_rcnn": f"Cascade R-CNN is {_TWO_STAGES}",
    "olnmask": f"the object localisation network is {_TWO_STAGES}",
    "vild": f"ViLD is {_TWO_STAGES}",
    "attribute_mask_rcnn": f"attribute Mask R-CNN is {_TWO_STAGES}",
    "shapemask": f"ShapeMask: {_NO_MASKS}",
    "classification": f"a classifier: {_WHOLE_IMAGES}",
    "segmentation": f"semantic segmentation: {_PIXELS}",
}
"""Values of `type` that belong to other models, and why they are refused."""

_SECTIONS_OF = {
    "mask_rcnn": (
        "maskrcnn_parser",
        "rpn_head",
        "frcnn_head",
        "mrcnn_head",
        "rpn_score_loss",
        "rpn_box_loss",
        "frcnn_class_loss",
        "frcnn_box_loss",
        "roi_proposal",
        "roi_sampling",
        "mask_sampling",
    ),
    "olnmask": ("olnmask_parser", "rpn_center_loss", "frcnn_box_score_loss"),
    "vild": ("vild_parser",),
    "attribute_mask_rcnn": ("attribute_maskrcnn_parser",),
    "shapemask": ("shapemask_parser", "shapemask_head", "shapemask_loss"),
    "classification": ("classification_parser", "classification_head", "classification_loss"),
    "segmentation": ("segmentation_parser", "segmentation_head", "segmentation_loss"),
}
SECTIONS = {section: model for model, names in _SECTIONS_OF.items() for section in names}
"""Sections of other models -> the `type` that they belong to."""


def refuse_type(name: str, where: str, what: str) -> UserError:
    """Returns the refusal of another model, for `what` in the dictionary."""
    return UserError(f"{what}: {TYPES[name]}", where=where, fix=FIX)

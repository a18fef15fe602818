"""`PreprocessingStep`: data augmentation."""

from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    Augmentation,
    RandomCropImage,
    RandomHorizontalFlip,
    SsdRandomCrop,
)

_CROP = (
    "min_object_covered",
    "min_aspect_ratio",
    "max_aspect_ratio",
    "min_area",
    "max_area",
    "overlap_thresh",
    "clip_boxes",
    "random_coef",
)


def read_augmentation(section: Section, path: str) -> Augmentation:
    """Reads one of `data_augmentation_options`."""
    name, chosen = section.choose(
        "preprocessing_step", ("random_horizontal_flip", "random_crop_image", "ssd_random_crop")
    )
    section.log.origins[path] = section.position(name)
    if name == "random_horizontal_flip":
        return RandomHorizontalFlip(**chosen.fill(path, "probability"))
    if name == "random_crop_image":
        return RandomCropImage(**chosen.fill(path, *_CROP))
    # Operations in the file take the place of the usual seven; they do not add to them.
    operations = tuple(
        RandomCropImage(**operation.fill(f"{path}.operations.{number}", *_CROP))
        for number, operation in enumerate(chosen.children("operations"))
    )
    return SsdRandomCrop(operations=operations) if operations else SsdRandomCrop()

"""`PreprocessingStep`: data augmentation."""

from typing import get_args, get_type_hints

from stillbox.errors import UserError, nearest
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import (
    AdjustGamma,
    Augmentation,
    AutoAugment,
    DropLabelProbabilistically,
    FixedAspectCrop,
    NormalizeImage,
    RandomAbsolutePadImage,
    RandomAdjustBrightness,
    RandomAdjustContrast,
    RandomAdjustHue,
    RandomAdjustSaturation,
    RandomBlackPatches,
    RandomCropImage,
    RandomCropPadImage,
    RandomCropToAspectRatio,
    RandomDistortColor,
    RandomDownscaleToTargetPixels,
    RandomHorizontalFlip,
    RandomImageScale,
    RandomJitterBoxes,
    RandomJpegQuality,
    RandomPadImage,
    RandomPatchGaussian,
    RandomPixelValueScale,
    RandomResizeMethod,
    RandomRgbToGray,
    RandomRotation90,
    RandomScaleCropAndPadToSquare,
    RandomSelfConcatImage,
    RandomSquareCropByScale,
    RandomVerticalFlip,
    RemapLabels,
    ResizeImage,
    RgbToGray,
    SsdRandomCrop,
    SsdRandomCropFixedAspectRatio,
    SsdRandomCropPad,
    SsdRandomCropPadFixedAspectRatio,
    SubtractChannelMean,
)
from stillbox.experiment.sections import Reader, part
from stillbox.experiment.values import Value

POLICIES: tuple[str, ...] = get_args(get_type_hints(AutoAugment)["policy"])
"""Legal values of `policy_name`."""

_FACTORS = {"min_factor": "min_delta", "max_factor": "max_delta"}
_SIZE = {"height": "target_height", "width": "target_width"}
_SCALES = {"min_scale": "scale_min", "max_scale": "scale_max"}
_PADDED = ("min_padded_size_ratio", "max_padded_size_ratio")


def _autoaugment(section: MessageSection, path: str) -> AutoAugment:
    policy = section.value("policy_name", f"{path}.policy")
    if policy not in POLICIES:
        raise UserError(
            f"AutoAugmentImage.policy_name: there is no policy {policy!r}",
            where=section.where("policy_name"),
            fix=nearest(policy, POLICIES),
        )
    return AutoAugment(policy=policy)


def _subtract_channel_mean(section: MessageSection, path: str) -> SubtractChannelMean:
    if not section.has("means"):
        what = "subtract_channel_mean has no means"
        raise UserError(what, where=section.where(), fix="add means: [R, G, B]")
    return SubtractChannelMean(**section.fill(path, "means"))


def _padded_crop(section: MessageSection, path: str) -> RandomCropPadImage:
    """Reads an operation of `ssd_random_crop_pad`."""
    # The default is black here, and the mean only if there are no operations.
    color = tuple(section.value(f"pad_color_{c}", f"{path}.pad_color") for c in "rgb")
    crop: RandomCropPadImage = _CROP_PAD(section, path, pad_color=color)
    return crop


def _with_operations(reader: Reader, operation: Reader) -> Reader:
    """Returns a reader of a crop whose `operations`, if any, replace the usual ones."""

    def read(section: MessageSection, path: str) -> Value:
        operations = section.read_inner("operations", operation, f"{path}.operations")
        return reader(section, path, **({"operations": operations} if operations else {}))

    return read


def _fixed_aspect_ratio(section: MessageSection, path: str) -> Value:
    crop = _FIXED_ASPECT_RATIO(section, path)
    if section.has("aspect_ratio") and not section.children("operations"):
        section.warn(
            "aspect_ratio",
            "the original ignores aspect_ratio if there are no operations and takes 1.0; "
            "stillbox honours it",
        )
    return crop


_CROP = part(RandomCropImage)
_CROP_PAD = part(RandomCropPadImage, (*_PADDED, "pad_color"))
_FIXED_ASPECT_RATIO = _with_operations(part(SsdRandomCropFixedAspectRatio), part(FixedAspectCrop))
_STEPS: dict[str, Reader] = {
    "random_horizontal_flip": part(RandomHorizontalFlip),
    "random_vertical_flip": part(RandomVerticalFlip),
    "random_rotation90": part(RandomRotation90),
    "random_self_concat_image": part(
        RandomSelfConcatImage,
        vertical_probability="concat_vertical_probability",
        horizontal_probability="concat_horizontal_probability",
    ),
    "random_crop_image": _CROP,
    "random_crop_pad_image": _CROP_PAD,
    "random_crop_to_aspect_ratio": part(RandomCropToAspectRatio),
    "ssd_random_crop": _with_operations(part(SsdRandomCrop), _CROP),
    "ssd_random_crop_pad": _with_operations(part(SsdRandomCropPad), _padded_crop),
    "ssd_random_crop_fixed_aspect_ratio": _fixed_aspect_ratio,
    "ssd_random_crop_pad_fixed_aspect_ratio": _with_operations(
        part(SsdRandomCropPadFixedAspectRatio, _PADDED), _CROP
    ),
    "random_square_crop_by_scale": part(RandomSquareCropByScale, **_SCALES),
    "random_scale_crop_and_pad_to_square": part(RandomScaleCropAndPadToSquare, **_SCALES),
    "random_pad_image": part(
        RandomPadImage,
        ("min_height", "min_width", "max_height", "max_width", "pad_color"),
        min_height="min_image_height",
        min_width="min_image_width",
        max_height="max_image_height",
        max_width="max_image_width",
    ),
    "random_absolute_pad_image": part(RandomAbsolutePadImage, ("pad_color",)),
    "random_image_scale": part(
        RandomImageScale, min_ratio="min_scale_ratio", max_ratio="max_scale_ratio"
    ),
    "random_resize_method": part(RandomResizeMethod, **_SIZE),
    "resize_image": part(ResizeImage, height="new_height", width="new_width"),
    # The default of max_target_pixels in the format is not that of the operation, which is ours.
    "random_downscale_to_target_pixels": part(
        RandomDownscaleToTargetPixels, ("max_target_pixels",)
    ),
    "random_adjust_brightness": part(RandomAdjustBrightness),
    "random_adjust_contrast": part(RandomAdjustContrast, **_FACTORS),
    "random_adjust_hue": part(RandomAdjustHue, max_turn="max_delta"),
    "random_adjust_saturation": part(RandomAdjustSaturation, **_FACTORS),
    "random_distort_color": part(RandomDistortColor, ordering="color_ordering"),
    "random_pixel_value_scale": part(
        RandomPixelValueScale, min_factor="minval", max_factor="maxval"
    ),
    "random_rgb_to_gray": part(RandomRgbToGray),
    "rgb_to_gray": part(RgbToGray),
    "adjust_gamma": part(AdjustGamma),
    "normalize_image": part(
        NormalizeImage,
        original_min="original_minval",
        original_max="original_maxval",
        target_min="target_minval",
        target_max="target_maxval",
    ),
    "subtract_channel_mean": _subtract_channel_mean,
    "random_black_patches": part(
        RandomBlackPatches, max_patches="max_black_patches", size_ratio="size_to_image_ratio"
    ),
    "random_jpeg_quality": part(
        RandomJpegQuality, min_quality="min_jpeg_quality", max_quality="max_jpeg_quality"
    ),
    "random_patch_gaussian": part(
        RandomPatchGaussian, min_stddev="min_gaussian_stddev", max_stddev="max_gaussian_stddev"
    ),
    "autoaugment_image": _autoaugment,
    "random_jitter_boxes": part(RandomJitterBoxes, mode="jitter_mode"),
    "drop_label_probabilistically": part(
        DropLabelProbabilistically, probability="drop_probability"
    ),
    "remap_labels": part(RemapLabels, ("original_labels",)),
}


def read_augmentation(section: MessageSection, path: str) -> Augmentation:
    """Reads one of `data_augmentation_options`."""
    name = section.member("preprocessing_step", _STEPS)
    section.log.origins[path] = section.where(name)
    augmentation: Augmentation = _STEPS[name](section.child(name), path)
    return augmentation

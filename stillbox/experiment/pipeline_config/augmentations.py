"""`PreprocessingStep`: data augmentation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

from stillbox.errors import UserError, nearest
from stillbox.experiment.pipeline_config.section import Section
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
from stillbox.experiment.values import Value


@dataclass(frozen=True, kw_only=True)
class _Step:
    """How one message becomes one class of the schema."""

    made: Callable[..., Any]
    same: tuple[str, ...] = ()
    """Scalars with the same name."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Ours -> theirs."""
    lists: dict[str, str] = field(default_factory=dict)
    """Ours -> theirs; an empty list in the file leaves ours at its default."""
    given: dict[str, str] = field(default_factory=dict)
    """Ours -> theirs, for scalars that count only where the file sets them: their default in the
    format is not that of the operation, which is ours."""

    def read(self, section: Section, path: str, **further: Value) -> Value:
        """Returns the class with what the section says."""
        lists = {
            ours: values
            for ours, theirs in self.lists.items()
            if (values := section.values(theirs, f"{path}.{ours}"))
        }
        given = {
            ours: section.value(theirs, f"{path}.{ours}")
            for ours, theirs in self.given.items()
            if section.has(theirs)
        }
        filled = section.fill(path, *self.same, **self.renamed)
        return self.made(**filled, **lists, **given, **further)


_FIXED_CROP = (
    *("min_object_covered", "min_area", "max_area"),
    *("overlap_thresh", "clip_boxes", "random_coef"),
)
_CROP = (*_FIXED_CROP, "min_aspect_ratio", "max_aspect_ratio")
_PAD_RATIOS = {
    "min_padded_size_ratio": "min_padded_size_ratio",
    "max_padded_size_ratio": "max_padded_size_ratio",
}
_COLOR = {"pad_color": "pad_color"}
_FACTORS = {"min_factor": "min_delta", "max_factor": "max_delta"}
_SIZE = {"height": "target_height", "width": "target_width"}
_SCALES = {"min_scale": "scale_min", "max_scale": "scale_max"}
_RESIZE_METHODS: dict[str, Any] = {
    "AREA": "area",
    "BICUBIC": "bicubic",
    "BILINEAR": "bilinear",
    "NEAREST_NEIGHBOR": "nearest",
}

_STEPS: dict[str, _Step] = {
    "random_horizontal_flip": _Step(made=RandomHorizontalFlip, same=("probability",)),
    "random_vertical_flip": _Step(made=RandomVerticalFlip, same=("probability",)),
    "random_rotation90": _Step(made=RandomRotation90, same=("probability",)),
    "random_self_concat_image": _Step(
        made=RandomSelfConcatImage,
        renamed={
            "vertical_probability": "concat_vertical_probability",
            "horizontal_probability": "concat_horizontal_probability",
        },
    ),
    "random_crop_image": _Step(made=RandomCropImage, same=_CROP),
    "random_crop_pad_image": _Step(made=RandomCropPadImage, same=_CROP, lists=_PAD_RATIOS | _COLOR),
    "random_crop_to_aspect_ratio": _Step(
        made=RandomCropToAspectRatio, same=("aspect_ratio", "overlap_thresh", "clip_boxes")
    ),
    "ssd_random_crop": _Step(made=SsdRandomCrop),
    "ssd_random_crop_pad": _Step(made=SsdRandomCropPad),
    "ssd_random_crop_fixed_aspect_ratio": _Step(
        made=SsdRandomCropFixedAspectRatio, same=("aspect_ratio",)
    ),
    "ssd_random_crop_pad_fixed_aspect_ratio": _Step(
        made=SsdRandomCropPadFixedAspectRatio, same=("aspect_ratio",), lists=_PAD_RATIOS
    ),
    "random_square_crop_by_scale": _Step(
        made=RandomSquareCropByScale, same=("max_border", "num_scales"), renamed=_SCALES
    ),
    "random_scale_crop_and_pad_to_square": _Step(
        made=RandomScaleCropAndPadToSquare, same=("output_size",), renamed=_SCALES
    ),
    "random_pad_image": _Step(
        made=RandomPadImage,
        lists=_COLOR,
        given={
            f"{end}_{side}": f"{end}_image_{side}"
            for end in ("min", "max")
            for side in ("height", "width")
        },
    ),
    "random_absolute_pad_image": _Step(
        made=RandomAbsolutePadImage,
        same=("max_height_padding", "max_width_padding"),
        lists=_COLOR,
    ),
    "random_image_scale": _Step(
        made=RandomImageScale,
        renamed={"min_ratio": "min_scale_ratio", "max_ratio": "max_scale_ratio"},
    ),
    "random_resize_method": _Step(made=RandomResizeMethod, renamed=_SIZE),
    "resize_image": _Step(made=ResizeImage, renamed={"height": "new_height", "width": "new_width"}),
    "random_downscale_to_target_pixels": _Step(
        made=RandomDownscaleToTargetPixels,
        same=("random_coef", "min_target_pixels"),
        given={"max_target_pixels": "max_target_pixels"},
    ),
    "random_adjust_brightness": _Step(made=RandomAdjustBrightness, same=("max_delta",)),
    "random_adjust_contrast": _Step(made=RandomAdjustContrast, renamed=_FACTORS),
    "random_adjust_hue": _Step(made=RandomAdjustHue, renamed={"max_turn": "max_delta"}),
    "random_adjust_saturation": _Step(made=RandomAdjustSaturation, renamed=_FACTORS),
    "random_distort_color": _Step(made=RandomDistortColor, renamed={"ordering": "color_ordering"}),
    "random_pixel_value_scale": _Step(
        made=RandomPixelValueScale, renamed={"min_factor": "minval", "max_factor": "maxval"}
    ),
    "random_rgb_to_gray": _Step(made=RandomRgbToGray, same=("probability",)),
    "rgb_to_gray": _Step(made=RgbToGray),
    "adjust_gamma": _Step(made=AdjustGamma, same=("gamma", "gain")),
    "normalize_image": _Step(
        made=NormalizeImage,
        renamed={
            "original_min": "original_minval",
            "original_max": "original_maxval",
            "target_min": "target_minval",
            "target_max": "target_maxval",
        },
    ),
    "subtract_channel_mean": _Step(made=SubtractChannelMean, lists={"means": "means"}),
    "random_black_patches": _Step(
        made=RandomBlackPatches,
        same=("probability",),
        renamed={"max_patches": "max_black_patches", "size_ratio": "size_to_image_ratio"},
    ),
    "random_jpeg_quality": _Step(
        made=RandomJpegQuality,
        same=("random_coef",),
        renamed={"min_quality": "min_jpeg_quality", "max_quality": "max_jpeg_quality"},
    ),
    "random_patch_gaussian": _Step(
        made=RandomPatchGaussian,
        same=("random_coef", "min_patch_size", "max_patch_size"),
        renamed={"min_stddev": "min_gaussian_stddev", "max_stddev": "max_gaussian_stddev"},
    ),
    "autoaugment_image": _Step(made=AutoAugment, renamed={"policy": "policy_name"}),
    "random_jitter_boxes": _Step(made=RandomJitterBoxes, same=("ratio",)),
    "drop_label_probabilistically": _Step(
        made=DropLabelProbabilistically,
        same=("label",),
        renamed={"probability": "drop_probability"},
    ),
    "remap_labels": _Step(
        made=RemapLabels, same=("new_label",), lists={"original_labels": "original_labels"}
    ),
}

POLICIES: tuple[str, ...] = get_args(get_type_hints(AutoAugment)["policy"])
"""What `policy_name` may be."""

# What one of the `operations` of a step becomes.
_OPERATIONS: dict[str, _Step] = {
    "ssd_random_crop": _STEPS["random_crop_image"],
    "ssd_random_crop_pad": _Step(made=RandomCropPadImage, same=_CROP, lists=_PAD_RATIOS),
    "ssd_random_crop_fixed_aspect_ratio": _Step(made=FixedAspectCrop, same=_FIXED_CROP),
    "ssd_random_crop_pad_fixed_aspect_ratio": _STEPS["random_crop_image"],
}


def read_augmentation(section: Section, path: str) -> Augmentation:
    """Reads one of `data_augmentation_options`."""
    name, chosen = section.choose("preprocessing_step", tuple(_STEPS))
    section.log.origins[path] = section.position(name)
    further: dict[str, Any] = {}
    if name in _OPERATIONS:
        further = _read_operations(chosen, name, path)
    elif name == "resize_image":
        further = {"method": _RESIZE_METHODS[chosen.value("method", f"{path}.method")]}
    elif name == "random_jitter_boxes":
        further = {"mode": chosen.value("jitter_mode", f"{path}.mode").lower()}
    elif name == "subtract_channel_mean" and not chosen.has("means"):
        raise UserError(
            "subtract_channel_mean has no means", where=chosen.where, fix="add means: [R, G, B]"
        )
    elif name == "autoaugment_image":
        _refuse_unknown_policy(chosen)
    augmentation: Augmentation = _STEPS[name].read(chosen, path, **further)
    return augmentation


def _refuse_unknown_policy(chosen: Section) -> None:
    policy = chosen.value("policy_name")
    if policy not in POLICIES:
        raise UserError(
            f"AutoAugmentImage.policy_name: there is no policy {policy!r}",
            where=chosen.position("policy_name"),
            fix=nearest(policy, POLICIES),
        )


def _read_operations(chosen: Section, name: str, path: str) -> dict[str, Any]:
    """Operations in the file take the place of the usual ones; they do not add to them."""
    step = _OPERATIONS[name]
    operations = []
    for number, operation in enumerate(chosen.children("operations")):
        inner = f"{path}.operations.{number}"
        further: dict[str, Any] = {}
        if name == "ssd_random_crop_pad":
            colour = (operation.value(f"pad_color_{c}", f"{inner}.pad_color") for c in "rgb")
            # Black where the file says nothing: only without operations is it the mean.
            further = {"pad_color": tuple(colour)}
        operations.append(step.read(operation, inner, **further))
    if operations:
        return {"operations": tuple(operations)}
    if name == "ssd_random_crop_fixed_aspect_ratio" and chosen.has("aspect_ratio"):
        chosen.log.warnings.append(
            f"{chosen.position('aspect_ratio')}: the original passes aspect_ratio over where there "
            "are no operations and takes 1.0; it is honoured here"
        )
    return {}

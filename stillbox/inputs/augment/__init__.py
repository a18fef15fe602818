"""Augmentations: one file for each family, registered here under their classes of the schema."""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.random import Generator

from stillbox.experiment import schema
from stillbox.inputs.augment.aspect_ratio import (
    random_crop_to_aspect_ratio,
    ssd_random_crop_fixed_aspect_ratio,
    ssd_random_crop_pad_fixed_aspect_ratio,
)
from stillbox.inputs.augment.autoaugment import auto_augment
from stillbox.inputs.augment.colors import (
    random_adjust_brightness,
    random_adjust_contrast,
    random_adjust_hue,
    random_adjust_saturation,
    random_distort_color,
)
from stillbox.inputs.augment.crop_and_pad import random_crop_pad_image, ssd_random_crop_pad
from stillbox.inputs.augment.flips import (
    random_horizontal_flip,
    random_rotation90,
    random_vertical_flip,
)
from stillbox.inputs.augment.gray import random_rgb_to_gray, rgb_to_gray
from stillbox.inputs.augment.iou_crop import ssd_iou_crop
from stillbox.inputs.augment.jpeg import random_jpeg_quality
from stillbox.inputs.augment.labels import (
    drop_label_probabilistically,
    random_jitter_boxes,
    remap_labels,
)
from stillbox.inputs.augment.padding import random_absolute_pad_image, random_pad_image
from stillbox.inputs.augment.patches import random_black_patches, random_patch_gaussian
from stillbox.inputs.augment.random_crop import random_crop_image, ssd_random_crop
from stillbox.inputs.augment.self_concat import random_self_concat_image
from stillbox.inputs.augment.sizes import (
    random_downscale_to_target_pixels,
    random_image_scale,
    random_resize_method,
    resize_image,
)
from stillbox.inputs.augment.square_crops import (
    random_scale_crop_and_pad_to_square,
    random_square_crop_by_scale,
)
from stillbox.inputs.augment.values import (
    adjust_gamma,
    normalize_image,
    random_pixel_value_scale,
    subtract_channel_mean,
)
from stillbox.inputs.sample import Sample

# Any: each operation takes its own class of the schema, which the key guarantees.
OPERATIONS: dict[type, Callable[[Sample, Any, Generator], Sample]] = {
    schema.RandomHorizontalFlip: random_horizontal_flip,
    schema.RandomVerticalFlip: random_vertical_flip,
    schema.RandomRotation90: random_rotation90,
    schema.RandomSelfConcatImage: random_self_concat_image,
    schema.RandomCropImage: random_crop_image,
    schema.RandomCropPadImage: random_crop_pad_image,
    schema.RandomCropToAspectRatio: random_crop_to_aspect_ratio,
    schema.SsdRandomCrop: ssd_random_crop,
    schema.SsdRandomCropPad: ssd_random_crop_pad,
    schema.SsdRandomCropFixedAspectRatio: ssd_random_crop_fixed_aspect_ratio,
    schema.SsdRandomCropPadFixedAspectRatio: ssd_random_crop_pad_fixed_aspect_ratio,
    schema.SsdIouCrop: ssd_iou_crop,
    schema.RandomSquareCropByScale: random_square_crop_by_scale,
    schema.RandomScaleCropAndPadToSquare: random_scale_crop_and_pad_to_square,
    schema.RandomPadImage: random_pad_image,
    schema.RandomAbsolutePadImage: random_absolute_pad_image,
    schema.RandomImageScale: random_image_scale,
    schema.RandomResizeMethod: random_resize_method,
    schema.ResizeImage: resize_image,
    schema.RandomDownscaleToTargetPixels: random_downscale_to_target_pixels,
    schema.RandomAdjustBrightness: random_adjust_brightness,
    schema.RandomAdjustContrast: random_adjust_contrast,
    schema.RandomAdjustHue: random_adjust_hue,
    schema.RandomAdjustSaturation: random_adjust_saturation,
    schema.RandomDistortColor: random_distort_color,
    schema.RandomPixelValueScale: random_pixel_value_scale,
    schema.RandomRgbToGray: random_rgb_to_gray,
    schema.RgbToGray: rgb_to_gray,
    schema.AdjustGamma: adjust_gamma,
    schema.NormalizeImage: normalize_image,
    schema.SubtractChannelMean: subtract_channel_mean,
    schema.RandomBlackPatches: random_black_patches,
    schema.RandomJpegQuality: random_jpeg_quality,
    schema.RandomPatchGaussian: random_patch_gaussian,
    schema.AutoAugment: auto_augment,
    schema.RandomJitterBoxes: random_jitter_boxes,
    schema.DropLabelProbabilistically: drop_label_probabilistically,
    schema.RemapLabels: remap_labels,
}
"""What is done for each class of the schema. None of them writes into its sample's arrays."""


def apply_augmentations(
    augmentations: Sequence[schema.Augmentation], sample: Sample, rng: Generator
) -> Sample:
    """Applies all augmentations in their order.

    The original casts to float32 first. Here pixels stay uint8 as long as operations only move
    them, which is the same and four times less to move.

    Args:
        augmentations: as the experiment lists them.
        sample: an image before it is resized; it is left as it is.
        rng: the only source of randomness.
    """
    for augmentation in augmentations:
        sample = OPERATIONS[type(augmentation)](sample, augmentation, rng)
    return sample

"""Every augmentation of the language with all its fields set, and its expected result."""

from stillbox.experiment import schema

_FREE = "min_aspect_ratio: 0.6 max_aspect_ratio: 1.7"
_CROP = (
    "min_object_covered: 0.2 min_area: 0.3 max_area: 0.9 overlap_thresh: 0.1 clip_boxes: false "
    "random_coef: 0.05"
)
_RATIOS = "min_padded_size_ratio: [1.1, 1.2] max_padded_size_ratio: [1.8, 1.9]"
_COLOR = "pad_color: [1, 2, 3]"

_FIXED_FIELDS = {
    "min_object_covered": 0.2,
    "min_area": 0.3,
    "max_area": 0.9,
    "overlap_thresh": 0.1,
    "clip_boxes": False,
    "random_coef": 0.05,
}
_FIELDS = {"min_aspect_ratio": 0.6, "max_aspect_ratio": 1.7, **_FIXED_FIELDS}
_PAD_FIELDS = {"min_padded_size_ratio": (1.1, 1.2), "max_padded_size_ratio": (1.8, 1.9)}
_COLOR_FIELD = {"pad_color": (1.0, 2.0, 3.0)}

CASES: dict[str, schema.Augmentation] = {
    "random_horizontal_flip { probability: 0.3 }": schema.RandomHorizontalFlip(probability=0.3),
    "random_vertical_flip { probability: 0.3 }": schema.RandomVerticalFlip(probability=0.3),
    "random_rotation90 { probability: 0.3 }": schema.RandomRotation90(probability=0.3),
    "random_self_concat_image { concat_vertical_probability: 0.2 "
    "concat_horizontal_probability: 0.3 }": schema.RandomSelfConcatImage(
        vertical_probability=0.2, horizontal_probability=0.3
    ),
    f"random_crop_image {{ {_CROP} {_FREE} }}": schema.RandomCropImage(**_FIELDS),
    f"random_crop_pad_image {{ {_CROP} {_FREE} {_RATIOS} {_COLOR} }}": schema.RandomCropPadImage(
        **_FIELDS, **_PAD_FIELDS, **_COLOR_FIELD
    ),
    "random_crop_to_aspect_ratio { aspect_ratio: 1.5 overlap_thresh: 0.4 clip_boxes: false }": (
        schema.RandomCropToAspectRatio(aspect_ratio=1.5, overlap_thresh=0.4, clip_boxes=False)
    ),
    f"ssd_random_crop {{ operations {{ {_CROP} {_FREE} }} }}": schema.SsdRandomCrop(
        operations=(schema.RandomCropImage(**_FIELDS),)
    ),
    f"ssd_random_crop_pad {{ operations {{ {_CROP} {_FREE} {_RATIOS} "
    "pad_color_r: 1 pad_color_g: 2 pad_color_b: 3 } }": schema.SsdRandomCropPad(
        operations=(schema.RandomCropPadImage(**_FIELDS, **_PAD_FIELDS, **_COLOR_FIELD),)
    ),
    f"ssd_random_crop_fixed_aspect_ratio {{ operations {{ {_CROP} }} aspect_ratio: 1.5 }}": (
        schema.SsdRandomCropFixedAspectRatio(
            operations=(schema.FixedAspectCrop(**_FIXED_FIELDS),), aspect_ratio=1.5
        )
    ),
    f"ssd_random_crop_pad_fixed_aspect_ratio {{ operations {{ {_CROP} {_FREE} }} "
    f"aspect_ratio: 1.5 {_RATIOS} }}": schema.SsdRandomCropPadFixedAspectRatio(
        operations=(schema.RandomCropImage(**_FIELDS),), aspect_ratio=1.5, **_PAD_FIELDS
    ),
    "random_square_crop_by_scale { max_border: 64 scale_min: 0.7 scale_max: 1.2 num_scales: 5 }": (
        schema.RandomSquareCropByScale(max_border=64, min_scale=0.7, max_scale=1.2, num_scales=5)
    ),
    "random_scale_crop_and_pad_to_square { output_size: 640 scale_min: 0.2 scale_max: 1.5 }": (
        schema.RandomScaleCropAndPadToSquare(output_size=640, min_scale=0.2, max_scale=1.5)
    ),
    f"random_pad_image {{ min_image_height: 10 min_image_width: 20 max_image_height: 30 "
    f"max_image_width: 40 {_COLOR} }}": schema.RandomPadImage(
        min_height=10, min_width=20, max_height=30, max_width=40, **_COLOR_FIELD
    ),
    f"random_absolute_pad_image {{ max_height_padding: 5 max_width_padding: 6 {_COLOR} }}": (
        schema.RandomAbsolutePadImage(max_height_padding=5, max_width_padding=6, **_COLOR_FIELD)
    ),
    "random_image_scale { min_scale_ratio: 0.6 max_scale_ratio: 1.4 }": schema.RandomImageScale(
        min_ratio=0.6, max_ratio=1.4
    ),
    "random_resize_method { target_height: 20 target_width: 30 }": schema.RandomResizeMethod(
        height=20, width=30
    ),
    "resize_image { new_height: 20 new_width: 30 method: AREA }": schema.ResizeImage(
        height=20, width=30, method="area"
    ),
    "random_downscale_to_target_pixels { random_coef: 0.1 min_target_pixels: 1000 "
    "max_target_pixels: 2000 }": schema.RandomDownscaleToTargetPixels(
        random_coef=0.1, min_target_pixels=1000, max_target_pixels=2000
    ),
    "random_adjust_brightness { max_delta: 0.3 }": schema.RandomAdjustBrightness(max_delta=0.3),
    "random_adjust_contrast { min_delta: 0.7 max_delta: 1.3 }": schema.RandomAdjustContrast(
        min_factor=0.7, max_factor=1.3
    ),
    "random_adjust_hue { max_delta: 0.1 }": schema.RandomAdjustHue(max_turn=0.1),
    "random_adjust_saturation { min_delta: 0.7 max_delta: 1.3 }": schema.RandomAdjustSaturation(
        min_factor=0.7, max_factor=1.3
    ),
    "random_distort_color { color_ordering: 1 }": schema.RandomDistortColor(ordering=1),
    "random_pixel_value_scale { minval: 0.8 maxval: 1.3 }": schema.RandomPixelValueScale(
        min_factor=0.8, max_factor=1.3
    ),
    "random_rgb_to_gray { probability: 0.3 }": schema.RandomRgbToGray(probability=0.3),
    "rgb_to_gray {}": schema.RgbToGray(),
    "adjust_gamma { gamma: 1.5 gain: 0.9 }": schema.AdjustGamma(gamma=1.5, gain=0.9),
    "normalize_image { original_minval: 1 original_maxval: 254 target_minval: -1 "
    "target_maxval: 2 }": schema.NormalizeImage(
        original_min=1.0, original_max=254.0, target_min=-1.0, target_max=2.0
    ),
    "subtract_channel_mean { means: [1, 2, 3] }": schema.SubtractChannelMean(means=(1.0, 2.0, 3.0)),
    "random_black_patches { max_black_patches: 3 probability: 0.3 size_to_image_ratio: 0.2 }": (
        schema.RandomBlackPatches(max_patches=3, probability=0.3, size_ratio=0.2)
    ),
    "random_jpeg_quality { random_coef: 0.1 min_jpeg_quality: 20 max_jpeg_quality: 80 }": (
        schema.RandomJpegQuality(random_coef=0.1, min_quality=20, max_quality=80)
    ),
    "random_patch_gaussian { random_coef: 0.1 min_patch_size: 5 max_patch_size: 9 "
    "min_gaussian_stddev: 0.1 max_gaussian_stddev: 0.4 }": schema.RandomPatchGaussian(
        random_coef=0.1, min_patch_size=5, max_patch_size=9, min_stddev=0.1, max_stddev=0.4
    ),
    # A policy that changes contrast: the other field shows too.
    'autoaugment_image { policy_name: "v2" }': schema.AutoAugment(policy="v2"),
    "random_jitter_boxes { ratio: 0.1 jitter_mode: SHRINK_SYMMETRIC_XY }": schema.RandomJitterBoxes(
        ratio=0.1, mode="shrink_symmetric_xy"
    ),
    "drop_label_probabilistically { label: 2 drop_probability: 0.4 }": (
        schema.DropLabelProbabilistically(label=2, probability=0.4)
    ),
    "remap_labels { original_labels: [1, 2] new_label: 3 }": schema.RemapLabels(
        original_labels=(1, 2), new_label=3
    ),
}

# What no pipeline.config can say: whole operations, and fields of those above.
BEYOND_THE_LANGUAGE: tuple[schema.Augmentation, ...] = (
    schema.SsdIouCrop(
        whole_image_probability=0.1,
        min_ious=(-0.5, 0.1, 0.3),
        min_side=0.4,
        max_side=0.8,
        max_aspect_ratio=1.5,
        candidates=2,
        max_draws=2,
        resize_to=(20, 30),
    ),
    schema.LargeScaleJitter(
        output_size=30,
        min_scale=0.5,
        max_scale=1.5,
        pad_color=(1.0, 2.0, 3.0),
        min_box_side=4.0,
        clip_boxes=False,
    ),
    schema.RandomAffine(
        max_rotation=20.0,
        min_scale=0.5,
        max_scale=1.5,
        max_shear=10.0,
        max_shift=0.2,
        output_size=(20, 30),
        pad_color=(1.0, 2.0, 3.0),
        min_box_side=4.0,
        clip_boxes=False,
    ),
    schema.CopyPaste(
        max_objects=5,
        max_covered=0.1,
        min_scale=0.5,
        max_scale=2.0,
        flip_probability=0.2,
        probability=0.9,
        skip_last_steps=4,
        min_box_side=1.0,
        clip_boxes=False,
    ),
    schema.Mosaic(
        height=20,
        width=30,
        min_center=0.4,
        max_center=1.2,
        probability=0.9,
        pad_color=(1.0, 2.0, 3.0),
        min_box_side=4.0,
        clip_boxes=False,
    ),
    schema.MixUp(
        height=20,
        width=30,
        min_scale=0.7,
        max_scale=1.5,
        flip_probability=0.4,
        probability=0.9,
        pad_color=(1.0, 2.0, 3.0),
        min_box_side=4.0,
        clip_boxes=False,
    ),
)
BEYOND_FIELDS = {"clip", "contrast"}

"""What is done to a training image before it is resized (fact sheet 1.4)."""

from stillbox.experiment.schema.augmentations.autoaugment import AutoAugment
from stillbox.experiment.schema.augmentations.colors import (
    AdjustGamma,
    NormalizeImage,
    RandomAdjustBrightness,
    RandomAdjustContrast,
    RandomAdjustHue,
    RandomAdjustSaturation,
    RandomDistortColor,
    RandomPixelValueScale,
    RandomRgbToGray,
    RgbToGray,
    SubtractChannelMean,
)
from stillbox.experiment.schema.augmentations.crops import (
    FixedAspectCrop,
    RandomCropImage,
    RandomCropPadImage,
    RandomCropToAspectRatio,
    RandomScaleCropAndPadToSquare,
    RandomSquareCropByScale,
    SsdIouCrop,
    SsdRandomCrop,
    SsdRandomCropFixedAspectRatio,
    SsdRandomCropPad,
    SsdRandomCropPadFixedAspectRatio,
)
from stillbox.experiment.schema.augmentations.disturbances import (
    RandomBlackPatches,
    RandomJpegQuality,
    RandomPatchGaussian,
)
from stillbox.experiment.schema.augmentations.geometry import (
    RandomAbsolutePadImage,
    RandomHorizontalFlip,
    RandomPadImage,
    RandomRotation90,
    RandomSelfConcatImage,
    RandomVerticalFlip,
)
from stillbox.experiment.schema.augmentations.labels import (
    DropLabelProbabilistically,
    RandomJitterBoxes,
    RemapLabels,
)
from stillbox.experiment.schema.augmentations.sizes import (
    RandomDownscaleToTargetPixels,
    RandomImageScale,
    RandomResizeMethod,
    ResizeImage,
)

Augmentation = (
    RandomHorizontalFlip
    | RandomVerticalFlip
    | RandomRotation90
    | RandomSelfConcatImage
    | RandomCropImage
    | RandomCropPadImage
    | RandomCropToAspectRatio
    | SsdRandomCrop
    | SsdRandomCropPad
    | SsdRandomCropFixedAspectRatio
    | SsdRandomCropPadFixedAspectRatio
    | SsdIouCrop
    | RandomSquareCropByScale
    | RandomScaleCropAndPadToSquare
    | RandomPadImage
    | RandomAbsolutePadImage
    | RandomImageScale
    | RandomResizeMethod
    | ResizeImage
    | RandomDownscaleToTargetPixels
    | RandomAdjustBrightness
    | RandomAdjustContrast
    | RandomAdjustHue
    | RandomAdjustSaturation
    | RandomDistortColor
    | RandomPixelValueScale
    | RandomRgbToGray
    | RgbToGray
    | AdjustGamma
    | NormalizeImage
    | SubtractChannelMean
    | RandomBlackPatches
    | RandomJpegQuality
    | RandomPatchGaussian
    | AutoAugment
    | RandomJitterBoxes
    | DropLabelProbabilistically
    | RemapLabels
)

__all__ = [
    "AdjustGamma",
    "Augmentation",
    "AutoAugment",
    "DropLabelProbabilistically",
    "FixedAspectCrop",
    "NormalizeImage",
    "RandomAbsolutePadImage",
    "RandomAdjustBrightness",
    "RandomAdjustContrast",
    "RandomAdjustHue",
    "RandomAdjustSaturation",
    "RandomBlackPatches",
    "RandomCropImage",
    "RandomCropPadImage",
    "RandomCropToAspectRatio",
    "RandomDistortColor",
    "RandomDownscaleToTargetPixels",
    "RandomHorizontalFlip",
    "RandomImageScale",
    "RandomJitterBoxes",
    "RandomJpegQuality",
    "RandomPadImage",
    "RandomPatchGaussian",
    "RandomPixelValueScale",
    "RandomResizeMethod",
    "RandomRgbToGray",
    "RandomRotation90",
    "RandomScaleCropAndPadToSquare",
    "RandomSelfConcatImage",
    "RandomSquareCropByScale",
    "RandomVerticalFlip",
    "RemapLabels",
    "ResizeImage",
    "RgbToGray",
    "SsdIouCrop",
    "SsdRandomCrop",
    "SsdRandomCropFixedAspectRatio",
    "SsdRandomCropPad",
    "SsdRandomCropPadFixedAspectRatio",
    "SubtractChannelMean",
]

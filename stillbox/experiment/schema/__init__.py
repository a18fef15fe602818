"""The schema of an experiment: frozen dataclasses with a docstring under each field.

Every dialect (pipeline.config, YAML, command line) is a reader into these values, and every later
command reads them from the model directory. A class with a `kind` is one member of a choice.
"""

from dataclasses import dataclass, field

from stillbox.experiment.schema.anchors import (
    AnchorGrid,
    Anchors,
    FlexibleGridAnchors,
    GridAnchors,
    MultiscaleAnchors,
    SsdAnchors,
)
from stillbox.experiment.schema.augmentations import (
    AdjustGamma,
    Augmentation,
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
from stillbox.experiment.schema.backbones import Backbone, MobileNetV1, MobileNetV2, ResNetV1
from stillbox.experiment.schema.data import Data, Records
from stillbox.experiment.schema.evaluation import Evaluation
from stillbox.experiment.schema.heads import ConvolutionalHead, Head, WeightSharedHead
from stillbox.experiment.schema.layers import (
    L1,
    L2,
    Activation,
    BatchNorm,
    ConvHyperparams,
    Initializer,
    RandomNormal,
    TruncatedNormal,
    VarianceScaling,
)
from stillbox.experiment.schema.losses import (
    HardExampleMiner,
    Loss,
    SigmoidFocalLoss,
    SigmoidLoss,
    SmoothL1Loss,
    SoftmaxLoss,
)
from stillbox.experiment.schema.matching import (
    ArgmaxMatcher,
    BipartiteMatcher,
    BoxCoder,
    FasterRcnnBoxCoder,
    IoaSimilarity,
    IouSimilarity,
    Matcher,
    MeanStddevBoxCoder,
    NegSqDistSimilarity,
    Similarity,
    SquareBoxCoder,
    ThresholdedIouSimilarity,
)
from stillbox.experiment.schema.model import Model, PixelNormalization
from stillbox.experiment.schema.necks import Fpn, Neck, Ppn, SsdLayers
from stillbox.experiment.schema.postprocessing import Nms, Postprocessing
from stillbox.experiment.schema.resizers import (
    ConditionalShapeResizer,
    FixedShapeResizer,
    IdentityResizer,
    KeepAspectRatioResizer,
    PadToMultipleResizer,
    Resizer,
)
from stillbox.experiment.schema.training import (
    Adam,
    ConstantSchedule,
    CosineSchedule,
    EarlyStopping,
    ExponentialSchedule,
    FineTune,
    ManualStepSchedule,
    Momentum,
    Optimizer,
    RmsProp,
    Schedule,
    ScheduleStep,
    Training,
)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything about one detector: data, model, training, evaluation."""

    name: str = "experiment"
    """A word for logs and reports."""
    data: Data = field(default_factory=Data)
    """What is read."""
    model: Model = field(default_factory=Model)
    """What is trained."""
    train: Training = field(default_factory=Training)
    """How it is trained."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """How it is scored."""


__all__ = [
    "L1",
    "L2",
    "Activation",
    "Adam",
    "AdjustGamma",
    "AnchorGrid",
    "Anchors",
    "ArgmaxMatcher",
    "Augmentation",
    "Backbone",
    "BatchNorm",
    "BipartiteMatcher",
    "BoxCoder",
    "ConditionalShapeResizer",
    "ConstantSchedule",
    "ConvHyperparams",
    "ConvolutionalHead",
    "CosineSchedule",
    "Data",
    "DropLabelProbabilistically",
    "EarlyStopping",
    "Evaluation",
    "Experiment",
    "ExponentialSchedule",
    "FasterRcnnBoxCoder",
    "FineTune",
    "FixedAspectCrop",
    "FixedShapeResizer",
    "FlexibleGridAnchors",
    "Fpn",
    "GridAnchors",
    "HardExampleMiner",
    "Head",
    "IdentityResizer",
    "Initializer",
    "IoaSimilarity",
    "IouSimilarity",
    "KeepAspectRatioResizer",
    "Loss",
    "ManualStepSchedule",
    "Matcher",
    "MeanStddevBoxCoder",
    "MobileNetV1",
    "MobileNetV2",
    "Model",
    "Momentum",
    "MultiscaleAnchors",
    "Neck",
    "NegSqDistSimilarity",
    "Nms",
    "NormalizeImage",
    "Optimizer",
    "PadToMultipleResizer",
    "PixelNormalization",
    "Postprocessing",
    "Ppn",
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
    "RandomNormal",
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
    "Records",
    "RemapLabels",
    "ResNetV1",
    "ResizeImage",
    "Resizer",
    "RgbToGray",
    "RmsProp",
    "Schedule",
    "ScheduleStep",
    "SigmoidFocalLoss",
    "SigmoidLoss",
    "Similarity",
    "SmoothL1Loss",
    "SoftmaxLoss",
    "SquareBoxCoder",
    "SsdAnchors",
    "SsdLayers",
    "SsdRandomCrop",
    "SsdRandomCropFixedAspectRatio",
    "SsdRandomCropPad",
    "SsdRandomCropPadFixedAspectRatio",
    "SubtractChannelMean",
    "ThresholdedIouSimilarity",
    "Training",
    "TruncatedNormal",
    "VarianceScaling",
    "WeightSharedHead",
]

"""The schema of an experiment: frozen dataclasses with a docstring under each field.

Every dialect (pipeline.config, YAML, command line) is a reader into these values, and every later
command reads them from the model directory. A class with a `kind` is one member of a choice.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stillbox.experiment.schema.anchors import (
    AnchorGrid,
    Anchors,
    DefaultBoxes,
    DefaultBoxMap,
    FlexibleGridAnchors,
    GridAnchors,
    MultiscaleAnchors,
    SsdAnchors,
)
from stillbox.experiment.schema.augmentations import (
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
    SsdIouCrop,
    SsdRandomCrop,
    SsdRandomCropFixedAspectRatio,
    SsdRandomCropPad,
    SsdRandomCropPadFixedAspectRatio,
    SubtractChannelMean,
)
from stillbox.experiment.schema.backbones import (
    Backbone,
    DropBlock,
    MobileNetV1,
    MobileNetV2,
    ResNet,
    ResNetV1,
)
from stillbox.experiment.schema.calibration import (
    Calibration,
    ClassCurve,
    ClassCurveCalibration,
    ClassSigmoid,
    ClassSigmoidCalibration,
    CurveCalibration,
    SigmoidCalibration,
    TemperatureCalibration,
)
from stillbox.experiment.schema.data import Data, Records
from stillbox.experiment.schema.devices import Devices
from stillbox.experiment.schema.evaluation import Evaluation
from stillbox.experiment.schema.export import Export
from stillbox.experiment.schema.heads import ConvolutionalHead, Head, WeightSharedHead
from stillbox.experiment.schema.layers import (
    L1,
    L2,
    Activation,
    BatchNorm,
    ConvHyperparams,
    Initializer,
    RandomNormal,
    Regularizer,
    TruncatedNormal,
    VarianceScaling,
)
from stillbox.experiment.schema.losses import (
    BootstrappedSigmoidLoss,
    ClassificationLoss,
    GiouLoss,
    HardExampleMiner,
    IouLoss,
    L1Loss,
    L2Loss,
    LocalizationLoss,
    Loss,
    SigmoidFocalLoss,
    SigmoidLoss,
    SmoothL1Loss,
    SoftmaxAgainstLogitsLoss,
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
from stillbox.experiment.schema.necks import (
    Fpn,
    Identity,
    NasFpn,
    NasFpnNode,
    Neck,
    Ppn,
    RetinaNetFpn,
    SsdLayers,
)
from stillbox.experiment.schema.postprocessing import (
    BoxEncodingsClip,
    Nms,
    Postprocessing,
)
from stillbox.experiment.schema.resizers import (
    ConditionalShapeResizer,
    FixedShapeResizer,
    IdentityResizer,
    KeepAspectRatioResizer,
    PadToMultipleResizer,
    Resizer,
    ScaleJitterResizer,
)
from stillbox.experiment.schema.spinenet import (
    SPINENET_MBCONV_SIZES,
    SPINENET_SIZES,
    MbConvSpineBlock,
    SpineBlock,
    SpineNet,
    SpineNetMbConv,
)
from stillbox.experiment.schema.training import (
    Adadelta,
    Adagrad,
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
    """Everything about one detector: data, model, training, evaluation, devices, export."""

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
    devices: Devices = field(default_factory=Devices)
    """How its programs are spread over the devices that there are."""
    export: Export = field(default_factory=Export)
    """What clients see of the exported model."""

    @classmethod
    def from_file(cls, config: str | Path, overrides: Sequence[str] = ()) -> "Experiment":
        """Reads an experiment of any dialect.

        Args:
            config: a recipe's name, a `pipeline.config`, a YAML file of stillbox, or a parameter
                dictionary of "Object Detection Models on TPU".
            overrides: changes of the form `field=value`, as `--set` takes them.

        Raises:
            UserError: it cannot be read, or contradicts itself.
        """
        from stillbox.experiment.resolve import resolve

        return resolve(config, overrides).experiment

    def with_changes(self, changes: Mapping[str, Any]) -> "Experiment":
        """Returns the experiment with other values, such as `{"train.batch_size": 8}`.

        Args:
            changes: dotted field -> value. A new `kind` takes that variant's defaults.

        Raises:
            UserError: an unknown field, a wrong value, or values that contradict each other.
        """
        from stillbox.experiment.resolve import with_overrides

        # JSON is YAML, which is what overrides are written in.
        texts = [f"{path}={json.dumps(value, default=str)}" for path, value in changes.items()]
        return with_overrides(self, texts)


__all__ = [
    "L1",
    "L2",
    "SPINENET_MBCONV_SIZES",
    "SPINENET_SIZES",
    "Activation",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdjustGamma",
    "AnchorGrid",
    "Anchors",
    "ArgmaxMatcher",
    "Augmentation",
    "AutoAugment",
    "Backbone",
    "BatchNorm",
    "BipartiteMatcher",
    "BootstrappedSigmoidLoss",
    "BoxCoder",
    "BoxEncodingsClip",
    "Calibration",
    "ClassCurve",
    "ClassCurveCalibration",
    "ClassSigmoid",
    "ClassSigmoidCalibration",
    "ClassificationLoss",
    "ConditionalShapeResizer",
    "ConstantSchedule",
    "ConvHyperparams",
    "ConvolutionalHead",
    "CosineSchedule",
    "CurveCalibration",
    "Data",
    "DefaultBoxMap",
    "DefaultBoxes",
    "Devices",
    "DropBlock",
    "DropLabelProbabilistically",
    "EarlyStopping",
    "Evaluation",
    "Experiment",
    "ExponentialSchedule",
    "Export",
    "FasterRcnnBoxCoder",
    "FineTune",
    "FixedAspectCrop",
    "FixedShapeResizer",
    "FlexibleGridAnchors",
    "Fpn",
    "GiouLoss",
    "GridAnchors",
    "HardExampleMiner",
    "Head",
    "Identity",
    "IdentityResizer",
    "Initializer",
    "IoaSimilarity",
    "IouLoss",
    "IouSimilarity",
    "KeepAspectRatioResizer",
    "L1Loss",
    "L2Loss",
    "LocalizationLoss",
    "Loss",
    "ManualStepSchedule",
    "Matcher",
    "MbConvSpineBlock",
    "MeanStddevBoxCoder",
    "MobileNetV1",
    "MobileNetV2",
    "Model",
    "Momentum",
    "MultiscaleAnchors",
    "NasFpn",
    "NasFpnNode",
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
    "Regularizer",
    "RemapLabels",
    "ResNet",
    "ResNetV1",
    "ResizeImage",
    "Resizer",
    "RetinaNetFpn",
    "RgbToGray",
    "RmsProp",
    "ScaleJitterResizer",
    "Schedule",
    "ScheduleStep",
    "SigmoidCalibration",
    "SigmoidFocalLoss",
    "SigmoidLoss",
    "Similarity",
    "SmoothL1Loss",
    "SoftmaxAgainstLogitsLoss",
    "SoftmaxLoss",
    "SpineBlock",
    "SpineNet",
    "SpineNetMbConv",
    "SquareBoxCoder",
    "SsdAnchors",
    "SsdIouCrop",
    "SsdLayers",
    "SsdRandomCrop",
    "SsdRandomCropFixedAspectRatio",
    "SsdRandomCropPad",
    "SsdRandomCropPadFixedAspectRatio",
    "SubtractChannelMean",
    "TemperatureCalibration",
    "ThresholdedIouSimilarity",
    "Training",
    "TruncatedNormal",
    "VarianceScaling",
    "WeightSharedHead",
]

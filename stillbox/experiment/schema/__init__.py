"""The schema of an experiment: frozen dataclasses with a docstring under each field.

Every dialect (pipeline.config, YAML, command line) is a reader into these values, and every later
command reads them from the model directory. A class with a `kind` is one member of a choice.
"""

from dataclasses import dataclass, field

from stillbox.experiment.schema.anchors import Anchors, SsdAnchors
from stillbox.experiment.schema.augmentations import (
    Augmentation,
    RandomCropImage,
    RandomHorizontalFlip,
    SsdRandomCrop,
)
from stillbox.experiment.schema.backbones import Backbone, MobileNetV1
from stillbox.experiment.schema.data import Data, Records
from stillbox.experiment.schema.evaluation import Evaluation
from stillbox.experiment.schema.heads import ConvolutionalHead, Head
from stillbox.experiment.schema.layers import (
    L1,
    L2,
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
    BoxCoder,
    FasterRcnnBoxCoder,
    Matcher,
)
from stillbox.experiment.schema.model import Model, PixelNormalization
from stillbox.experiment.schema.necks import Neck, SsdLayers
from stillbox.experiment.schema.postprocessing import Nms, Postprocessing
from stillbox.experiment.schema.resizers import (
    FixedShapeResizer,
    KeepAspectRatioResizer,
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
    "Adam",
    "Anchors",
    "ArgmaxMatcher",
    "Augmentation",
    "Backbone",
    "BatchNorm",
    "BoxCoder",
    "ConstantSchedule",
    "ConvHyperparams",
    "ConvolutionalHead",
    "CosineSchedule",
    "Data",
    "EarlyStopping",
    "Evaluation",
    "Experiment",
    "ExponentialSchedule",
    "FasterRcnnBoxCoder",
    "FineTune",
    "FixedShapeResizer",
    "HardExampleMiner",
    "Head",
    "Initializer",
    "KeepAspectRatioResizer",
    "Loss",
    "ManualStepSchedule",
    "Matcher",
    "MobileNetV1",
    "Model",
    "Momentum",
    "Neck",
    "Nms",
    "Optimizer",
    "PixelNormalization",
    "Postprocessing",
    "RandomCropImage",
    "RandomHorizontalFlip",
    "RandomNormal",
    "Records",
    "Resizer",
    "RmsProp",
    "Schedule",
    "ScheduleStep",
    "SigmoidFocalLoss",
    "SigmoidLoss",
    "SmoothL1Loss",
    "SoftmaxLoss",
    "SsdAnchors",
    "SsdLayers",
    "SsdRandomCrop",
    "Training",
    "TruncatedNormal",
    "VarianceScaling",
]

"""The schema of an experiment: frozen dataclasses with a docstring under each field.

Every dialect (pipeline.config, YAML, command line) is a reader into these values, and every later
command reads them from the model directory. A class with a `kind` is one member of a choice. This
module exports every name of its modules: others write `schema.X`, and no name is listed twice.
"""

import math
from dataclasses import dataclass, field, replace

from stillbox.experiment.schema.anchors import *
from stillbox.experiment.schema.augmentations import *
from stillbox.experiment.schema.backbones import *
from stillbox.experiment.schema.box_coders import *
from stillbox.experiment.schema.calibrations import *
from stillbox.experiment.schema.crop_augmentations import *
from stillbox.experiment.schema.data import *
from stillbox.experiment.schema.detector_losses import *
from stillbox.experiment.schema.faster_rcnn import *
from stillbox.experiment.schema.layers import *
from stillbox.experiment.schema.losses import *
from stillbox.experiment.schema.matchers import *
from stillbox.experiment.schema.model import *
from stillbox.experiment.schema.nanodet import *
from stillbox.experiment.schema.necks import *
from stillbox.experiment.schema.optimizer import *
from stillbox.experiment.schema.postprocessing import *
from stillbox.experiment.schema.ranges import *
from stillbox.experiment.schema.searched_backbones import *
from stillbox.experiment.schema.strong_augmentations import *
from stillbox.experiment.schema.training import *


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything about one detector: data, model, training, evaluation, devices, export."""

    name: str = "experiment"
    """A word for logs and reports."""
    data: Data = field(default_factory=Data)
    """What is read."""
    model: Model = field(default_factory=OneStage)
    """What is trained."""
    train: Training = field(default_factory=Training)
    """How it is trained."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """How it is scored."""
    devices: Devices = field(default_factory=Devices)
    """How its programs are spread over the devices that there are."""
    export: Export = field(default_factory=Export)
    """What clients see of the exported model."""

    @property
    def at_input_sizes(self) -> "tuple[Experiment, ...]":
        """The experiment at each of `train.input_sizes` that its resizer can have; itself if none
        is given."""
        if not self.train.input_sizes:
            return (self,)
        train = replace(self.train, input_sizes=())
        resizers = map(self.model.resizer.with_height, self.train.input_sizes)
        return tuple(
            replace(self, model=replace(self.model, resizer=resizer), train=train)
            for resizer in resizers
            if resizer is not None
        )

    @property
    def at_largest_input(self) -> "Experiment":
        """The experiment of `at_input_sizes` that takes the most memory for a step."""
        return max(self.at_input_sizes, key=lambda sized: math.prod(sized.model.network_size))

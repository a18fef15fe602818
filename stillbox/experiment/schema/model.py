"""What every detector has, whatever its architecture."""

from dataclasses import dataclass, field
from typing import Literal

from stillbox.experiment.schema.ranges import *
from stillbox.experiment.schema.resizers import *
from stillbox.experiment.variants import Variant


@dataclass(frozen=True, kw_only=True)
class Model(Variant):
    """A meta-architecture.

    Called as `(config, options)`; returns a `models.detector.Detector`.
    """

    num_classes: PositiveInt = 90
    """Foreground classes; `class_slots` says how many a label map needs."""
    class_slots: Literal["label_map_id", "contiguous"] = "label_map_id"
    """Class of the label map that class index c stands for. `label_map_id`: the one of id c + 1;
    gaps between the ids are unused slots, and `num_classes` is at least the greatest id.
    `contiguous`: the c-th in the order of the ids; `num_classes` is their number."""
    resizer: Resizer = field(default_factory=FixedShapeResizer)
    """From an image of any size to the network input."""

    @property
    def max_detections(self) -> int:
        """Most boxes that are found in one image: the K of `Detections`."""
        raise NotImplementedError

    @property
    def normalizes_per_replica(self) -> bool:
        """Whether the loss is normalised per replica (`devices.replicas`)."""
        return False

    def describe(self) -> dict[str, str]:
        """Returns the names of the parts, for reports."""
        return {"architecture": self.kind}

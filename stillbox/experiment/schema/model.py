"""What every detector has, whatever its architecture."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from stillbox.experiment.schema.anchors import *
from stillbox.experiment.schema.layers import *
from stillbox.experiment.schema.matching import *
from stillbox.experiment.schema.postprocessing import *
from stillbox.experiment.schema.ranges import *
from stillbox.experiment.schema.resizers import *
from stillbox.experiment.variants import Variant

if TYPE_CHECKING:
    from stillbox.experiment.schema.one_stage import PixelNormalization


class AnchorStage(Protocol):
    """The section of a model that assigns ground-truth boxes to anchors."""

    @property
    def anchors(self) -> Anchors:
        """The boxes that predictions are relative to."""

    @property
    def matcher(self) -> Matcher:
        """Assigns ground-truth boxes to anchors."""

    @property
    def similarity(self) -> Similarity:
        """What the matcher compares."""


@dataclass(frozen=True, kw_only=True)
class Model(Variant):
    """A meta-architecture.

    Called as `(config, options)`; returns a `models.detector.Detector`.
    """

    num_classes: Classes = 90
    """Foreground classes; `class_slots` says how many a label map needs."""
    class_slots: Literal["label_map_id", "contiguous"] = "label_map_id"
    """Class of the label map that class index c stands for. `label_map_id`: the one of id c + 1;
    gaps between the ids are unused slots, and `num_classes` is at least the greatest id.
    `contiguous`: the c-th in the order of the ids; `num_classes` is their number."""
    resizer: Resizer = field(default_factory=FixedShapeResizer)
    """From an image of any size to the network input."""

    @property
    def network_size(self) -> tuple[int, int]:
        """Height and width in pixels of what its first layer takes."""
        return self.resizer.input_size

    @property
    def max_detections(self) -> int:
        """Most boxes that are found in one image: the K of `Detections`."""
        if self.nms is None:
            raise NotImplementedError
        return self.nms.max_total

    @property
    def nms(self) -> Nms | None:
        """The suppression that ends in detections; None: the model has no such setting."""
        return None

    def with_max_detections(self, most: int) -> Self:
        """Returns the model with another `max_detections`; see `nms`."""
        raise NotImplementedError

    @property
    def normalization(self) -> "PixelNormalization | None":
        """From 0..255 to the input range of the network; None: it is not described."""
        return None

    @property
    def anchor_stage(self) -> AnchorStage | None:
        """Its anchors and their matcher; None for a model without anchors."""
        return None

    @property
    def normalizes_per_replica(self) -> bool:
        """Whether the loss is normalised per replica (`devices.replicas`)."""
        return False

    @property
    def parts(self) -> Mapping[str, Any]:
        """The configuration of each part by its name, the first word of its parameters' paths."""
        return {}

    @property
    def classifier_parts(self) -> tuple[str, ...]:
        """Parts that are in a classifier's network too, whose weights can initialise them."""
        return ("backbone",)

    @property
    def head_parts(self) -> tuple[str, ...]:
        """Parts that the weights of a detector initialise on demand alone (`load_heads`)."""
        return ("head",)

    @property
    def class_logits(self) -> int:
        """Class logits of one box, that of the background included."""
        return self.num_classes + 1

    def describe(self) -> dict[str, str]:
        """Returns the names of the parts, for reports."""
        return {"architecture": self.kind}

    def convolutions(self) -> dict[str, ConvHyperparams]:
        """Returns the hyperparameters of all parts that have any, by their path in the model."""
        return {}

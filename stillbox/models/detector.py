"""The interface of every detector, and the predictions of its head.

Training, evaluation, checking, profiling and serving use this interface alone. A
meta-architecture is a schema class (a member of `schema.Model`) and a `Detector` that implements
it:

    @implements(MyModel)
    class MyDetector(Detector): ...

called with `(config, options)`.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Float32, Int, Real

from stillbox.boxes.structures import Batch, Detections
from stillbox.models.layers.conv import ConvLayer, share_prepared_kernels
from stillbox.models.layers.hyperparams import Penalized
from stillbox.models.layers.lowering.winograd import PreparedKernels
from stillbox.models.paths import named_modules
from stillbox.models.variables import Arrays, Structure, bind_detector

Images = Real[Array, "B H W C"]


class Predictions(NamedTuple):
    """Raw predictions for B images and A anchors, in the anchors' order, always float32."""

    box_encodings: Float32[Array, "B A S"]
    """Deltas of the box coder."""
    class_logits: Float32[Array, "B A C"]
    """C counts the background, if it is a class."""


class RatedPredictions(NamedTuple):
    """`Predictions` of a head that also says how well each box fits."""

    box_encodings: Float32[Array, "B A S"]
    class_logits: Float32[Array, "B A C"]
    quality_logits: Float32[Array, "B A"]
    """Scores are multiplied by their sigmoids."""


AnyPredictions = Predictions | RatedPredictions
Kind = TypeVar("Kind", bound=AnyPredictions)


def joined_predictions(parts: Sequence[Kind]) -> Kind:
    """Returns the predictions of successive feature maps as if they were one map."""
    joined: Kind = jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), *parts)
    return joined


class Candidates(NamedTuple):
    """The boxes of B images that the last suppression chooses from, N for each."""

    boxes: Float32[Array, "B N 4"]
    """As `raw_detection_boxes` of the original."""
    scores: Float32[Array, "B N C"]
    """The background's in channel 0 if the model has that class."""


class Taught(NamedTuple):
    """What a teacher predicts for the images of a batch, and how it counts (arXiv:2102.12252)."""

    box_logits: Float32[Array, "B A S"]
    """Logits of the distributions of the boxes, in the anchors' order."""
    weight: float
    """Factor on the term of the loss."""
    temperature: float
    """Divides the logits of both."""


class LossInputs(NamedTuple):
    """The input of a detector's loss in one step, beside the detector."""

    batch: Batch
    """B images and their ground truth."""
    state: Mapping[str, Array] = MappingProxyType({})
    """State of the loss after the step before, or `Detector.initial_loss_state`."""
    step: Int[Array, ""] | int = 0
    """Steps before this one."""
    key: Array | None = None
    """For all random numbers, such as of dropout; None: there are none."""
    replicas: int = 1
    """Equal parts of the batch, for a loss that is normalised per replica."""
    taught: Taught | None = None
    """Of a teacher, only for a detector that has `box_logits` itself."""
    divisors: Mapping[str, Array] | None = None
    """`LossOutput.divisors` of the batch that these images are a part of. The terms of that batch
    are then the sums of the terms of its parts. None: these images are the batch."""


class LossOutput(NamedTuple):
    """Loss terms, metrics and state of one step."""

    terms: dict[str, Float32[Array, ""]]
    """By name, such as `classification_loss`; training minimises their sum."""
    metrics: dict[str, Float32[Array, ""]]
    """By name, reported but not minimised."""
    state: Arrays
    """The next `LossInputs.state`."""
    divisors: Mapping[str, Array] = MappingProxyType({})
    """Sums over the images of the batch that the terms are divided by, before any least value."""


class Detector(nnx.Module):
    """Maps images to losses in training, to detections otherwise.

    Parameters are `nnx.Param` and float32, moving statistics `nnx.BatchStat`; everything else is
    static and hashable. Parts are traced inside a `jax.named_scope`, by which profiles divide the
    time of a step.
    """

    feature_shapes: tuple[tuple[int, int], ...]
    """Heights and widths of the feature maps, from fine to coarse."""

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Returns the loss of a batch without `regularization`, and updates moving statistics."""
        raise NotImplementedError

    def box_logits(self, images: Images) -> Float32[Array, "B A S"]:
        """Returns the logits of the distributions of the boxes of all anchors, as in evaluation.

        Only detectors with the box coder `distribution` have them.

        Args:
            images: as for `detect`.
        """
        raise NotImplementedError

    def detect(self, images: Images, true_sizes: Int[Array, "B 2"]) -> Detections:
        """Returns the objects in images.

        Args:
            images: in 0..255, resized and padded to the network input.
            true_sizes: height and width of the image inside the network input, in pixels.

        Returns:
            Boxes normalised to the true images, unless the configuration says otherwise. A
            detector sets `finite` if its postprocessing can lose NaN or infinity.
        """
        raise NotImplementedError

    def detect_among(
        self, images: Images, true_sizes: Int[Array, "B 2"]
    ) -> tuple[Detections, Candidates | None]:
        """Returns `detect`, and the boxes that it has chosen from, for exports.

        None: the exports have detections alone.
        """
        return self.detect(images, true_sizes), None

    def initial_loss_state(self) -> Arrays:
        """Returns the state of the loss before the first step; empty for most losses."""
        return {}

    @jax.named_scope("penalty")
    def regularization(self) -> Float32[Array, ""]:
        """Returns the sum of the penalties of all layers."""
        modules = (module for _, module in named_modules(self))
        penalties = [layer.penalty() for layer in modules if isinstance(layer, Penalized)]
        return jnp.sum(jnp.stack(penalties)) if penalties else jnp.zeros(())


def name_layers(detector: Detector) -> None:
    """Sets the scope of every layer to its path inside its part."""
    for path, module in named_modules(detector):
        if isinstance(module, ConvLayer):
            module.scope = "/".join(path[1:]) or module.scope


@runtime_checkable
class DetectFunction(Protocol):
    """`Detector.detect` as a function of a detector's arrays."""

    def __call__(
        self,
        params: Arrays,
        stats: Arrays,
        images: Images,
        true_sizes: Int[Array, "B 2"],
        kernels: PreparedKernels | None = None,
    ) -> Detections:
        """Returns the objects in images.

        Args:
            params: parameters by path.
            stats: moving statistics by path.
            images: as for `Detector.detect`.
            true_sizes: as for `Detector.detect`.
            kernels: prepared kernels of convolutions, to which those that are missing are added.
        """


def detect_function(structure: Structure[Detector]) -> DetectFunction:
    """Returns the `DetectFunction` of a detector, not yet compiled.

    The arrays are arguments and not constants: evaluation during training compiles once.

    Args:
        structure: static part of the detector, from `split_detector`.
    """

    def detect(
        params: Arrays,
        stats: Arrays,
        images: Images,
        true_sizes: Int[Array, "B 2"],
        kernels: PreparedKernels | None = None,
    ) -> Detections:
        detector = bind_detector(structure, params, stats)
        if kernels is not None:
            share_prepared_kernels(detector, kernels)
        detections = detector.detect(images, true_sizes)
        if detections.finite is not None:
            return detections
        return detections._replace(finite=finite_images(detections.boxes, detections.scores))

    return detect


def finite_images(*arrays: Float[Array, "B ..."]) -> Bool[Array, "B"]:
    """Returns for each image whether all its numbers are finite."""
    flags = [jnp.isfinite(array.reshape(array.shape[0], -1)).all(axis=1) for array in arrays]
    return jnp.stack(flags).all(axis=0)

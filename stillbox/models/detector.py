"""The interface of every detector, and the predictions of its head.

Training, evaluation, checking, profiling and serving use this interface alone. A
meta-architecture is a schema class (a member of `schema.Model`) and a `Detector` that implements
it:

    @implements(MyModel)
    class MyDetector(Detector): ...

called with `(config, options)`.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from stillbox.boxes.structures import Batch, Detections
from stillbox.models.layers.conv import share_prepared_kernels
from stillbox.models.layers.lowering.winograd import PreparedKernels
from stillbox.models.variables import Arrays, bind_detector


class Predictions(NamedTuple):
    """Raw predictions for B images and A anchors, in the anchors' order, always float32."""

    box_encodings: Array
    """`[B, A, S]`, S codes of the box coder."""
    class_logits: Array
    """`[B, A, C]`, C counts the background slot, if any."""


class Candidates(NamedTuple):
    """The boxes of B images that the last suppression chooses from, N for each."""

    boxes: Array
    """`[B, N, 4]` float32, as `raw_detection_boxes` of the original."""
    scores: Array
    """`[B, N, slots]` float32, the background's in slot 0 if the model has that class."""


class LossOutput(NamedTuple):
    """Loss terms, metrics and state of one step."""

    terms: dict[str, jax.Array]
    """float32 scalars by name, such as `classification_loss`; training minimises their sum."""
    metrics: dict[str, jax.Array]
    """float32 scalars by name, reported but not minimised."""
    state: Arrays
    """The next `loss_state`."""


class Detector(nnx.Module):
    """Maps images to losses in training, to detections otherwise.

    Parameters are `nnx.Param` and float32, moving statistics `nnx.BatchStat`; everything else is
    static and hashable. Parts are traced inside a `jax.named_scope`, by which profiles divide the
    time of a step.
    """

    def loss(
        self,
        batch: Batch,
        loss_state: Arrays,
        *,
        step: jax.Array,
        key: jax.Array,
        replicas: int = 1,
    ) -> LossOutput:
        """Returns the loss of a batch without `regularization`, and updates moving statistics.

        Args:
            batch: B images and their ground truth.
            loss_state: state of the loss from the step before, or `initial_loss_state`.
            step: int32 scalar, steps before this one.
            key: for everything random, such as dropout.
            replicas: equal parts of the batch, for a loss that is normalised per replica.
        """
        raise NotImplementedError

    def detect(self, images: jax.Array, true_sizes: jax.Array) -> Detections:
        """Returns the objects in images.

        Args:
            images: `[B, H, W, 3]`, RGB in 0..255, resized and padded to the network input.
            true_sizes: `[B, 2]`, height and width of the image inside the network input, pixels.

        Returns:
            Boxes normalised to the true images, unless the configuration says otherwise. A
            detector whose postprocessing can lose NaN or infinity sets `finite`.
        """
        raise NotImplementedError

    def detect_among(
        self, images: jax.Array, true_sizes: jax.Array
    ) -> tuple[Detections, Candidates | None]:
        """Returns `detect`, and the boxes that it has chosen from, for exports.

        None: the exports have detections alone.
        """
        return self.detect(images, true_sizes), None

    def initial_loss_state(self) -> Arrays:
        """Returns the state of the loss before the first step; empty for most losses."""
        return {}

    @jax.named_scope("penalty")
    def regularization(self) -> jax.Array:
        """Returns the sum of the penalties of all layers, a float32 scalar."""
        modules = (module for _, module in nnx.iter_modules(self))
        penalties = [module.penalty() for module in modules if hasattr(module, "penalty")]
        return jnp.sum(jnp.stack(penalties)) if penalties else jnp.zeros(())


class DetectFunction(Protocol):
    """`Detector.detect` as a function of a detector's arrays."""

    def __call__(
        self,
        params: Arrays,
        stats: Arrays,
        images: jax.Array,
        true_sizes: jax.Array,
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


def detect_function(graph: Any) -> DetectFunction:  # noqa: ANN401
    """Returns the `DetectFunction` of a detector, not yet compiled.

    The arrays are arguments and not constants: evaluation during training compiles once.

    Args:
        graph: static part of the detector, from `split_detector`.
    """

    def detect(
        params: Arrays,
        stats: Arrays,
        images: jax.Array,
        true_sizes: jax.Array,
        kernels: PreparedKernels | None = None,
    ) -> Detections:
        detector: Detector = bind_detector(graph, params, stats)
        if kernels is not None:
            share_prepared_kernels(detector, kernels)
        found = detector.detect(images, true_sizes)
        if found.finite is not None:
            return found
        return found._replace(finite=finite_images(found.boxes, found.scores))

    return detect


def finite_images(*arrays: jax.Array) -> jax.Array:
    """Returns for each of B images whether all its numbers in arrays `[B, ...]` are finite."""
    flags = [jnp.isfinite(array.reshape(array.shape[0], -1)).all(axis=1) for array in arrays]
    return jnp.stack(flags).all(axis=0)

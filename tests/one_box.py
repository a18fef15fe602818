"""A detector without anchors: one box and one class for each image.

It shows that training, evaluation, prediction and checkpoints depend on the interface of a
detector alone. It is imported by `--import`, as the parts of users are.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from stillbox.boxes.structures import Detections
from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.detector import Detector, LossInputs, LossOutput
from stillbox.models.parts import BuildOptions
from stillbox.models.variables import Arrays


@dataclass(frozen=True, kw_only=True)
class OneBox(schema.Model, kind="one_box"):
    """One box and one class for each image, from its mean colours in a grid."""

    cells: schema.PositiveInt = 8
    """Rows and columns of the grid."""

    @property
    def max_detections(self) -> int:
        """One."""
        return 1


@implements(OneBox)
class OneBoxDetector(Detector):
    """A linear map from `cells * cells * 3` mean colours to a box and `num_classes` logits."""

    def __init__(self, config: OneBox, options: BuildOptions) -> None:
        inputs, outputs = 3 * config.cells**2, 4 + config.num_classes
        kernel = options.rng.normal(scale=0.01, size=(inputs, outputs))
        self.kernel = nnx.Param(jnp.asarray(kernel, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(outputs))
        self.config = config
        self.image_shape = config.resizer.input_size

    def predict(self, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps images `[B, H, W, 3]` to boxes `[B, 4]`, normalised, and logits `[B, C]`."""
        cells = self.config.cells
        with jax.named_scope("grid"):
            height, width = (side // cells for side in images.shape[1:3])
            grid = images[:, : height * cells, : width * cells].astype(jnp.float32) / 255
            means = grid.reshape(-1, cells, height, cells, width, 3).mean((2, 4))
        with jax.named_scope("linear"):
            outputs = means.reshape(len(images), -1) @ self.kernel[...] + self.bias[...]
        corners = jax.nn.sigmoid(outputs[:, :4])
        ymin, xmin, ymax, xmax = corners.T
        boxes = jnp.stack([ymin * ymax, xmin * xmax, ymax, xmax], axis=1)
        return boxes, outputs[:, 4:]

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Returns the loss of the largest ground-truth box."""
        batch = inputs.batch
        boxes, logits = self.predict(jnp.asarray(batch.images))
        truth, weights = jnp.asarray(batch.boxes), jnp.asarray(batch.weights)
        areas = (truth[..., 2:] - truth[..., :2]).prod(-1) * weights
        largest = jnp.argmax(areas, axis=1)[:, None]
        target = jnp.take_along_axis(truth, largest[..., None], axis=1)[:, 0]
        classes = jnp.take_along_axis(jnp.asarray(batch.classes), largest, axis=1)[:, 0]
        counted = jnp.asarray(batch.image_weights) * (areas.max(1) > 0)
        entropy = -jnp.take_along_axis(jax.nn.log_softmax(logits), classes[:, None], axis=1)[:, 0]
        terms = {
            "box_loss": jnp.mean(jnp.abs(boxes - target).sum(1) * counted),
            "class_loss": jnp.mean(entropy * counted),
        }
        return LossOutput(terms, {}, {name: value + 1 for name, value in inputs.state.items()})

    def detect(self, images: jax.Array, true_sizes: jax.Array) -> Detections:
        """Returns one box for each image; see `Detector.detect`."""
        boxes, logits = self.predict(images)
        ends = true_sizes / jnp.asarray(self.image_shape)
        scores = jax.nn.softmax(logits)
        count = len(images)
        return Detections(
            boxes=jnp.clip(boxes / jnp.tile(ends, (1, 2)), 0, 1)[:, None],
            scores=scores.max(1, keepdims=True),
            classes=scores.argmax(1).astype(jnp.int32)[:, None],
            count=jnp.ones(count, jnp.int32),
            anchors=jnp.zeros((count, 1), jnp.int32),
        )

    def initial_loss_state(self) -> Arrays:
        """Returns the number of batches, which the loss counts."""
        return {"batches": jnp.zeros(())}

"""The function in every artefact: from resized images to the outputs of its signature."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from stillbox.boxes.detections import Detections
from stillbox.checkpoints.trained import TrainedModel
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.settings import ExportSettings
from stillbox.models.abstract import AbstractDetector, abstract_detector
from stillbox.models.one_stage.postprocess import decode_boxes, postprocess, slot_scores
from stillbox.models.predictions import Predictions
from stillbox.models.variables import bind_detector

Outputs = dict[str, jax.Array]
Weights = Mapping[str, Any]
"""`params` and `stats`, each by path."""


@dataclass(frozen=True)
class ExportProgram:
    """A trained detector as pure functions of arrays, in float32.

    The weights are arguments, so that a writer can store them apart from the program.
    """

    model: TrainedModel
    settings: ExportSettings

    @cached_property
    def description(self) -> schema.OneStage:
        """The detector's configuration, with the settings' number of detections."""
        model = self.model.experiment.model
        if not isinstance(model, schema.OneStage):
            raise UserError(
                f"models of kind {model.kind} cannot be exported",
                where=self.model.source,
                fix="export a model of kind one_stage",
            )
        most = self.settings.max_detections
        if most is None:
            return model
        nms = replace(model.postprocessing.nms, max_total=most)
        return replace(model, postprocessing=replace(model.postprocessing, nms=nms))

    @cached_property
    def detector(self) -> AbstractDetector:
        """The detector without its arrays."""
        return abstract_detector(self.description, "float32")

    @cached_property
    def anchors(self) -> NDArray[np.float32]:
        """`[A, 4]`, normalised to the network input."""
        anchors: NDArray[np.float32] = self.detector.module().anchors
        return anchors

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width H, W of the network input, in pixels."""
        return self.description.resizer.input_size

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the artefact's input images, in pixels; None: any."""
        raw = self.settings.input_type == "raw_image_tensor"
        return self.input_size if raw else self.settings.image_size

    @cached_property
    def weights(self) -> dict[str, dict[str, NDArray[np.float32]]]:
        """`params` and `stats` by path, on the host: the first argument of the functions below."""
        arrays = {"params": self.model.params, "stats": self.model.stats}
        return {
            kind: {path: np.asarray(array) for path, array in group.items()}
            for kind, group in arrays.items()
        }

    def predictions(self, weights: Weights, images: jax.Array) -> Predictions:
        """Maps images `[B, H, W, 3]`, float32 in 0..255, to raw predictions of A anchors."""
        detector = bind_detector(self.detector.graph, weights["params"], weights["stats"])
        if self.settings.input_type == "raw_image_tensor":
            # Undone here, since the caller has normalised and the detector normalises again.
            pixels = self.description.pixels
            images = images * jnp.asarray(pixels.std) + jnp.asarray(pixels.mean)
        predictions: Predictions = detector(images, train=False)
        return predictions

    def decoded(self, predictions: Predictions) -> tuple[jax.Array, jax.Array]:
        """Returns boxes and scores before suppression.

        Returns:
            Boxes `[B, A, 4]`, normalised to the network input and not clipped, and scores
            `[B, A, slots]`, the background's in slot 0 if the model has that class.
        """
        boxes = decode_boxes(predictions.box_encodings, self.anchors, self.description)
        return boxes, slot_scores(predictions.class_logits, self.description)

    def outputs(
        self,
        weights: Weights,
        images: jax.Array,
        true_sizes: jax.Array,
        original_sizes: jax.Array,
    ) -> Outputs:
        """Maps resized images to the outputs of the signature, in its order.

        Args:
            weights: `params` and `stats`.
            images: `[B, H, W, 3]` float32 in 0..255, resized and padded to the network input.
            true_sizes: `[B, 2]` int32, height and width of the image proper inside `images`.
            original_sizes: `[B, 2]` int32, height and width before resizing.
        """
        predictions = self.predictions(weights, images)
        found = postprocess(predictions, self.anchors, true_sizes, self.description)
        if self.settings.signature == "tpu":
            return self._tpu_outputs(found, true_sizes, original_sizes)
        return self._detection_api_outputs(found, predictions)

    def class_ids(self, found: Detections) -> jax.Array:
        """Returns the label map ids `[B, K]` of detections; rows of padding have 1."""
        # Consecutive ids are an addition, which every runtime computes faster than a gather.
        ids = np.array(self.model.slots().ids, np.int32)
        if np.array_equal(ids, np.arange(1, len(ids) + 1)):
            return found.classes + 1
        return jnp.asarray(ids)[found.classes]

    def _detection_api_outputs(self, found: Detections, predictions: Predictions) -> Outputs:
        """`exporter_lib_v2.py`: everything is float32, boxes are normalised."""
        boxes, scores = self.decoded(predictions)
        rows = jnp.take_along_axis(scores, found.anchors[..., None], axis=1)
        real = jnp.arange(found.scores.shape[1])[None] < found.count[:, None]
        return {
            "detection_anchor_indices": found.anchors.astype(jnp.float32),
            "detection_boxes": found.boxes,
            "detection_classes": self.class_ids(found).astype(jnp.float32),
            "detection_multiclass_scores": jnp.where(real[..., None], rows, 0.0),
            "detection_scores": found.scores,
            "num_detections": found.count.astype(jnp.float32),
            "raw_detection_boxes": boxes,
            "raw_detection_scores": scores,
        }

    def _tpu_outputs(
        self, found: Detections, true_sizes: jax.Array, original_sizes: jax.Array
    ) -> Outputs:
        """`serving/detection.py`: boxes in pixels of the network input, counts int32."""
        settings = self.settings
        sizes = true_sizes.astype(jnp.float32)
        frame = self.description.postprocessing.nms.change_coordinate_frame
        whole = jnp.broadcast_to(jnp.asarray(self.input_size, jnp.float32), sizes.shape)
        pixels = found.boxes * jnp.tile(sizes if frame else whole, (1, 2))[:, None]
        normalized = pixels / jnp.tile(sizes, (1, 2))[:, None]
        classes = self.class_ids(found)
        outputs = {
            "num_detections": found.count.astype(
                jnp.float32 if settings.float_count else jnp.int32
            ),
            "detection_boxes": normalized if settings.normalized_coordinates else pixels,
            "detection_classes": classes.astype(jnp.float32) if settings.float_classes else classes,
            "detection_scores": found.scores,
        }
        if settings.image_info:
            original = original_sizes.astype(jnp.float32)
            info = [original, whole, sizes / original, jnp.zeros_like(sizes)]
            outputs["image_info"] = jnp.stack(info, axis=1)
        return outputs

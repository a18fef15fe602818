"""The function in every artefact: from resized images to the outputs of its signature."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from stillbox.boxes.structures import Detections
from stillbox.checkpoints.trained import TrainedModel
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.settings import ExportSettings
from stillbox.image_kind import ImageKind
from stillbox.models.build import AbstractDetector, abstract_detector
from stillbox.models.detector import Candidates, Detector
from stillbox.models.variables import bind_detector
from stillbox.references import Parameter

Outputs = dict[str, jax.Array]
WeightArrays = Mapping[str, Any]
"""`params` and `stats`, each by path."""


@dataclass(frozen=True)
class ExportProgram:
    """A trained detector as pure functions of arrays, in float32.

    The weights are arguments, so that a writer can store them apart from the program.
    """

    model: TrainedModel
    settings: ExportSettings

    @cached_property
    def description(self) -> schema.Model:
        """The detector's configuration, with the settings' number of detections.

        Raises:
            UserError: the model has none to set.
        """
        model, most = self.model.experiment.model, self.settings.max_detections
        if most is None:
            return model
        if model.nms is None:
            problem = f"a model of kind {model.kind} has its own number of detections"
            raise UserError(problem, where=Parameter("max_detections"), fix="leave it out")
        return model.with_max_detections(most)

    @cached_property
    def normalization(self) -> schema.PixelNormalization:
        """The normalisation that a caller applies to the pixels of `raw_image_tensor`.

        Raises:
            UserError: the model does not describe it.
        """
        normalization = self.description.normalization
        if normalization is None:
            problem = (
                f"a model of kind {self.description.kind} does not say how pixels are normalised"
            )
            raise UserError(
                problem,
                where=Parameter("input_type"),
                fix=f"use {Parameter('input_type')} float_image_tensor",
            )
        return normalization

    @cached_property
    def detector(self) -> AbstractDetector:
        """The detector without its arrays."""
        return abstract_detector(self.description, "float32", self.quantization)

    @property
    def quantization(self) -> schema.Quantization | None:
        """The rounding of training, which the exported program repeats."""
        return self.model.experiment.train.quantization

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width H, W of the network input, in pixels."""
        return self.description.resizer.input_size

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the network input."""
        return self.description.image_shape

    @property
    def image_kind(self) -> ImageKind:
        """Channels and bits of the images."""
        return self.description.image_kind

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

    def bind(self, weights: WeightArrays) -> Detector:
        """Returns the detector with its arrays."""
        return bind_detector(self.detector.graph, weights["params"], weights["stats"])

    def detect(
        self, weights: WeightArrays, images: jax.Array, true_sizes: jax.Array
    ) -> tuple[Detections, Candidates | None]:
        """Maps resized images to detections; see `Detector.detect_among` and `outputs`."""
        if self.settings.input_type == "raw_image_tensor":
            # The caller has normalised, and the detector normalises again: this undoes the first.
            pixels = self.normalization
            images = images * jnp.asarray(pixels.std) + jnp.asarray(pixels.mean)
        return self.bind(weights).detect_among(images, true_sizes)

    def outputs(
        self,
        weights: WeightArrays,
        images: jax.Array,
        true_sizes: jax.Array,
        original_sizes: jax.Array,
    ) -> Outputs:
        """Maps resized images to the outputs of the signature, in its order.

        Args:
            weights: `params` and `stats`.
            images: `[B, H, W, C]` float32 in 0..255, resized and padded to the network input.
            true_sizes: `[B, 2]` int32, height and width of the image proper inside `images`.
            original_sizes: `[B, 2]` int32, height and width before resizing.
        """
        detections, candidates = self.detect(weights, images, true_sizes)
        if self.settings.signature == "tpu":
            return self._tpu_outputs(detections, true_sizes, original_sizes)
        return self._detection_api_outputs(detections, candidates)

    def class_ids(self, detections: Detections) -> jax.Array:
        """Returns the label map ids `[B, K]` of detections; rows of padding have 1."""
        # Consecutive ids are an addition, which every runtime computes faster than a gather.
        ids = np.array(self.model.slots().ids, np.int32)
        if np.array_equal(ids, np.arange(1, len(ids) + 1)):
            return detections.classes + 1
        return jnp.asarray(ids)[detections.classes]

    def _detection_api_outputs(
        self, detections: Detections, candidates: Candidates | None
    ) -> Outputs:
        """`exporter_lib_v2.py`: everything is float32, boxes are normalised."""
        outputs = {
            "detection_anchor_indices": detections.anchors.astype(jnp.float32),
            "detection_boxes": detections.boxes,
            "detection_classes": self.class_ids(detections).astype(jnp.float32),
            "detection_scores": detections.scores,
            "num_detections": detections.count.astype(jnp.float32),
        }
        if candidates is not None:
            boxes, scores = candidates
            rows = jnp.take_along_axis(scores, detections.anchors[..., None], axis=1)
            real = jnp.arange(detections.scores.shape[1])[None] < detections.count[:, None]
            outputs |= {
                "detection_multiclass_scores": jnp.where(real[..., None], rows, 0.0),
                "raw_detection_boxes": boxes,
                "raw_detection_scores": scores,
            }
        return dict(sorted(outputs.items()))

    def _tpu_outputs(
        self, detections: Detections, true_sizes: jax.Array, original_sizes: jax.Array
    ) -> Outputs:
        """`serving/detection.py`: boxes in pixels of the network input, counts int32."""
        settings = self.settings
        sizes = true_sizes.astype(jnp.float32)
        nms = self.description.nms
        frame = nms is None or nms.change_coordinate_frame
        whole = jnp.broadcast_to(jnp.asarray(self.input_size, jnp.float32), sizes.shape)
        pixels = detections.boxes * jnp.tile(sizes if frame else whole, (1, 2))[:, None]
        normalized = pixels / jnp.tile(sizes, (1, 2))[:, None]
        classes = self.class_ids(detections)
        outputs = {
            "num_detections": detections.count.astype(
                jnp.float32 if settings.float_count else jnp.int32
            ),
            "detection_boxes": normalized if settings.normalized_coordinates else pixels,
            "detection_classes": classes.astype(jnp.float32) if settings.float_classes else classes,
            "detection_scores": detections.scores,
        }
        if settings.image_info:
            original = original_sizes.astype(jnp.float32)
            info = [original, whole, sizes / original, jnp.zeros_like(sizes)]
            outputs["image_info"] = jnp.stack(info, axis=1)
        return outputs

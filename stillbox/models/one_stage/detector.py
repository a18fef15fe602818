"""One-stage detectors (SSD, RetinaNet): from pixels to predictions and to detections.

Every anchor has predictions. Postprocessing converts scores, decodes boxes and runs NMS.
"""

from dataclasses import replace
from operator import mul

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Int, Int64

from stillbox.boxes.structures import AnyArray, Detections
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements
from stillbox.models.anchors import (
    anchors_per_location,
    build_anchors,
    check_number,
    prediction_order,
)
from stillbox.models.detector import (
    AnyPredictions,
    Candidates,
    Detector,
    Images,
    LossInputs,
    LossOutput,
    RatedPredictions,
    finite_images,
    name_layers,
)
from stillbox.models.layers.quantization import set_training_step
from stillbox.models.layers.stochastic import fold_key
from stillbox.models.one_stage.loss import initial_loss_state
from stillbox.models.parallel import batch_shard_map, batch_sharded
from stillbox.models.parts import BuildOptions, FeatureMap, Outputs
from stillbox.models.postprocessing import best_of_levels, convert_logits, suppress
from stillbox.models.targets import build_box_coder
from stillbox.models.variables import Arrays


def postprocess(
    predictions: AnyPredictions,
    anchors: Float[AnyArray, "A 4"],
    true_sizes: Int[Array, "B 2"],
    model: schema.OneStage,
    level_sizes: tuple[int, ...] = (),
) -> Detections:
    """Turns predictions into at most `max_total` detections an image.

    Args:
        anchors: normalised to the network input.
        true_sizes: height and width of the image inside the network input, in pixels.
        model: how.
        level_sizes: numbers of anchors of the feature maps; empty: there is one map.

    Returns:
        Boxes normalised to the true images and clipped to them, unless configured otherwise.
    """
    return postprocess_among(predictions, anchors, true_sizes, model, level_sizes)[0]


@jax.named_scope("postprocess")
def postprocess_among(
    predictions: AnyPredictions,
    anchors: Float[AnyArray, "A 4"],
    true_sizes: Int[Array, "B 2"],
    model: schema.OneStage,
    level_sizes: tuple[int, ...] = (),
) -> tuple[Detections, Candidates]:
    """Returns `postprocess`, and the boxes of all anchors that it has chosen from.

    Those are normalised to the network input and not clipped.
    """
    boxes = decode_boxes(predictions.box_encodings, anchors, model)
    scores = convert_logits(predictions.class_logits, model.postprocessing)
    nms, input_size = model.postprocessing.nms, model.resizer.input_size
    candidates = class_scores(scores, model)
    if nms.max_candidates_per_level:
        candidates = best_of_levels(candidates, level_sizes, nms)
    if isinstance(predictions, RatedPredictions):
        quality = jax.nn.sigmoid(predictions.quality_logits)[..., None]
        # The threshold is for the class scores; the products have none.
        candidates = jnp.where(candidates > nms.score_threshold, candidates * quality, 0.0)
        scores, nms = scores * quality, replace(nms, score_threshold=0.0)
    detections = suppress(boxes, candidates, true_sizes, nms, input_size)
    return detections, Candidates(boxes, scores)


def decode_boxes(
    encodings: Float32[Array, "B A S"], anchors: Float[AnyArray, "A 4"], model: schema.OneStage
) -> jax.Array:
    """Maps encodings `[B, A, code_size]` to boxes `[B, A, 4]`, normalised to the network input."""
    limits = model.postprocessing.box_encodings_clip
    if limits is not None:
        encodings = jnp.clip(encodings, limits.min, limits.max)
    coder = build_box_coder(model.box_coder, model.resizer.input_size)
    return coder.decode(encodings, jnp.asarray(anchors))


def class_scores(scores: Float[Array, "B A _"], model: schema.OneStage) -> Float[Array, "B A C"]:
    """Returns the scores without the background's."""
    return scores[..., 1:] if model.background_class else scores


Shape = tuple[int, int]

# Numbers that backbone and neck fold into the dropout key; a head folds in its map's, from 0.
_BACKBONE, _NECK = 2**16, 2**16 + 1


@implements(schema.OneStage)
class OneStageDetector(Detector):
    """Backbone, neck and head, and the anchors that their predictions are relative to.

    Raises:
        UserError: the neck taps a layer that the backbone lacks, or has more or fewer feature maps
            than the anchors are configured for; a part has no implementation.
    """

    def __init__(self, model: schema.OneStage, options: BuildOptions) -> None:
        backbone, neck, head = model.backbone, model.neck, model.head
        options = replace(options, freeze_norm=model.freeze_batch_norm)
        self.backbone = implementation_of(backbone)(backbone, neck.taps_of(backbone), options)
        self.neck = implementation_of(neck)(neck, self.backbone.channels, options)
        outputs = Outputs(
            anchors=anchors_per_location(model.anchors, len(self.neck.channels)),
            class_channels=model.class_logits,
            code_size=model.box_coder.code_size,
        )
        self.head = implementation_of(head)(head, self.neck.channels, outputs, options)
        self.model = model
        self.image_shape = model.resizer.input_size
        self.dtype = jnp.dtype(options.dtype)
        name_layers(self)
        self.feature_shapes = self._infer_feature_shapes()
        check_number(model.anchors, self.feature_shapes, where="model.anchors")
        locations = (rows * columns for rows, columns in self.feature_shapes)
        self.level_sizes = tuple(map(mul, locations, outputs.anchors))
        self.order = _static(prediction_order(model.anchors, self.feature_shapes))

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Returns the loss of a batch; see `Detector.loss`."""
        set_training_step(self, jnp.asarray(inputs.step))
        predictions = self(jnp.asarray(inputs.batch.images), train=True, dropout_key=inputs.key)
        compute = implementation_of(self.model.loss)
        output: LossOutput = compute(
            self.model.loss, self.model, predictions, self.anchors, self.level_sizes, inputs
        )
        return output

    def box_logits(self, images: Images) -> Float32[Array, "B A S"]:
        """Returns the codes of the boxes, which are logits; see `Detector.box_logits`."""
        assert isinstance(self.model.box_coder, schema.DistributionBoxCoder)
        predictions: AnyPredictions = self(images, train=False)
        return predictions.box_encodings

    def initial_loss_state(self) -> Arrays:
        """Returns the moving average of matches, if the loss is divided by one."""
        return initial_loss_state(self.model.loss)

    def detect(self, images: Images, true_sizes: Int[Array, "B 2"]) -> Detections:
        """Returns at most `model.max_detections` objects an image; see `Detector.detect`."""
        return self.detect_among(images, true_sizes)[0]

    def detect_among(
        self, images: Images, true_sizes: Int[Array, "B 2"]
    ) -> tuple[Detections, Candidates]:
        """Returns `detect`, and the decoded boxes of all anchors."""
        predictions = self(images, train=False)
        # Sorting and suppression are loops, which XLA would not divide by images.
        sharded = batch_shard_map(
            lambda raw, sizes: postprocess_among(
                raw, self.anchors, sizes, self.model, self.level_sizes
            ),
            ("batch", "batch"),
            "batch",
        )
        detections, candidates = sharded(predictions, true_sizes)
        return detections._replace(finite=finite_images(*jax.tree.leaves(predictions))), candidates

    def __call__(
        self, images: Images, *, train: bool, dropout_key: jax.Array | None = None
    ) -> AnyPredictions:
        """Predicts boxes and classes for every anchor.

        Args:
            images: RGB in 0..255, resized and padded to the network input.
            train: normalise by the batch's statistics and update the moving ones; apply dropout.
            dropout_key: needed in training by parts with dropout.

        Returns:
            float32 predictions in the order of `anchors`.
        """
        maps = self.features(images, train=train, dropout_key=dropout_key)
        with jax.named_scope("head"):
            predictions: AnyPredictions = self.head(maps, train=train, dropout_key=dropout_key)
            # XLA (jax 0.10.0) would divide the anchors like rows of images, and then computes
            # wrong gradients if the batch is divided too.
            predictions = batch_sharded(predictions)
            if self.order is None:
                return predictions
            order = np.asarray(self.order)
            ordered: AnyPredictions = jax.tree.map(lambda array: array[:, order], predictions)
            return ordered

    def features(
        self, images: Images, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[FeatureMap, ...]:
        """Maps images in 0..255 to the feature maps, from fine to coarse."""
        mean = np.asarray(self.model.pixels.mean, np.float32)
        std = np.asarray(self.model.pixels.std, np.float32)
        with jax.named_scope("pixels"):
            normalized = (images.astype(jnp.float32) - mean) / std
            padded = _pad_to_multiple(normalized.astype(self.dtype), self.model.pad_to_multiple)
        with jax.named_scope("backbone"):
            taps = self.backbone(padded, train=train, dropout_key=fold_key(dropout_key, _BACKBONE))
        with jax.named_scope("neck"):
            return self.neck(taps, train=train, dropout_key=fold_key(dropout_key, _NECK))

    @property
    def anchors(self) -> Float32[np.ndarray, "A 4"]:
        """`[ymin, xmin, ymax, xmax]`, normalised to the network input, not clipped."""
        return build_anchors(self.model.anchors, self.feature_shapes, self.image_shape)

    def _infer_feature_shapes(self) -> tuple[Shape, ...]:
        image = jax.ShapeDtypeStruct((1, *self.model.image_shape), jnp.float32)
        maps = jax.eval_shape(lambda images: self.features(images, train=False), image)
        return tuple((array.shape[1], array.shape[2]) for array in maps)


def _static(order: Int64[np.ndarray, "A"] | None) -> tuple[int, ...] | None:
    # Static attributes are hashable; an array would be taken for a variable.
    return None if order is None else tuple(order.tolist())


def _pad_to_multiple(images: FeatureMap, multiple: int) -> FeatureMap:
    """Pads with zeros at the bottom and right."""
    bottom, right = (-side % multiple for side in images.shape[1:3])
    return jnp.pad(images, ((0, 0), (0, bottom), (0, right), (0, 0)))

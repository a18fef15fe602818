"""Two-stage detectors (Faster R-CNN): proposals, then a class and a box for each of them."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from stillbox.boxes.crops import scaled_down
from stillbox.boxes.structures import Detections
from stillbox.experiment import schema
from stillbox.experiment.run_length import groups_of_crops
from stillbox.experiment.variants import implementation_of, implements
from stillbox.models.anchors import build_anchors, check_number
from stillbox.models.detector import (
    Candidates,
    Detector,
    LossInputs,
    LossOutput,
    Predictions,
    finite_images,
    name_layers,
)
from stillbox.models.layers.masking import check_stride, masked_padding
from stillbox.models.layers.stochastic import fold_key
from stillbox.models.parallel import batch_shard_map, batch_sharded
from stillbox.models.parts import BuildOptions
from stillbox.models.postprocessing import window_of
from stillbox.models.two_stage.boxes import (
    BoxPredictions,
    BoxPredictor,
    box_loss,
    detect_boxes_among,
    sample_proposals,
)
from stillbox.models.two_stage.proposals import (
    AnchorGrid,
    FramedAnchors,
    ProposalNetwork,
    anchor_grid,
    choose_proposals,
    decode_proposals,
    frame_anchors,
    proposal_loss,
)

Shape = tuple[int, int]
Maps = tuple[jax.Array, ...]

# Numbers that parts fold into the key of a step.
_BACKBONE, _NECK, _ANCHORS, _PROPOSALS, _PREDICTOR = range(5)
# The entry of the divisors.
_IMAGES = "images"


@implements(schema.FasterRcnn)
class FasterRcnnDetector(Detector):
    """Backbone, neck, proposal network, and the second stage's head and predictor.

    Raises:
        UserError: the neck taps a layer that the backbone lacks, or has more or fewer feature maps
            than the anchors are configured for, or maps of other strides than powers of two; a
            part has no implementation.
    """

    def __init__(self, model: schema.FasterRcnn, options: BuildOptions) -> None:
        options = replace(options, freeze_norm=model.freeze_batch_norm)
        taps = model.neck.taps_of(model.backbone)
        self.backbone = implementation_of(model.backbone)(model.backbone, taps, options)
        self.neck = implementation_of(model.neck)(model.neck, self.backbone.channels, options)
        self.proposals = ProposalNetwork(model.proposals, self.neck.channels, options)
        if model.boxes is not None:
            stage = groups_of_crops(model.boxes, model.training_crops)
            head, size = stage.head, stage.crop.output_size
            self.box_head = implementation_of(head)(head, self.neck.channels[0], size, options)
            self.box_predictor = BoxPredictor(
                stage, self.box_head.channels, model.num_classes, options
            )
        self.model = model
        self.image_shape = model.resizer.input_size
        self.dtype = jnp.dtype(options.dtype)
        name_layers(self)
        self.feature_shapes = self._infer_feature_shapes()
        for shape in self.feature_shapes:
            check_stride(shape, self.image_shape)
        where = "model.proposals.anchors"
        check_number(model.proposals.anchors, self.feature_shapes, where=where)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Returns the losses of both stages; see `Detector.loss`."""
        batch, key, state, divisors = inputs.batch, inputs.key, dict(inputs.state), inputs.divisors
        assert inputs.taught is None and key is not None
        model, sizes = self.model, jnp.asarray(batch.true_sizes)
        pixels = jnp.tile(jnp.asarray(self.image_shape, jnp.float32), 2)
        batch = batch._replace(boxes=batch.boxes * pixels)
        sums = {_IMAGES: batch.image_count}
        count = (sums if divisors is None else divisors)[_IMAGES]
        images = jnp.asarray(batch.images)
        maps = self.features(images, sizes, train=True, dropout_key=key)
        predictions = self.predict_proposals(maps, sizes, train=True)
        anchors = self.frame_anchors(sizes, clip=model.proposals.clip_anchors)
        with jax.named_scope("losses"):
            first = proposal_loss(
                predictions,
                batch,
                anchors,
                jax.random.uniform(jax.random.fold_in(key, _ANCHORS), anchors.usable.shape),
                model.proposals,
                count,
            )
        terms = {
            "objectness_loss": first.classification,
            "proposal_localization_loss": first.localization,
        }
        metrics = {"sampled_anchors": first.positives}
        if model.boxes is None:
            return LossOutput(terms, metrics, state, sums)
        proposals = self.choose_proposals(predictions, anchors, sizes)
        with jax.named_scope("losses"):
            chance = jax.random.fold_in(key, _PROPOSALS)
            priorities = jax.random.uniform(chance, proposals.scores.shape)
            sample = sample_proposals(proposals, batch, priorities, model)
        boxes = self.predict_boxes(maps, sample.boxes, sizes, train=True, dropout_key=key)
        with jax.named_scope("losses"):
            second = box_loss(boxes, sample, batch, model, count)
        terms |= {
            "classification_loss": second.classification,
            "localization_loss": second.localization,
        }
        metrics |= {"sampled_proposals": second.positives}
        return LossOutput(terms, metrics, state, sums)

    def detect(self, images: jax.Array, true_sizes: jax.Array) -> Detections:
        """Returns at most `model.max_detections` objects an image; see `Detector.detect`."""
        return self.detect_among(images, true_sizes)[0]

    def detect_among(
        self, images: jax.Array, true_sizes: jax.Array
    ) -> tuple[Detections, Candidates]:
        """Returns `detect`, and the boxes of the last stage, normalised to the true images."""
        maps = self.features(images, true_sizes, train=False)
        predictions = self.predict_proposals(maps, true_sizes, train=False)
        anchors = self.frame_anchors(true_sizes, clip=True)
        proposals = self.choose_proposals(predictions, anchors, true_sizes)
        if self.model.boxes is None:
            sizes = jnp.tile(true_sizes.astype(jnp.float32), 2)[:, None]
            candidates = decode_proposals(predictions, anchors, self.model.proposals)
            finite = finite_images(*predictions)
            normalized = proposals._replace(boxes=proposals.boxes / sizes, finite=finite)
            return normalized, candidates._replace(boxes=candidates.boxes / sizes)
        boxes = self.predict_boxes(maps, proposals.boxes, true_sizes, train=False)
        with jax.named_scope("postprocess"):
            # Sorting and suppression are loops, which XLA would not divide by images.
            sharded = batch_shard_map(
                lambda raw, chosen, sizes: detect_boxes_among(raw, chosen, sizes, self.model),
                ("batch",) * 3,
                "batch",
            )
            detections, candidates = sharded(boxes, proposals, true_sizes)
        finite = finite_images(*predictions, *boxes)
        return detections._replace(finite=finite), candidates

    def features(
        self,
        images: jax.Array,
        true_sizes: jax.Array,
        *,
        train: bool,
        dropout_key: jax.Array | None = None,
    ) -> Maps:
        """Maps images `[B, H, W, C]` in 0..255 to the feature maps, from fine to coarse."""
        mean = np.asarray(self.model.pixels.mean, np.float32)
        std = np.asarray(self.model.pixels.std, np.float32)
        with jax.named_scope("pixels"):
            x = ((jnp.asarray(images, jnp.float32) - mean) / std).astype(self.dtype)
        with jax.named_scope("backbone"), self._masked(true_sizes):
            taps = self.backbone(x, train=train, dropout_key=fold_key(dropout_key, _BACKBONE))
        with jax.named_scope("neck"), self._masked(true_sizes):
            maps: Maps = self.neck(taps, train=train, dropout_key=fold_key(dropout_key, _NECK))
            return maps

    def predict_proposals(self, maps: Maps, true_sizes: jax.Array, *, train: bool) -> Predictions:
        """Returns the raw predictions of the first stage for all anchors."""
        with jax.named_scope("proposals"), self._masked(true_sizes):
            return batch_sharded(self.proposals(maps, train=train))

    def choose_proposals(
        self, predictions: Predictions, anchors: FramedAnchors, true_sizes: jax.Array
    ) -> Detections:
        """Returns at most `max_proposals` boxes an image, in pixels of the network input."""
        config = self.model.proposals
        with jax.named_scope("proposals"):
            sharded = batch_shard_map(
                lambda raw, framed, windows: choose_proposals(raw, framed, windows, config),
                ("batch",) * 3,
                "batch",
            )
            chosen: Detections = sharded(
                predictions, anchors, window_of(true_sizes.astype(jnp.float32))
            )
            return chosen

    def predict_boxes(
        self,
        maps: Maps,
        boxes: jax.Array,
        true_sizes: jax.Array,
        *,
        train: bool,
        dropout_key: jax.Array | None = None,
    ) -> BoxPredictions:
        """Returns the raw predictions of the second stage.

        Boxes `[B, P, 4]` are in pixels of the network input, and have no gradient.
        """
        stage = self.model.boxes
        assert stage is not None
        sizes = self._sizes(true_sizes)
        count = boxes.shape[1]
        with jax.named_scope("crops"):
            framed = scaled_down(jax.lax.stop_gradient(boxes), jnp.tile(sizes, 2)[:, None])
            crop = implementation_of(stage.crop)
            cropped = crop(stage.crop, maps, framed, sizes, self.image_shape)
            flat = cropped.reshape(-1, *cropped.shape[2:])
        with jax.named_scope("box_head"):
            features = self.box_head(flat, train=train)
            codes, logits = self.box_predictor(
                features, train=train, dropout_key=fold_key(dropout_key, _PREDICTOR)
            )
        return BoxPredictions(*(x.reshape(-1, count, *x.shape[1:]) for x in (codes, logits)))

    def frame_anchors(self, true_sizes: jax.Array, *, clip: bool) -> FramedAnchors:
        """Returns the anchors of each image; see `proposals.frame_anchors`."""
        return frame_anchors(self.anchor_grid, self._sizes(true_sizes), self.image_shape, clip=clip)

    @property
    def anchors(self) -> NDArray[np.float32]:
        """`[A, 4]`, `[ymin, xmin, ymax, xmax]`, normalised to the network input, not clipped."""
        return build_anchors(self.model.proposals.anchors, self.feature_shapes, self.image_shape)

    @property
    def anchor_grid(self) -> AnchorGrid:
        """The anchors of the whole network input."""
        return anchor_grid(self.model.proposals.anchors, self.feature_shapes, self.image_shape)

    def _masked(self, true_sizes: jax.Array) -> AbstractContextManager[None]:
        """Lets layers ignore the padding of images, if the configuration says so."""
        if self.model.mask_padding:
            return masked_padding(true_sizes, self.image_shape)
        return nullcontext()

    def _sizes(self, true_sizes: jax.Array) -> jax.Array:
        """Returns height and width `[B, 2]` of what counts of each network input."""
        if self.model.mask_padding:
            return true_sizes
        return jnp.broadcast_to(jnp.asarray(self.image_shape, jnp.int32), true_sizes.shape)

    def _infer_feature_shapes(self) -> tuple[Shape, ...]:
        image = jax.ShapeDtypeStruct((1, *self.model.image_shape), jnp.float32)
        size = jax.ShapeDtypeStruct((1, 2), jnp.int32)
        maps = jax.eval_shape(lambda *arrays: self.features(*arrays, train=False), image, size)
        return tuple((array.shape[1], array.shape[2]) for array in maps)

"""The second stage: crops of the proposals, then a class and a refined box (arXiv:1504.08083).

On CPUs samples of a crop are gathered; elsewhere maps are multiplied by matrices of weights.
Measured on two cores for a map of 40 x 40 x 1024 and 64 boxes of 14 x 14 samples, gathering takes
2 ms and its gradient 69, the products 123 and 162, and 294 MB. The gradient of gathering adds to
single cells, which is slow on TPUs and has no fixed order on GPUs. A pyramid is gathered from one
array of all levels. It is multiplied level by level: the bands of one level at a time are in
memory.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Float32, Int, Int32, Real

from stillbox.boxes.crops import (
    Samples,
    cell_samples,
    edge_samples,
    gathered,
    multiplied,
    pyramid_level,
)
from stillbox.boxes.geometry import extents_on_map, stride_of
from stillbox.boxes.matchers import Targets
from stillbox.boxes.sampling import balanced_sample, select_rows
from stillbox.boxes.structures import Batch, Detections
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements
from stillbox.models.detector import Candidates
from stillbox.models.layers import Dense
from stillbox.models.layers.lowering.pooling import max_pool
from stillbox.models.layers.lowering.primitives import per_platform
from stillbox.models.layers.stochastic import dropout, fold_key
from stillbox.models.parts import BuildOptions, Part
from stillbox.models.postprocessing import convert_logits, suppress
from stillbox.models.targets import (
    build_box_coder,
    mask_of_hard_examples,
    targets_of_batch,
)
from stillbox.models.two_stage.proposals import PIXEL, StageLoss

Shape = tuple[int, int]


@implements(schema.CropAndResize)
def crop_and_resize(
    config: schema.CropAndResize,
    maps: Sequence[Float[Array, "B _ _ C"]],
    boxes: Float32[Array, "B P 4"],
    windows: Int[Array, "B 2"],
    input_size: Shape,
) -> Float[Array, "B P S S C"]:
    """Returns pooled bilinear samples; see `schema.RoiCrop`."""
    place = partial(edge_samples, size=config.size, outside=config.outside)
    levels = _levels(boxes, windows, len(maps))
    extents = _of_level(_extents(maps, windows, input_size), levels)
    crops = _crops(maps, levels, jax.vmap(place)(boxes, extents))
    images, count, *shape = crops.shape
    pooled = max_pool(
        crops.reshape(-1, *shape), config.pool_size, config.pool_stride, padding="valid"
    )
    return pooled.reshape(images, count, *pooled.shape[1:])


@implements(schema.RoiAlign)
def roi_align(
    config: schema.RoiAlign,
    maps: Sequence[Float[Array, "B _ _ C"]],
    boxes: Float32[Array, "B P 4"],
    windows: Int[Array, "B 2"],
    input_size: Shape,
) -> Float[Array, "B P S S C"]:
    """Returns means of bilinear samples; see `schema.RoiCrop`."""
    place = partial(cell_samples, size=config.size, samples=config.samples)
    levels = _levels(boxes, windows, len(maps))
    extents = _of_level(_extents(maps, windows, input_size), levels)
    in_cells = _of_level(_windows_in_cells(maps, windows, input_size), levels)
    return _crops(maps, levels, jax.vmap(place)(boxes, extents, in_cells))


def _levels(
    boxes: Float32[Array, "B P 4"], windows: Int[Array, "B 2"], count: int
) -> Int32[Array, "B P"]:
    """Returns the index of the level of each box."""
    return jax.vmap(partial(pyramid_level, levels=count))(boxes, windows)


def _of_level(sizes: Real[Array, "B L 2"], levels: Int32[Array, "B P"]) -> Real[Array, "B P 2"]:
    """Returns the sizes of each box's level."""
    return jnp.take_along_axis(sizes, levels[..., None], axis=1)


def _extents(
    maps: Sequence[Array], windows: Int[Array, "B 2"], input_size: Shape
) -> Int32[Array, "B L 2"]:
    """Returns rows and columns of the maps that the windows fill."""
    return jnp.stack(
        [extents_on_map(windows, _sides(features), input_size) for features in maps], axis=1
    )


def _windows_in_cells(
    maps: Sequence[Array], windows: Int[Array, "B 2"], input_size: Shape
) -> Float32[Array, "B L 2"]:
    """Returns heights and widths of the windows divided by the maps' strides."""
    strides = [
        [stride_of(*sides) for sides in zip(_sides(features), input_size, strict=True)]
        for features in maps
    ]
    return windows[:, None] / jnp.asarray(strides, jnp.float32)


def _sides(features: Float[Array, "B H W C"]) -> Shape:
    return features.shape[1], features.shape[2]


def _crops(
    maps: Sequence[Float[Array, "B _ _ C"]], levels: Int32[Array, "B P"], samples: Samples
) -> Float[Array, "B P S S C"]:
    """Computes the samples of a batch."""

    def batch_of(
        compute: Callable[[Sequence[jax.Array], jax.Array, Samples], jax.Array],
    ) -> Callable[..., jax.Array]:
        return jax.vmap(lambda levels, samples, *maps: compute(maps, levels, samples))

    gather = batch_of(gathered)
    return per_platform(
        levels, samples, *maps, cpu=gather, default=batch_of(multiplied), plain=gather
    )


class Sample(NamedTuple):
    """S proposals of each of B images, that the second stage is trained with."""

    boxes: Float32[Array, "B S 4"]
    """In pixels of the network input."""
    valid: Bool[Array, "B S"]
    """False for places that no proposal fills."""
    targets: Targets
    """The targets of the boxes."""


class BoxPredictions(NamedTuple):
    """Raw predictions for P boxes of B images."""

    box_encodings: Float32[Array, "B P Q S"]
    """Q is 1 for boxes that classes share, else the number of classes."""
    class_logits: Float32[Array, "B P C"]
    """Channel 0 is the background."""


class BoxPredictor(Part):
    """Two fully connected layers, `box` and `class_`."""

    def __init__(
        self, config: schema.RoIHead, inputs: int, num_classes: int, options: BuildOptions
    ) -> None:
        layers = options.layer_arguments()
        self.code_size = config.box_coder.code_size
        self.boxes = 1 if config.share_boxes else num_classes
        self.box = Dense(inputs, self.boxes * self.code_size, config.predictor, **layers)
        self.class_ = Dense(inputs, 1 + num_classes, config.predictor, **layers)
        self.keep = config.dropout_keep_probability if config.dropout else None

    def __call__(
        self, features: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Maps features `[N, D]` to deltas `[N, Q, S]` and logits `[N, 1 + C]`, float32."""
        box_input = class_input = features
        if train and self.keep is not None:
            box_input = dropout(features, self.keep, fold_key(dropout_key, 0))
            class_input = dropout(features, self.keep, fold_key(dropout_key, 1))
        deltas = self.box(box_input, train=train).astype(jnp.float32)
        logits = self.class_(class_input, train=train).astype(jnp.float32)
        return deltas.reshape(features.shape[0], self.boxes, self.code_size), logits


def sample_proposals(
    proposals: Detections,
    batch: Batch,
    priorities: Float32[Array, "B P"],
    model: schema.FasterRcnn,
) -> Sample:
    """Returns the proposals that training uses, with their targets.

    The ground truth is in pixels of the network input. Priorities are random; proposals of high
    priority are sampled. The model has a second stage.
    """
    config = model.boxes
    assert config is not None
    targets = targets_of_batch(
        batch,
        proposals.boxes,
        matcher=config.matcher,
        similarity=config.similarity,
        box_coder=config.box_coder,
        input_size=PIXEL,
        num_classes=model.num_classes,
        background_class=True,
        encode_background_as_zeros=False,
        negative_class_weight=1.0,
    )
    exists = jnp.arange(proposals.boxes.shape[1]) < proposals.count[:, None]
    if config.hard_example_miner is not None:
        return Sample(proposals.boxes, exists, targets)
    size = config.sample_size
    sampled = balanced_sample(
        priorities,
        exists & (targets.class_weights > 0),
        targets.matches >= 0,
        size=size,
        positive_fraction=config.positive_fraction,
    )
    rows, valid = select_rows(sampled, size)

    def select(array: jax.Array) -> jax.Array:
        return jax.vmap(lambda values, places: values[places])(array, rows)

    return Sample(select(proposals.boxes), valid, Targets(*map(select, targets)))


def box_loss(
    predictions: BoxPredictions,
    sample: Sample,
    batch: Batch,
    model: schema.FasterRcnn,
    images: Float32[Array, ""] | None = None,
) -> StageLoss:
    """Returns the loss of the sampled proposals; each image counts alike.

    `images` is the number that it is divided by; None: the number of the batch.
    """
    config, targets = model.boxes, sample.targets
    assert config is not None
    valid = sample.valid.astype(jnp.float32)
    deltas = _deltas_of_class(predictions.box_encodings, targets.class_targets)
    coder = build_box_coder(config.box_coder, PIXEL)

    def decode(deltas: jax.Array) -> jax.Array:
        return coder.decode(deltas, sample.boxes)

    classification = implementation_of(config.classification)(
        config.classification,
        predictions.class_logits,
        targets.class_targets,
        targets.class_weights * valid,
    )
    localization = implementation_of(config.localization)(
        config.localization,
        deltas,
        targets.box_targets,
        targets.box_weights * valid,
        decode=decode,
        skip_zeros=False,
    )
    if config.hard_example_miner is not None:
        kept = mask_of_hard_examples(
            config, classification, localization, decode(deltas), targets.matches
        )
        classification, localization = classification * kept, localization * kept
    images = jnp.maximum(batch.image_count if images is None else images, 1.0)
    counts = jnp.maximum(valid.sum(axis=1, keepdims=True), 1.0)
    return StageLoss(
        classification=config.classification_weight * jnp.sum(classification / counts) / images,
        localization=config.localization_weight * jnp.sum(localization / counts) / images,
        positives=jnp.sum(valid * (targets.box_weights > 0)),
    )


def _deltas_of_class(
    deltas: Float32[Array, "B S Q 4"], class_targets: Float32[Array, "B S C"]
) -> Float32[Array, "B S 4"]:
    """Returns the deltas of the target class.

    Boxes without a target have the deltas of class 0, and no loss.
    """
    if deltas.shape[2] == 1:
        return deltas[:, :, 0]
    classes = jnp.argmax(class_targets[..., 1:], axis=-1)
    return jnp.take_along_axis(deltas, classes[..., None, None], axis=2)[:, :, 0]


def detect_boxes_among(
    predictions: BoxPredictions,
    proposals: Detections,
    true_sizes: Int[Array, "B 2"],
    model: schema.FasterRcnn,
) -> tuple[Detections, Candidates]:
    """Returns at most `max_total` detections an image, and the boxes of all proposals.

    The latter are normalised to the true images and clipped to them, each of its best class.
    The `anchors` of detections are the numbers of proposals. `true_sizes` are heights and widths of
    the images inside the network input, in pixels.
    """
    config = model.boxes
    assert config is not None
    deltas, limits = predictions.box_encodings, config.postprocessing.box_encodings_clip
    if limits is not None:
        deltas = jnp.clip(deltas, limits.min, limits.max)
    coder = build_box_coder(config.box_coder, PIXEL)
    boxes = coder.decode(deltas, proposals.boxes[:, :, None])
    scores = convert_logits(predictions.class_logits, config.postprocessing)
    exists = jnp.arange(boxes.shape[1]) < proposals.count[:, None]
    existing = jnp.where(exists[..., None], scores[..., 1:], -jnp.inf)
    shared = boxes[:, :, 0] if config.share_boxes else boxes
    nms, size = config.postprocessing.nms, model.resizer.input_size
    detections = suppress(shared, existing, true_sizes, nms, size, in_pixels=True)
    return detections, Candidates(_best_boxes(boxes, scores, true_sizes), scores)


def _best_boxes(
    boxes: Float32[Array, "B P Q 4"], scores: Float32[Array, "B P C"], true_sizes: Int[Array, "B 2"]
) -> Float32[Array, "B P 4"]:
    """Returns the box of the best class of each proposal, clipped to 0..1.

    As `raw_detection_boxes` of `object_detection/meta_architectures/faster_rcnn_meta_arch.py`.
    """
    if boxes.shape[2] == 1:
        best = boxes[:, :, 0]
    else:
        classes = jnp.argmax(scores[..., 1:], axis=-1)
        best = jnp.take_along_axis(boxes, classes[..., None, None], axis=2)[:, :, 0]
    return jnp.clip(best / jnp.tile(true_sizes.astype(jnp.float32), 2)[:, None], 0.0, 1.0)

"""The first stage: a region proposal network, its proposals and its loss (arXiv:1506.01497).

A two-stage detector sees a part of each network input, and the anchors inside it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32

from stillbox.boxes.geometry import clip_to_window, extents_on_map
from stillbox.boxes.losses import smooth_l1_loss, softmax_loss
from stillbox.boxes.nms import batched_nms
from stillbox.boxes.nms_prefix import SearchLimits
from stillbox.boxes.sampling import balanced_sample
from stillbox.boxes.structures import Batch, Detections
from stillbox.experiment import schema
from stillbox.models.anchors import anchors_per_location, build_pixel_anchors
from stillbox.models.detector import Candidates, Predictions, joined_predictions
from stillbox.models.layers import Conv2d
from stillbox.models.parts import BuildOptions, Part, common_channels
from stillbox.models.paths import Named
from stillbox.models.postprocessing import window_of
from stillbox.models.rematerialization import rematerialized
from stillbox.models.targets import build_box_coder, targets_of_batch

Shape = tuple[int, int]


class AnchorGrid(NamedTuple):
    """The anchors of all feature maps of one network input, A in all."""

    boxes: Float32[np.ndarray, "A 4"]
    """In pixels of the network input, not clipped."""
    rows: Int32[np.ndarray, "A"]
    """The row of the map that the anchor belongs to."""
    columns: Int32[np.ndarray, "A"]
    maps: Int32[np.ndarray, "A"]
    """The number of the map."""
    shapes: tuple[Shape, ...]
    """Heights and widths of the maps."""


class FramedAnchors(NamedTuple):
    """The anchors of B images."""

    boxes: Float32[Array, "B A 4"]
    """In pixels of the network input, clipped if the configuration says so."""
    usable: Bool[Array, "B A"]
    """False for anchors that do not exist for an image of this size."""


def anchor_grid(config: schema.Anchors, shapes: tuple[Shape, ...], input_size: Shape) -> AnchorGrid:
    """Returns the anchors of feature maps of `shapes`, location by location."""
    counts = anchors_per_location(config, len(shapes))
    cells = [
        np.repeat(np.indices(shape, np.int32).reshape(2, -1), count, axis=1)
        for shape, count in zip(shapes, counts, strict=True)
    ]
    rows, columns = np.concatenate(cells, axis=1)
    maps = np.repeat(np.arange(len(shapes), dtype=np.int32), [cell.shape[1] for cell in cells])
    return AnchorGrid(build_pixel_anchors(config, shapes, input_size), rows, columns, maps, shapes)


def frame_anchors(
    grid: AnchorGrid, sizes: Int[Array, "B 2"], input_size: Shape, *, clip: bool
) -> FramedAnchors:
    """Returns the anchors of images of `sizes`, heights and widths in pixels.

    Args:
        grid: the anchors of the whole network input.
        sizes: of the part of each network input that counts.
        input_size: height and width of the network input, in pixels.
        clip: clip anchors to that part. False: those that are not wholly inside are not usable,
            as in the original's training without `clip_anchors_to_image`.
    """
    windows = window_of(sizes.astype(jnp.float32))[:, None]
    extents = [extents_on_map(sizes, shape, input_size) for shape in grid.shapes]
    ends = jnp.stack(extents, axis=1)[:, grid.maps]  # [B, A, 2]
    rows, columns = jnp.asarray(grid.rows), jnp.asarray(grid.columns)
    exists = (rows < ends[..., 0]) & (columns < ends[..., 1])
    boxes = jnp.broadcast_to(grid.boxes, (sizes.shape[0], *grid.boxes.shape))
    if clip:
        return FramedAnchors(clip_to_window(boxes, windows), exists)
    inside = jnp.all(boxes[..., :2] >= windows[..., :2], axis=-1)
    inside &= jnp.all(boxes[..., 2:] <= windows[..., 2:], axis=-1)
    return FramedAnchors(boxes, exists & inside)


PIXEL = 1, 1
"""The unit of boxes, as the input size that they are relative to."""

# Channel 0 of the two is the background.
_CLASS_CHANNELS = 2


class StageLoss(NamedTuple):
    """The loss of one stage, weighted and normalised."""

    classification: Float32[Array, ""]
    localization: Float32[Array, ""]
    positives: Float32[Array, ""]
    """Sampled boxes of the batch that are assigned to a ground-truth box; not minimised."""


class ProposalNetwork(Part):
    """`conv` on every map, then `box_{n}` and `class_{n}` on map n, from 0, fine to coarse.

    Raises:
        UserError: feature maps differ in their channels.
    """

    def __init__(self, config: schema.RPN, inputs: tuple[int, ...], options: BuildOptions) -> None:
        fix = "take a pyramid, such as fpn, or a single level"
        channels = common_channels(inputs, "a proposal network has one convolution", fix)
        layers = options.layer_arguments()
        self.conv = Conv2d(
            channels,
            config.depth,
            config.kernel_size,
            1,
            config.conv,
            dilation=config.dilation,
            **layers,
        )
        self.code_size = config.box_coder.code_size
        plain = config.conv.without_norm()
        boxes, classes = {}, {}
        for number, anchors in enumerate(anchors_per_location(config.anchors, len(inputs))):
            boxes[number] = Conv2d(config.depth, anchors * self.code_size, 1, 1, plain, **layers)
            channels = anchors * _CLASS_CHANNELS
            classes[number] = Conv2d(config.depth, channels, 1, 1, plain, **layers)
        self.boxes, self.classes = Named("box_{}", boxes), Named("class_{}", classes)

    @rematerialized
    def __call__(self, maps: tuple[jax.Array, ...], *, train: bool) -> Predictions:
        """Predicts for all anchors of all maps `[B, H, W, C]`; two logits for each anchor."""
        parts = []
        for number, features in enumerate(maps):
            x = self.conv(features, train=train)
            deltas = self.boxes[number](x, train=train)
            scores = self.classes[number](x, train=train)
            batch = x.shape[0]
            deltas = deltas.reshape(batch, -1, self.code_size)
            parts.append(Predictions(deltas, scores.reshape(batch, -1, _CLASS_CHANNELS)))
        return joined_predictions(parts)


def choose_proposals(
    predictions: Predictions,
    anchors: FramedAnchors,
    windows: Float32[Array, "B 4"],
    config: schema.RPN,
) -> Detections:
    """Returns at most `max_proposals` boxes an image, best first, without a gradient.
    Boxes are in pixels of the network input and clipped to `windows`, the true images.
    """
    boxes, scores = decode_proposals(jax.lax.stop_gradient(predictions), anchors, config)
    limits = SearchLimits(
        score_threshold=config.score_threshold,
        iou_threshold=config.iou_threshold,
        max_per_class=config.max_proposals,
        max_total=config.max_proposals,
        drop_at_threshold=config.drop_at_threshold,
    )
    return batched_nms(
        boxes,
        jnp.where(anchors.usable[..., None], scores[..., 1:], -jnp.inf),
        limits,
        clip_window=windows,
        keep_empty=config.keep_outside or None,
    )


def decode_proposals(
    predictions: Predictions, anchors: FramedAnchors, config: schema.RPN
) -> Candidates:
    """Returns the boxes of all anchors, in pixels of the network input and not clipped."""
    coder = build_box_coder(config.box_coder, PIXEL)
    boxes = coder.decode(predictions.box_encodings, anchors.boxes)
    return Candidates(boxes, jax.nn.softmax(predictions.class_logits))


def proposal_loss(
    predictions: Predictions,
    batch: Batch,
    anchors: FramedAnchors,
    priorities: Float32[Array, "B A"],
    config: schema.RPN,
    images: Float32[Array, ""] | None = None,
) -> StageLoss:
    """Returns the loss of a sample of the anchors.

    The ground truth is in pixels of the network input. Priorities are random; anchors of high
    priority are sampled. `images` is the number that the loss is divided by; None: the number
    of the batch.
    """
    # Without an area, an anchor is assigned to no box.
    boxes = jnp.where(anchors.usable[..., None], anchors.boxes, 0.0)
    targets = targets_of_batch(
        batch._replace(classes=jnp.zeros_like(batch.classes)),
        boxes,
        matcher=config.matcher,
        similarity=config.similarity,
        box_coder=config.box_coder,
        input_size=PIXEL,
        num_classes=1,
        background_class=True,
        encode_background_as_zeros=False,
        negative_class_weight=1.0,
    )
    sampled = balanced_sample(
        priorities,
        anchors.usable & (targets.class_weights > 0),
        targets.matches >= 0,
        size=config.sample_size,
        positive_fraction=config.positive_fraction,
    ).astype(jnp.float32)
    # Each image counts alike, whatever the weights of its boxes.
    weights = sampled / jnp.maximum(sampled.sum(axis=1, keepdims=True), 1.0)
    weights = weights / jnp.maximum(batch.image_count if images is None else images, 1.0)
    objectness = softmax_loss(predictions.class_logits, targets.class_targets, weights)
    localization = smooth_l1_loss(
        predictions.box_encodings, targets.box_targets, weights * targets.box_weights
    )
    return StageLoss(
        classification=config.objectness_weight * objectness.sum(),
        localization=config.localization_weight * localization.sum(),
        positives=jnp.sum(sampled * (targets.box_weights > 0)),
    )

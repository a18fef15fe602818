"""The detector: from pixels to predictions for every anchor."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from stillbox.experiment import schema
from stillbox.models.anchors import build_anchors, prediction_order
from stillbox.models.layers import BatchNorm, ConvLayer
from stillbox.models.layers.stochastic import fold_key
from stillbox.models.parallel import whole_rows
from stillbox.models.parts import Part
from stillbox.models.predictions import Predictions

Shape = tuple[int, int]

# What backbone and neck fold into the key; a head numbers its feature maps, from 0.
_BACKBONE, _NECK = 2**16, 2**16 + 1


class Detector(nnx.Module):
    """Backbone, neck and head, and the anchors that their predictions are relative to.

    Parameters are `nnx.Param` and float32, moving statistics `nnx.BatchStat`; everything else is
    static, so that the module can be taken apart and compiled.

    Args:
        backbone: pixels to taps.
        neck: taps to feature maps.
        head: feature maps to predictions.
        model: the description that the parts were built from.
        dtype: of activations.
    """

    def __init__(
        self,
        backbone: Part,
        neck: Part,
        head: Part,
        model: schema.Model,
        dtype: Any,  # noqa: ANN401
    ) -> None:
        self.backbone = backbone
        self.neck = neck
        self.head = head
        self.pixels = model.pixels
        self.pad_to_multiple = model.pad_to_multiple
        self.anchor_config = model.anchors
        self.image_shape = model.resizer.input_size
        self.dtype = jnp.dtype(dtype)
        _tell_places(self)
        self.feature_shapes = self._measure_features()
        self.order = _static(prediction_order(model.anchors, self.feature_shapes))

    def __call__(
        self, images: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> Predictions:
        """Predicts boxes and classes for every anchor.

        Args:
            images: `[B, H, W, 3]`, RGB in 0..255, resized and padded to the network input.
            train: use and remember the batch's statistics; apply dropout.
            dropout_key: needed in training by parts that drop something.

        Returns:
            float32 predictions in the order of `anchors`.
        """
        maps = self.features(images, train=train, dropout_key=dropout_key)
        with jax.named_scope("head"):
            predictions: Predictions = self.head(maps, train=train, dropout_key=dropout_key)
            # The anchors of all maps in a row are no height. XLA (jax 0.10.0) would go on cutting
            # them, and makes wrong gradients of that where a batch is divided too.
            predictions = whole_rows(predictions)
            if self.order is None:
                return predictions
            order = np.asarray(self.order)
            return Predictions(*(array[:, order] for array in predictions))

    def features(
        self, images: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, ...]:
        """Maps images in 0..255 to the feature maps `[B, H, W, C]`, from fine to coarse."""
        mean = np.asarray(self.pixels.mean, np.float32)
        std = np.asarray(self.pixels.std, np.float32)
        with jax.named_scope("pixels"):
            normalized = (images.astype(jnp.float32) - mean) / std
            padded = _pad_to_multiple(normalized.astype(self.dtype), self.pad_to_multiple)
        with jax.named_scope("backbone"):
            taps = self.backbone(padded, train=train, dropout_key=fold_key(dropout_key, _BACKBONE))
        with jax.named_scope("neck"):
            return self.neck(taps, train=train, dropout_key=fold_key(dropout_key, _NECK))

    @property
    def anchors(self) -> NDArray[np.float32]:
        """`[A, 4]`, `[ymin, xmin, ymax, xmax]`, normalised to the network input, not clipped."""
        return build_anchors(self.anchor_config, self.feature_shapes, self.image_shape)

    @jax.named_scope("penalty")
    def regularization(self) -> jax.Array:
        """Sum of the penalties of all layers, a float32 scalar."""
        modules = (module for _, module in nnx.iter_modules(self))
        layers = [module for module in modules if isinstance(module, ConvLayer | BatchNorm)]
        return jnp.sum(jnp.stack([layer.penalty() for layer in layers]))

    def _measure_features(self) -> tuple[Shape, ...]:
        image = jax.ShapeDtypeStruct((1, *self.image_shape, 3), jnp.float32)
        maps = jax.eval_shape(lambda images: self.features(images, train=False), image)
        return tuple((array.shape[1], array.shape[2]) for array in maps)


def _tell_places(detector: Detector) -> None:
    """Tells every layer its path inside backbone, neck or head."""
    for path, module in nnx.iter_modules(detector):
        if isinstance(module, ConvLayer):
            module.place = "/".join(map(str, path[1:])) or module.place


def _static(order: NDArray[np.int64] | None) -> tuple[int, ...] | None:
    # What can be hashed is part of the compiled program; an array would be taken for a variable.
    return None if order is None else tuple(order.tolist())


def _pad_to_multiple(images: jax.Array, multiple: int) -> jax.Array:
    """Pads `[B, H, W, C]` with zeros at the bottom and right."""
    bottom, right = (-side % multiple for side in images.shape[1:3])
    return jnp.pad(images, ((0, 0), (0, bottom), (0, right), (0, 0)))

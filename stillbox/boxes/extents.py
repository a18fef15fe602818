"""The part of a feature map that belongs to an image inside a padded network input."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

Shape = tuple[int, int]


def stride_of(map_side: int, input_side: int) -> int:
    """Returns the stride, a power of two, by which a side of the input became that of a map."""
    stride = 1
    while -(-input_side // stride) > map_side:
        stride *= 2
    return stride


def extents_on_map(sizes: ArrayLike, map_shape: Shape, input_shape: Shape) -> Array:
    """Returns rows and columns `[B, 2]` int32 of a map that images of `sizes` `[B, 2]` fill.

    A map of stride s of an unpadded image of n pixels has `ceil(n / s)` rows.

    Args:
        sizes: heights and widths of the images, in pixels of the network input.
        map_shape: height and width of the map of the padded input.
        input_shape: height and width of the padded input, in pixels.
    """
    strides = [stride_of(*sides) for sides in zip(map_shape, input_shape, strict=True)]
    return -(-jnp.asarray(sizes, jnp.int32) // jnp.asarray(strides, jnp.int32))

"""Views of an image, one for each tap of a kernel, and their sum at the places they come from."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def windows_of(padded: jax.Array, kernel_shape: Sequence[int], stride: int) -> list[jax.Array]:
    """Returns for each tap the values of `[B, H, W, C]` that it multiplies, `[B, h, w, C]`.

    Args:
        padded: the input.
        kernel_shape: `(kh, kw, ...)`; taps are in the order of rows.
        stride: of the kernel.
    """
    spans = [
        [slice(tap, padded.shape[axis + 1] - taps + tap + 1, stride) for tap in range(taps)]
        for axis, taps in enumerate(kernel_shape[:2])
    ]
    return [padded[:, rows, columns] for rows in spans[0] for columns in spans[1]]


def added_up(
    windows: Sequence[jax.Array], size: tuple[int, int], kernel_shape: Sequence[int], stride: int
) -> jax.Array:
    """Adds windows `[B, h, w, C]` at the places that `windows_of` takes them from.

    Pixels with the same remainders of row and column by the stride form a map without gaps. The
    maps are joined along the channels, where whole runs of memory are copied. The gradient that JAX
    derives writes every window into an image of its own.

    Returns:
        `[B, H, W, C]` of the windows' type; `size` is H and W.
    """
    batch, height, width, channels = windows[0].shape
    rows, columns = (-(-side // stride) for side in size)

    def phase(row: int, column: int) -> jax.Array:
        """Sums the windows whose pixels have these remainders, `[B, rows, columns, C]`."""
        total = jnp.zeros((batch, rows, columns, channels), windows[0].dtype)
        for down in range(row, kernel_shape[0], stride):
            for right in range(column, kernel_shape[1], stride):
                window = windows[down * kernel_shape[1] + right]
                above, left = down // stride, right // stride
                pads = (above, rows - above - height), (left, columns - left - width)
                total = total + jnp.pad(window, ((0, 0), *pads, (0, 0)))
        return total

    lines = [
        jnp.concatenate([phase(row, column) for column in range(stride)], axis=-1)
        for row in range(stride)
    ]
    joined = jnp.concatenate([line.reshape(batch, rows, -1) for line in lines], axis=-1)
    image = joined.reshape(batch, rows * stride, columns * stride, channels)
    return image[:, : size[0], : size[1]]

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


def patch_rows(padded: jax.Array, kernel_shape: Sequence[int], stride: int) -> jax.Array:
    """Returns what each tap multiplies in each channel of an image, `[kh * kw * C, h * w]`.

    Pixels with the same remainders of row and column by the stride are gathered first, so that the
    windows are runs of memory.

    Args:
        padded: an image of few channels, `[H, W, C]`.
        kernel_shape: `(kh, kw, ...)`; rows are in the order of the kernel's axes.
        stride: of the kernel.
    """
    kh, kw = kernel_shape[:2]
    height, width = (padded.shape[0] - kh) // stride + 1, (padded.shape[1] - kw) // stride + 1
    channels_first = jax.lax.optimization_barrier(padded.transpose(2, 0, 1))
    phases = jax.lax.optimization_barrier(
        [
            [channels_first[:, row::stride, column::stride] for column in range(min(stride, kw))]
            for row in range(min(stride, kh))
        ]
    )

    def rows_of(down: int, right: int) -> jax.Array:
        above, left = down // stride, right // stride
        phase = phases[down % stride][right % stride]
        return phase[:, above : above + height, left : left + width].reshape(len(phase), -1)

    rows = jnp.concatenate([rows_of(down, right) for down in range(kh) for right in range(kw)])
    kept: jax.Array = jax.lax.optimization_barrier(rows)
    return kept


def added_up(patches: jax.Array, size: tuple[int, ...], stride: int) -> jax.Array:
    """Adds patches at the places that `windows_of` takes them from.

    Pixels with the same remainders of row and column by the stride belong to the same taps, so that
    the sum is elementwise over `[B, H / stride, stride, W / stride, stride, C]`. XLA fuses it with
    what computes the patches. The gradient that JAX derives writes every window into an image of
    its own.

    Args:
        patches: the values of each window, `[B, h, w, kh, kw, C]`.
        size: rows and columns of the result.
        stride: of the windows.

    Returns:
        `[B, H, W, C]` of the patches' type.
    """
    batch, height, width, *taps, channels = patches.shape
    rows, columns = (-(-side // stride) for side in size)

    def shifted(down: int, right: int) -> jax.Array:
        """Returns the taps that many strides below and right of a window's first one."""
        first, second = (slice(n * stride, (n + 1) * stride) for n in (down, right))
        part = patches[:, :, :, first, second]
        moved = (down, rows - down - height), (right, columns - right - width)
        missing = ((0, stride - count) for count in part.shape[3:5])
        return jnp.pad(part, ((0, 0), *moved, *missing, (0, 0))).transpose(0, 1, 3, 2, 4, 5)

    shifts = [range(-(-count // stride)) for count in taps]
    total = sum(shifted(down, right) for down in shifts[0] for right in shifts[1])
    image = jnp.reshape(total, (batch, rows * stride, columns * stride, channels))
    return image[:, : size[0], : size[1]]

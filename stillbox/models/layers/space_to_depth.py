"""A strided convolution over blocks of pixels, for accelerators that prefer many channels.

A matrix unit multiplies columns of channels, and an image has three. Blocks of two by two pixels
have twelve.
"""

import jax
import jax.numpy as jnp

from stillbox.models.layers.conv import Conv2d
from stillbox.models.layers.lowering.convolution import conv2d
from stillbox.models.layers.masking import zero_padding

_BLOCK = 2


class SpaceToDepthConv2d(Conv2d):
    """A convolution of odd size, stride 2 and symmetric padding, with the kernel of `Conv2d`.

    Same arguments and numbers as `Conv2d`. The kernel is padded by a row and a column of zeros, so
    that it begins at a block, and kernel and image are folded.
    """

    def __call__(self, x: jax.Array, *, train: bool, site: int = 0) -> jax.Array:
        """Maps `[B, H, W, C]` of even sides to `[B, H / 2, W / 2, D]`."""
        folded_kernel = _fold_kernel(self.kernel[...].astype(self.dtype))
        before = -(-(self.kernel.shape[0] // 2) // _BLOCK)
        after = folded_kernel.shape[0] - 1 - before
        pads = ((0, 0), (before, after), (before, after), (0, 0))
        folded = jnp.pad(space_to_depth(zero_padding(x.astype(self.dtype))), pads)
        return self._finish(conv2d(folded, folded_kernel, 1, padding="valid"), train=train)


def space_to_depth(x: jax.Array) -> jax.Array:
    """Maps `[B, H, W, C]` to `[B, H / 2, W / 2, 4 C]`; channels in the order row, column, C."""
    batch, height, width, channels = x.shape
    rows, columns = height // _BLOCK, width // _BLOCK
    blocks = x.reshape(batch, rows, _BLOCK, columns, _BLOCK, channels)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows, columns, -1)


def _fold_kernel(kernel: jax.Array) -> jax.Array:
    """Maps `[k, k, C, D]` of odd k to `[(k + 1) / 2, (k + 1) / 2, 4 C, D]`."""
    # The first tap is half a kernel before the centre, the first pixel of a block.
    first = (kernel.shape[0] // 2) % _BLOCK
    grow = (first, 1 - first)
    padded = jnp.pad(kernel, (grow, grow, (0, 0), (0, 0)))
    taps, channels = padded.shape[0] // _BLOCK, kernel.shape[3]
    blocks = padded.reshape(taps, _BLOCK, taps, _BLOCK, kernel.shape[2], channels)
    return blocks.transpose(0, 2, 1, 3, 4, 5).reshape(taps, taps, -1, channels)

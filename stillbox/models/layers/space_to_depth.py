"""A strided convolution over blocks of pixels, for accelerators that want many channels.

A matrix unit multiplies by whole columns of channels, and an image has three. Two by two pixels
laid on top of each other have twelve (SSD ResNet-34 fact sheet 8).
"""

import jax
import jax.numpy as jnp

from stillbox.models.layers.conv import Conv2d
from stillbox.models.layers.lowering import conv2d

_BLOCK = 2


class SpaceToDepthConv2d(Conv2d):
    """A convolution of odd size, stride 2 and symmetric padding; numbers and kernel as `Conv2d`.

    Its arguments are those of `Conv2d`. Only the way it is computed differs: the kernel grows by a
    row and a column of zeros, so that it begins where a block does, and both are folded.
    """

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Maps `[B, H, W, C]` of even sides to `[B, H / 2, W / 2, D]`."""
        folded_kernel = _fold_kernel(self.kernel[...].astype(self.dtype))
        before = -(-(self.kernel.shape[0] // 2) // _BLOCK)
        after = folded_kernel.shape[0] - 1 - before
        pads = ((0, 0), (before, after), (before, after), (0, 0))
        folded = jnp.pad(space_to_depth(x.astype(self.dtype)), pads)
        return self._finish(conv2d(folded, folded_kernel, 1, padding="valid"), train=train)


def space_to_depth(x: jax.Array) -> jax.Array:
    """Maps `[B, H, W, C]` to `[B, H / 2, W / 2, 4 C]`; channels in the order row, column, C."""
    batch, height, width, channels = x.shape
    rows, columns = height // _BLOCK, width // _BLOCK
    blocks = x.reshape(batch, rows, _BLOCK, columns, _BLOCK, channels)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows, columns, -1)


def _fold_kernel(kernel: jax.Array) -> jax.Array:
    """Maps `[k, k, C, D]` of odd k to `[(k + 1) / 2, (k + 1) / 2, 4 C, D]`."""
    # The first tap stands half a kernel before the centre, which is the first pixel of a block.
    first = (kernel.shape[0] // 2) % _BLOCK
    grow = (first, 1 - first)
    padded = jnp.pad(kernel, (grow, grow, (0, 0), (0, 0)))
    taps, channels = padded.shape[0] // _BLOCK, kernel.shape[3]
    blocks = padded.reshape(taps, _BLOCK, taps, _BLOCK, kernel.shape[2], channels)
    return blocks.transpose(0, 2, 1, 3, 4, 5).reshape(taps, taps, -1, channels)

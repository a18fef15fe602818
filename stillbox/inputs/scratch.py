"""Working memory that every thread keeps.

The C library returns large arrays to the system when they are freed; the next one of that size is
then paid for page by page. For a resize that took longer than the arithmetic.
"""

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Scratch(threading.local):
    """Arrays by name. The content lasts until the same thread asks for the same name again."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Returns an array with any content.

        Args:
            name: what it is for.
            shape: of the array.
            dtype: of the array.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.empty(size, np.uint8)
        return buffer[:size].view(dtype).reshape(shape)

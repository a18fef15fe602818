"""Order and chance as pure functions of (seed, epoch, record).

Both rest on Philox, a generator that is computed from a key and a counter: any epoch's order and
any record's numbers are there at once, without those before them. Two runs, one run resumed, one
process or eight see the same samples.
"""

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

# Second word of the key: the uses must not share numbers.
_ORDER, _AUGMENTATION, _RESIZING = 1, 2, 3


def permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    """Returns the order of an epoch: every one of `size` records once.

    numpy promises that the raw words of a bit generator never change, but not what
    `Generator.permutation` makes of them: an order by raw words outlives an upgrade of numpy.
    """
    return np.argsort(_philox(seed, _ORDER, epoch, 0).random_raw(size), kind="stable")


def sample_generator(seed: int, epoch: int, record: int) -> Generator:
    """Returns the generator that augments a record in an epoch."""
    return Generator(_philox(seed, _AUGMENTATION, epoch, record))


def resize_generator(seed: int, epoch: int, record: int) -> Generator:
    """Returns the generator that resizes a record in an epoch, whatever its augmentations drew."""
    return Generator(_philox(seed, _RESIZING, epoch, record))


def _philox(seed: int, use: int, epoch: int, record: int) -> Philox:
    # The generator counts up the first word of the counter, so no two of these ever meet.
    key = np.array([seed % 2**64, use], np.uint64)
    return Philox(key=key, counter=np.array([0, 0, epoch, record], np.uint64))

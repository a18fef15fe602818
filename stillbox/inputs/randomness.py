"""Order and randomness as pure functions of (seed, epoch, record).

Both use Philox, a counter-based generator: any epoch's order and any record's numbers are computed
without those before them. Repeated and resumed runs, with any number of processes, see the same
samples.
"""

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

# Second word of the key, so that the uses share no numbers.
_ORDER, _AUGMENTATION, _RESIZING = 1, 2, 3


def permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    """Returns the order of an epoch, a permutation of `size` records.

    numpy guarantees the raw words of a bit generator, but not `Generator.permutation`: an order by
    raw words does not change with numpy's version.
    """
    return np.argsort(_philox(seed, _ORDER, epoch, 0).random_raw(size), kind="stable")


def sample_generator(seed: int, epoch: int, record: int) -> Generator:
    """Returns the generator that augments a record in an epoch."""
    return Generator(_philox(seed, _AUGMENTATION, epoch, record))


def resize_generator(seed: int, epoch: int, record: int) -> Generator:
    """Returns the generator that resizes a record in an epoch, independent of augmentations."""
    return Generator(_philox(seed, _RESIZING, epoch, record))


def _philox(seed: int, use: int, epoch: int, record: int) -> Philox:
    # The generator increments the first word of the counter, so no two of these overlap.
    key = np.array([seed % 2**64, use], np.uint64)
    return Philox(key=key, counter=np.array([0, 0, epoch, record], np.uint64))

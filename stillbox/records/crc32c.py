"""The masked CRC-32C of TFRecord files and TF1 checkpoints.

google-crc32c computes several GB/s. The best form in numpy reaches 130 MB/s, less than an input
pipeline reads.
"""

import google_crc32c

_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of `data`."""
    return int(google_crc32c.value(data))


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum rotated right by 15 bits, plus a constant (tensorflow/core/lib/hash).

    The mask keeps the checksum of data that contains checksums from being degenerate.
    """
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF

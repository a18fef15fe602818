"""The masked CRC-32C that guards every TFRecord (fact sheet 4.1).

The checksum itself is google-crc32c's: it runs at memory speed (about 20 GB/s here), where the best
form in numpy reaches 130 MB/s, less than one record for every image that an input pipeline decodes.
"""

import google_crc32c

_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of `data`."""
    return int(google_crc32c.value(data))


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum as TFRecord stores it: rotated right by 15 bits, plus a constant.

    The mask keeps the checksum of data that itself holds checksums from being degenerate.
    """
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF

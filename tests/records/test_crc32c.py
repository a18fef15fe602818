import pytest

from stillbox.records.crc32c import crc32c, masked_crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x00000000),
        (b"123456789", 0xE3069283),  # the check value of the CRC catalogue
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),  # RFC 3720, B.4
        (bytes(range(32)), 0x46DD794E),  # RFC 3720, B.4
    ],
)
def test_published_vectors(data, expected):
    assert crc32c(data) == expected


def test_mask_rotates_right_by_15_and_adds():
    # crc 0xe3069283 = 1110 0011 0000 0110 1001 0010 1000 0011
    # >> 15: 0x1c60d, << 17 (low 32 bits): 0x25060000, or: 0x2507c60d
    # + 0xa282ead8 = 0xc78ab0e5
    assert masked_crc32c(b"123456789") == 0xC78AB0E5

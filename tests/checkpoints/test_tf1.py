import struct
from pathlib import Path

import numpy as np
import pytest

from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.checkpoints.tf1_index import DTYPES
from stillbox.errors import UserError
from tests.checkpoints import tf1_writer
from tests.checkpoints.torch_writer import numbers_of


@pytest.fixture
def prefix(tmp_path):
    return str(tmp_path / "model.ckpt-100")


def _data(prefix, shard=0, shards=1):
    return Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}")


def test_every_type_comes_back_bit_for_bit(prefix):
    arrays = {f"scope/{dtype}": numbers_of(dtype) for dtype in DTYPES.values()}
    tf1_writer.write_checkpoint(prefix, arrays)
    checkpoint = Tf1Checkpoint(prefix)
    assert list(checkpoint) == sorted(arrays)
    for name, array in arrays.items():
        assert checkpoint[name].dtype == array.dtype
        assert checkpoint[name].tobytes() == array.tobytes()
        assert checkpoint[name].shape == (2, 3)


def test_scalars_and_empty_arrays_keep_their_shape(prefix):
    arrays = {"global_step": np.array(12345, np.int64), "empty": np.zeros((0, 4), np.float32)}
    tf1_writer.write_checkpoint(prefix, arrays)
    checkpoint = Tf1Checkpoint(prefix)
    assert checkpoint["global_step"] == 12345
    assert checkpoint["global_step"].shape == ()
    assert checkpoint["empty"].shape == (0, 4)


@pytest.mark.parametrize("block_entries", [1, 7, 50])
def test_many_names_over_many_blocks_and_shards(prefix, block_entries):
    arrays = {f"Layer_{i}/weights": np.full((i % 3 + 1, 2), i, np.float32) for i in range(120)}
    tf1_writer.write_checkpoint(prefix, arrays, shards=3, block_entries=block_entries)
    checkpoint = Tf1Checkpoint(prefix)
    assert len(checkpoint) == 120
    assert all(np.array_equal(checkpoint[name], array) for name, array in arrays.items())


def test_listing_needs_no_data_file(prefix):
    tf1_writer.write_checkpoint(prefix, {"w": np.zeros((3, 2), np.float32)})
    _data(prefix).unlink()
    ((name, entry),) = Tf1Checkpoint(prefix).entries.items()
    assert "w" in Tf1Checkpoint(prefix)
    assert (name, entry.shape, entry.dtype) == ("w", (3, 2), np.float32)
    with pytest.raises(UserError, match="data file is missing"):
        Tf1Checkpoint(prefix)["w"]


def test_a_name_that_is_not_there_is_a_key_error(prefix):
    tf1_writer.write_checkpoint(prefix, {"w": np.zeros(3, np.float32)})
    assert "v" not in Tf1Checkpoint(prefix)
    with pytest.raises(KeyError):
        Tf1Checkpoint(prefix)["v"]


def test_a_missing_index_is_named(prefix):
    with pytest.raises(UserError, match=r"model\.ckpt-100\.index: this checkpoint has no index"):
        Tf1Checkpoint(prefix)


def test_a_flipped_bit_in_the_data_names_the_variable(prefix):
    arrays = {"first": np.ones(10, np.float32), "second": np.ones(10, np.float32)}
    tf1_writer.write_checkpoint(prefix, arrays)
    content = bytearray(_data(prefix).read_bytes())
    content[41] ^= 1  # bytes 40 to 79 are the second's
    _data(prefix).write_bytes(content)
    checkpoint = Tf1Checkpoint(prefix)
    assert np.array_equal(checkpoint["first"], arrays["first"])
    with pytest.raises(UserError, match="'second' are damaged"):
        checkpoint["second"]


def test_truncated_data_is_refused(prefix):
    tf1_writer.write_checkpoint(prefix, {"w": np.ones(10, np.float32)})
    _data(prefix).write_bytes(_data(prefix).read_bytes()[:-1])
    with pytest.raises(UserError, match="'w' should have 40 bytes and has 39"):
        Tf1Checkpoint(prefix)["w"]


def test_every_flipped_bit_in_the_index_is_detected_or_harmless(prefix):
    arrays = {"a/weights": np.arange(6, dtype=np.float32), "b": np.ones((2, 2), np.float32)}
    tf1_writer.write_checkpoint(prefix, arrays)
    index = Path(prefix + ".index")
    good = index.read_bytes()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0x10
        index.write_bytes(damaged)
        try:
            checkpoint = Tf1Checkpoint(prefix)
        except UserError:
            continue
        # What may change without harm is not read: the metaindex block and the footer's padding.
        assert checkpoint.keys() == arrays.keys()
        assert all(np.array_equal(checkpoint[name], array) for name, array in arrays.items())


@pytest.mark.parametrize("size", [0, 10, 47, 60])
def test_a_truncated_index_is_refused(prefix, size):
    tf1_writer.write_checkpoint(prefix, {"w": np.ones(10, np.float32)})
    index = Path(prefix + ".index")
    index.write_bytes(index.read_bytes()[:size])
    with pytest.raises(UserError, match="index cannot be read"):
        Tf1Checkpoint(prefix)


def _write_index(prefix, entries, **options):
    Path(prefix + ".index").write_bytes(tf1_writer.table(entries, **options))


def test_compressed_blocks_are_refused_by_name(prefix):
    _write_index(prefix, [(b"", tf1_writer.bundle_header(1))], compression=1)
    with pytest.raises(UserError, match="compressed \\(snappy\\)"):
        Tf1Checkpoint(prefix)


def test_big_endian_checkpoints_are_refused(prefix):
    _write_index(prefix, [(b"", tf1_writer.bundle_header(1, endianness=1))])
    with pytest.raises(UserError, match="big-endian"):
        Tf1Checkpoint(prefix)


def test_strings_and_partitioned_variables_are_listed_but_not_read(prefix):
    array = np.zeros(1, np.float32)
    string = 7
    one_slice = tf1_writer.field(7, b"\x0a\x00")
    _write_index(
        prefix,
        [
            (b"", tf1_writer.bundle_header(1)),
            (b"graph", tf1_writer.bundle_entry(array, 0, 0, dtype=string)),
            (b"parts", tf1_writer.bundle_entry(array, 0, 0, extra=one_slice)),
        ],
    )
    checkpoint = Tf1Checkpoint(prefix)
    assert [entry.dtype for entry in checkpoint.entries.values()] == [None, np.float32]
    with pytest.raises(UserError, match="'graph' has type number 7"):
        checkpoint["graph"]
    with pytest.raises(UserError, match="'parts' is partitioned"):
        checkpoint["parts"]


def test_an_entry_that_is_no_message_is_refused(prefix):
    _write_index(prefix, [(b"", tf1_writer.bundle_header(1)), (b"w", struct.pack("<I", 2**31))])
    with pytest.raises(UserError, match="index cannot be read"):
        Tf1Checkpoint(prefix)

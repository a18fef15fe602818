"""TF1 checkpoints: our reader and our writer, each against another writer."""

import struct
from pathlib import Path

import numpy as np
import pytest

from stillbox.checkpoints import tf1
from stillbox.checkpoints.tf1 import (
    DTYPES,
    Tf1Checkpoint,
    checkpoint_files,
    read_table,
    write_tf1_checkpoint,
)
from stillbox.errors import UserError
from tests.checkpoints import tf_writer
from tests.checkpoints import tf_writer as other_writer
from tests.checkpoints.detectors import assert_same_arrays
from tests.checkpoints.torch_writer import numbers_of
from tests.helpers import refused
from tests.kills import kills


@pytest.fixture
def prefix(tmp_path):
    return str(tmp_path / "model.ckpt-100")


def _data(prefix, shard=0, shards=1):
    return Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}")


def test_every_type_comes_back_bit_for_bit(prefix):
    arrays = {f"scope/{dtype}": numbers_of(dtype) for dtype in DTYPES.values()}
    tf_writer.write_checkpoint(prefix, arrays)
    assert_same_arrays(Tf1Checkpoint(prefix), dict(sorted(arrays.items())))
    assert {array.shape for array in arrays.values()} == {(2, 3)}


def test_scalars_and_empty_arrays_keep_their_shape(prefix):
    arrays = {"global_step": np.array(12345, np.int64), "empty": np.zeros((0, 4), np.float32)}
    tf_writer.write_checkpoint(prefix, arrays)
    checkpoint = Tf1Checkpoint(prefix)
    assert checkpoint["global_step"] == 12345
    assert checkpoint["global_step"].shape == ()
    assert checkpoint["empty"].shape == (0, 4)


@pytest.mark.parametrize("block_entries", [1, 7, 50])
def test_many_names_over_many_blocks_and_shards(prefix, block_entries):
    arrays = {f"Layer_{i}/weights": np.full((i % 3 + 1, 2), i, np.float32) for i in range(120)}
    tf_writer.write_checkpoint(prefix, arrays, shards=3, block_entries=block_entries)
    checkpoint = Tf1Checkpoint(prefix)
    assert len(checkpoint) == 120
    assert all(np.array_equal(checkpoint[name], array) for name, array in arrays.items())


def test_listing_needs_no_data_file(prefix):
    tf_writer.write_checkpoint(prefix, {"w": np.zeros((3, 2), np.float32)})
    _data(prefix).unlink()
    ((name, entry),) = Tf1Checkpoint(prefix).entries.items()
    assert "w" in Tf1Checkpoint(prefix)
    assert (name, entry.shape, entry.dtype) == ("w", (3, 2), np.float32)
    with refused("model.ckpt-100.data-00000-of-00001"):
        Tf1Checkpoint(prefix)["w"]


def test_a_missing_name_is_a_key_error_and_a_missing_index_is_named(prefix):
    with refused("model.ckpt-100.index"):
        Tf1Checkpoint(prefix)
    tf_writer.write_checkpoint(prefix, {"w": np.zeros(3, np.float32)})
    assert "v" not in Tf1Checkpoint(prefix)
    with pytest.raises(KeyError):
        Tf1Checkpoint(prefix)["v"]


def test_a_flipped_bit_in_the_data_names_the_variable(prefix):
    arrays = {"first": np.ones(10, np.float32), "second": np.ones(10, np.float32)}
    tf_writer.write_checkpoint(prefix, arrays)
    content = bytearray(_data(prefix).read_bytes())
    content[41] ^= 1  # bytes 40 to 79 are the second's
    _data(prefix).write_bytes(content)
    checkpoint = Tf1Checkpoint(prefix)
    assert np.array_equal(checkpoint["first"], arrays["first"])
    with refused("model.ckpt-100.data-00000-of-00001", "second"):
        checkpoint["second"]
    _data(prefix).write_bytes(content[:-1])
    with refused("model.ckpt-100.data-00000-of-00001", "second", 40, 39):
        Tf1Checkpoint(prefix)["second"]


def test_every_flipped_bit_in_the_index_is_detected_or_harmless(prefix):
    arrays = {"a/weights": np.arange(6, dtype=np.float32), "b": np.ones((2, 2), np.float32)}
    tf_writer.write_checkpoint(prefix, arrays)
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
    for size in (0, 10, 47, 60):
        index.write_bytes(good[:size])
        with refused("model.ckpt-100.index"):
            Tf1Checkpoint(prefix)


def _write_index(prefix, entries, **options):
    Path(prefix + ".index").write_bytes(tf_writer.table(entries, **options))


@pytest.mark.parametrize(
    ("endianness", "compression", "message"), [(0, 1, "snappy"), (1, 0, "big-endian")]
)
def test_an_index_of_another_form_is_refused_by_name(prefix, endianness, compression, message):
    header = tf_writer.bundle_header(1, endianness=endianness)
    _write_index(prefix, [(b"", header)], compression=compression)
    with pytest.raises(UserError, match=message):
        Tf1Checkpoint(prefix)


def test_strings_and_partitioned_variables_are_listed_but_not_read(prefix):
    array = np.zeros(1, np.float32)
    string = 7
    one_slice = tf_writer.field(7, b"\x0a\x00")
    _write_index(
        prefix,
        [
            (b"", tf_writer.bundle_header(1)),
            (b"graph", tf_writer.bundle_entry(array, 0, 0, dtype=string)),
            (b"parts", tf_writer.bundle_entry(array, 0, 0, extra=one_slice)),
        ],
    )
    checkpoint = Tf1Checkpoint(prefix)
    assert [entry.dtype for entry in checkpoint.entries.values()] == [None, np.float32]
    with refused("model.ckpt-100", "graph", 7):
        checkpoint["graph"]
    with refused("model.ckpt-100", "parts"):
        checkpoint["parts"]


def test_an_entry_that_is_no_message_is_refused(prefix):
    _write_index(prefix, [(b"", tf_writer.bundle_header(1)), (b"w", struct.pack("<I", 2**31))])
    with refused("model.ckpt-100.index"):
        Tf1Checkpoint(prefix)


@pytest.fixture
def written_prefix(tmp_path):
    return tmp_path / "model.ckpt-100"


def test_every_type_and_shape_comes_back_bit_for_bit(written_prefix):
    arrays = {f"scope/{dtype}": numbers_of(dtype) for dtype in DTYPES.values()}
    arrays |= {
        "global_step": np.asarray(12345, np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "turned": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
    }
    write_tf1_checkpoint(written_prefix, arrays)
    assert_same_arrays(Tf1Checkpoint(written_prefix), dict(sorted(arrays.items())))


def test_a_thousand_names_fill_many_blocks(written_prefix):
    arrays = {f"Layer_{i}/weights": np.full((i % 3, 2), i, np.float32) for i in range(1000)}
    write_tf1_checkpoint(written_prefix, arrays)
    index = checkpoint_files(written_prefix)[1].read_bytes()
    assert len(index) > 5 * 4096
    assert list(read_table(index)) == [b"", *sorted(name.encode() for name in arrays)]
    checkpoint = Tf1Checkpoint(written_prefix)
    assert all(np.array_equal(checkpoint[name], array) for name, array in arrays.items())


def test_an_index_of_one_block_is_byte_for_byte_that_of_another_writer(written_prefix, tmp_path):
    arrays = {"a/kernel": np.ones((2, 3), np.float32), "a/kernels": np.zeros(2, np.float32)}
    write_tf1_checkpoint(written_prefix, arrays)
    other_writer.write_checkpoint(tmp_path / "other", arrays)
    ours, theirs = checkpoint_files(written_prefix), checkpoint_files(tmp_path / "other")
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]


def test_same_arrays_same_bytes_and_nothing_else_in_the_folder(written_prefix, tmp_path):
    arrays = {"w": np.ones(3, np.float32), "v": np.zeros(2, np.float32)}
    write_tf1_checkpoint(written_prefix, arrays)
    first = [path.read_bytes() for path in checkpoint_files(written_prefix)]
    write_tf1_checkpoint(written_prefix, dict(reversed(arrays.items())))
    assert [path.read_bytes() for path in checkpoint_files(written_prefix)] == first
    assert sorted(tmp_path.iterdir()) == sorted(checkpoint_files(written_prefix))


def test_a_replaced_checkpoint_is_readable_at_every_moment(written_prefix, tmp_path, monkeypatch):
    write_tf1_checkpoint(written_prefix, {"w": np.zeros(3, np.float32)})
    seen = []

    def watched(name):
        plain = getattr(Path, name)

        def run(*args, **options):
            result = plain(*args, **options)
            seen.append(Tf1Checkpoint(written_prefix)["w"][0])
            return result

        monkeypatch.setattr(Path, name, run)

    watched("replace")
    watched("unlink")
    write_tf1_checkpoint(written_prefix, {"w": np.ones(3, np.float32)})
    # Files are made, the index names new values, they get their name, and the index names it.
    assert seen == sorted(seen)
    assert seen.count(1) >= 4
    assert sorted(tmp_path.iterdir()) == sorted(checkpoint_files(written_prefix))


def test_what_killed_processes_left_goes_with_the_next_replacement(written_prefix, tmp_path):
    write_tf1_checkpoint(written_prefix, {"w": np.zeros(3, np.float32)})
    _data(written_prefix, shards=2).touch()
    others = [_data(written_prefix, shard, shards=3) for shard in range(3)]
    for path in others:
        path.touch()
    write_tf1_checkpoint(written_prefix, {"w": np.ones(3, np.float32)})
    assert sorted(tmp_path.iterdir()) == sorted([*checkpoint_files(written_prefix), *others])


def test_what_is_written_before_a_failure_is_no_checkpoint(written_prefix, monkeypatch):
    write_tf1_checkpoint(written_prefix, {"w": np.ones(3, np.float32)})

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tf1, "write_durably", fail)
    with pytest.raises(OSError, match="No space"):
        write_tf1_checkpoint(written_prefix, {"w": np.zeros(3, np.float32)})
    # The old one is as it was.
    assert np.array_equal(Tf1Checkpoint(written_prefix)["w"], np.ones(3))


@pytest.mark.parametrize("before", [0, 1])
def test_a_kill_leaves_the_old_checkpoint_or_the_new_one(written_prefix, tmp_path, before):
    old, new = ({"w": np.full(3, value, np.float32)} for value in (0, 1))
    if before:
        write_tf1_checkpoint(written_prefix, old)
    data, index = checkpoint_files(written_prefix)
    seen = []
    for _ in kills(lambda: write_tf1_checkpoint(written_prefix, new)):
        # Without an index nothing would tell that the data are replaceable weights.
        assert index.exists() >= data.exists()
        if index.exists():
            seen.append(Tf1Checkpoint(written_prefix)["w"][0])
    assert seen == sorted(seen)
    assert set(seen) == {1, *[0] * before}
    assert np.array_equal(Tf1Checkpoint(written_prefix)["w"], new["w"])
    assert sorted(tmp_path.iterdir()) == sorted([data, index])

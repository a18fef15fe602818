"""Writing TF1 checkpoints; the reader is tested with those of another writer."""

import numpy as np
import pytest

from stillbox.checkpoints import tf1_writer
from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.checkpoints.tf1_index import DTYPES, read_table
from stillbox.checkpoints.tf1_writer import checkpoint_files, write_tf1_checkpoint
from tests.checkpoints import tf1_writer as other_writer
from tests.checkpoints.torch_writer import numbers_of


@pytest.fixture
def prefix(tmp_path):
    return tmp_path / "model.ckpt-100"


def test_every_type_and_shape_comes_back_bit_for_bit(prefix):
    arrays = {f"scope/{dtype}": numbers_of(dtype) for dtype in DTYPES.values()}
    arrays |= {
        "global_step": np.asarray(12345, np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "turned": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
    }
    write_tf1_checkpoint(prefix, arrays)
    checkpoint = Tf1Checkpoint(prefix)
    assert list(checkpoint) == sorted(arrays)
    for name, array in arrays.items():
        assert (checkpoint[name].dtype, checkpoint[name].shape) == (array.dtype, array.shape)
        assert checkpoint[name].tobytes() == array.tobytes()


def test_a_thousand_names_fill_many_blocks(prefix):
    arrays = {f"Layer_{i}/weights": np.full((i % 3, 2), i, np.float32) for i in range(1000)}
    write_tf1_checkpoint(prefix, arrays)
    index = checkpoint_files(prefix)[1].read_bytes()
    assert len(index) > 5 * 4096
    assert list(read_table(index)) == [b"", *sorted(name.encode() for name in arrays)]
    checkpoint = Tf1Checkpoint(prefix)
    assert all(np.array_equal(checkpoint[name], array) for name, array in arrays.items())


def test_an_index_of_one_block_is_byte_for_byte_that_of_another_writer(prefix, tmp_path):
    arrays = {"a/kernel": np.ones((2, 3), np.float32), "a/kernels": np.zeros(2, np.float32)}
    write_tf1_checkpoint(prefix, arrays)
    other_writer.write_checkpoint(tmp_path / "other", arrays)
    ours, theirs = checkpoint_files(prefix), checkpoint_files(tmp_path / "other")
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]


def test_same_arrays_same_bytes_and_nothing_else_in_the_folder(prefix, tmp_path):
    arrays = {"w": np.ones(3, np.float32), "v": np.zeros(2, np.float32)}
    write_tf1_checkpoint(prefix, arrays)
    first = [path.read_bytes() for path in checkpoint_files(prefix)]
    write_tf1_checkpoint(prefix, dict(reversed(arrays.items())))
    assert [path.read_bytes() for path in checkpoint_files(prefix)] == first
    assert sorted(tmp_path.iterdir()) == sorted(checkpoint_files(prefix))


def test_what_is_written_before_a_failure_is_no_checkpoint(prefix, monkeypatch):
    write_tf1_checkpoint(prefix, {"w": np.ones(3, np.float32)})

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tf1_writer, "write_durably", fail)
    with pytest.raises(OSError, match="No space"):
        write_tf1_checkpoint(prefix, {"w": np.zeros(3, np.float32)})
    # The old one is as it was.
    assert np.array_equal(Tf1Checkpoint(prefix)["w"], np.ones(3))

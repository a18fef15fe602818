"""Arrays in `.npz` and `.safetensors` files."""

import io
import random
import tracemalloc
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from stillbox.checkpoints.array_files import NpzFile, SafetensorsFile, read_npz_weights, write_npz
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from tests.checkpoints.detectors import assert_same_arrays


def test_every_type_comes_back_bit_for_bit(tmp_path):
    path = tmp_path / "arrays.npz"
    bits = np.array([0, 1, 0x7FC00001, 0x80000000, 0xFFFFFFFF, 0x3F800000], np.uint32)
    arrays = {
        "float32, NaN payloads and -0": bits.view(np.float32),
        "bfloat16": bits.view(jnp.bfloat16).reshape(3, 4),
        "bfloat16 scalar": np.array(1.5, jnp.bfloat16),
        "int32": bits.view(np.int32),
        "uint32 key": bits,
        "int64": np.array(2**40, np.int64),
        "bool": np.array([True, False]),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "empty": np.zeros((0, 3), np.float32),
        "file": np.ones(1, np.float32),
    }
    write_npz(path, arrays)
    assert_same_arrays(NpzFile(path), arrays)


def test_the_same_arrays_give_the_same_bytes(tmp_path):
    arrays = {"a": np.arange(5), "b": np.ones(3, jnp.bfloat16)}
    write_npz(tmp_path / "1.npz", arrays)
    write_npz(tmp_path / "2.npz", arrays)
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


def test_numpy_alone_reads_what_we_write(tmp_path):
    write_npz(tmp_path / "a.npz", {"w": np.arange(5, dtype=np.float32)})
    with np.load(tmp_path / "a.npz") as loaded:
        assert np.array_equal(loaded["w"], np.arange(5, dtype=np.float32))


@pytest.mark.parametrize("separator", ["|", "/"])
def test_bars_in_names_are_read_as_slashes(tmp_path, separator):
    name = separator.join(["MobilenetV1", "Conv2d_0", "weights"])
    np.savez(tmp_path / "w.npz", **{name: np.ones(2), f"{name}_1:0": np.zeros(2)})
    assert list(read_npz_weights(tmp_path / "w.npz")) == [
        "MobilenetV1/Conv2d_0/weights",
        "MobilenetV1/Conv2d_0/weights_1",
    ]


def test_no_flipped_bit_changes_a_value_unnoticed(tmp_path):
    path = tmp_path / "arrays.npz"
    arrays = {name: np.arange(60, dtype=np.float32) for name in ("first", "second")}
    write_npz(path, arrays)
    good = path.read_bytes()
    generator = random.Random(0)
    refused = 0
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        try:
            restored = dict(NpzFile(path))
        except UserError:
            refused += 1
            continue
        # The archive's list may lose entries: that is why a checkpoint counts its arrays.
        assert restored.keys() <= arrays.keys(), position
        assert all(np.array_equal(restored[name], arrays[name]) for name in restored), position
    assert refused > 480  # every byte of the 2 x 240 bytes of values, and most of the headers


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    path = tmp_path / "arrays.npz"
    write_npz(path, {"w": np.ones(100)})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"arrays\.npz: the file is damaged"):
        NpzFile(path)


def test_pickled_objects_are_refused_unopened(tmp_path):
    np.savez(tmp_path / "w.npz", w=np.array([{"a": 1}], object))
    with pytest.raises(UserError, match=r"no \.npz of plain arrays"):
        NpzFile(tmp_path / "w.npz")


def test_a_file_that_unpacks_to_a_hundred_times_of_its_size_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "w.npz", w=np.zeros(100_000))
    with pytest.raises(UserError, match="unpacks to more than 100 times"):
        NpzFile(tmp_path / "w.npz")


def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path):
    np.save(tmp_path / "w.npy", np.zeros((1, 2)))
    array = (tmp_path / "w.npy").read_bytes().replace(b"(1, 2)", b"(9, 9)")
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("w.npy", array)
    with pytest.raises(UserError, match=r"w\.npy claims to hold float64 of shape \[9, 9\]"):
        NpzFile(tmp_path / "w.npz")


def test_a_type_that_weights_do_not_have_is_refused_when_it_is_read(tmp_path):
    np.savez(tmp_path / "w.npz", note=np.array("x"), spectrum=np.ones(1, complex), w=np.ones(2))
    found = NpzFile(tmp_path / "w.npz")
    assert found.shape("w") == (2,) and np.array_equal(found["w"], np.ones(2))
    for name, kind in (("note", "<U1"), ("spectrum", "complex128")):
        with pytest.raises(UserError, match=f"'{name}' cannot be read: type {kind} is not"):
            found[name]


def bomb(method):
    """Returns an archive of kilobytes whose member unpacks to 30 MB, and which says 200 bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        with archive.open("w.npy", "w") as member:
            for _ in range(30):
                member.write(bytes(10**6))
        archive.getinfo("w.npy").file_size = 200
    return buffer.getvalue()


def oversized_directory():
    """Returns an archive whose end says that its directory has half a gigabyte of the file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("w.npy", "x")
    end = buffer.getvalue()[-22:]
    return end[:12] + (2**29).to_bytes(4, "little") + bytes(4) + end[20:]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("name", ["w.npz", "w.pth"])
def test_a_bomb_takes_no_memory(tmp_path, name, method):
    path = tmp_path / name
    path.write_bytes(bomb(method))
    assert refused_at_a_peak_of(path) < 2**23


@pytest.mark.parametrize("name", ["w.npz", "w.pth"])
def test_a_directory_of_gigabytes_takes_no_memory(tmp_path, name):
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(b"PK\3\4")
        file.truncate(2**29)
        file.seek(2**29)
        file.write(oversized_directory())
    assert refused_at_a_peak_of(path) < 2**25


def refused_at_a_peak_of(path):
    """Returns the most bytes that Python had while the file was refused."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="damaged"):
            dict(open_weights(path).arrays)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_every_type_of_safetensors_comes_back_bit_for_bit(path):
    numbers = np.array([[0.0, -1.5, 3.25], [1e-3, 6e4, 7.0]])
    kinds = (np.float32, np.float64, np.float16, jnp.bfloat16, np.int64, np.uint8, bool)
    arrays = {f"{np.dtype(kind)}.weight": numbers.astype(kind) for kind in kinds}
    arrays |= {"scalar": np.array(7, np.int64), "empty": np.zeros((0, 3), np.float32)}
    save_file(arrays, path)
    file = SafetensorsFile(path)
    assert len(file) == 9 and set(file) == set(arrays)
    assert "scalar" in file and "vector" not in file
    assert_same_arrays(file, {name: arrays[name] for name in file})


def test_a_name_that_is_not_there_is_a_key_error(path):
    save_file({"w": np.zeros(3)}, path)
    with pytest.raises(KeyError):
        SafetensorsFile(path)["v"]


@pytest.mark.parametrize("content", [b"", b"something", b"rubbish!" * 100])
def test_a_file_of_another_format_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors: the file is damaged or no \.safete"):
        SafetensorsFile(path)


def test_a_safetensors_file_that_is_cut_off_is_refused(path):
    save_file({"w": np.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="damaged"):
        SafetensorsFile(path)

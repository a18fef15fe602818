"""What lies in place of weights is said, in every reader of them."""

import shutil

import pytest

from stillbox.checkpoints.packed import open_model, pack_model
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from tests.helpers import refused

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 29103956\n"
SUFFIXES = (".npz", ".safetensors", ".pth", ".pt", ".pb", ".tflite", ".json", ".stillbox", ".index")


def reading_refused(path):
    with pytest.raises(UserError) as caught:
        dict(open_weights(path).arrays)
    return str(caught.value)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("content", "said"), [
    (POINTER, "a Git LFS pointer, and not the file itself\n  fix: run `git lfs pull`"),
    (b"<!DOCTYPE html><html>", "an HTML page, which a server sends in place of a file"),
])  # fmt: skip
def test_it_is_named_with_the_remedy(tmp_path, suffix, content, said):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    assert said in reading_refused(path)


def test_a_pointer_in_place_of_a_part_is_named(trained_once, tmp_path):
    step = open_model(trained_once).step
    folder = shutil.copytree(trained_once / "checkpoints" / str(step), tmp_path / "copy")
    (folder / "params.npz").write_bytes(POINTER)
    assert "params.npz" in reading_refused(folder)
    pack_model(trained_once, tmp_path / "m.stillbox")
    (tmp_path / "m.stillbox").write_bytes(POINTER)
    with refused("m.stillbox", "LFS"):
        open_model(tmp_path / "m.stillbox")

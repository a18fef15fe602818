"""Checkpoints under the original's names, beside checkpoints of other programs."""

import json

import pytest

from stillbox.checkpoints.original_checkpoints import write_checkpoints
from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.checkpoints.weights_file import open_weights

FOREIGN = ("{}.index", "{}.data-00000-of-00001")


def put(folder, name):
    """Puts files of another program's checkpoint into a folder."""
    paths = [folder / form.format(name) for form in FOREIGN]
    for path in paths:
        path.write_bytes(b"theirs")
    return paths


def listed(folder):
    lines = (folder / "checkpoint").read_text().splitlines()
    return [json.loads(line.partition(": ")[2]) for line in lines]


def test_tf2_checkpoints_come_behind_those_of_others(trained):
    theirs = [*put(trained, "ckpt-2"), *put(trained, "ckpt-6")]
    text = 'model_checkpoint_path: "ckpt-6"\nall_model_checkpoint_paths: "/home/me/ckpt-2"\n'
    (trained / "checkpoint").write_text(text + 'all_model_checkpoint_paths: "ckpt-6"\n')
    for _ in range(2):  # the second run finds its own
        write_checkpoints(trained, "tf2", pytest.fail)
        assert listed(trained) == ["ckpt-9", "/home/me/ckpt-2", "ckpt-6", "ckpt-8", "ckpt-9"]
        assert all(path.read_bytes() == b"theirs" for path in theirs)
        assert "save_counter/.ATTRIBUTES/VARIABLE_VALUE" in Tf1Checkpoint(trained / "ckpt-8")
    assert open_weights(trained / "ckpt-8").arrays
    # A file that was replaced since is another's too.
    (trained / "ckpt-8.index").write_bytes(b"theirs")
    write_checkpoints(trained, "tf2", pytest.fail)
    assert (trained / "ckpt-8.index").read_bytes() == b"theirs"
    assert listed(trained)[0] == "ckpt-11"


def test_tf1_checkpoints_have_the_number_of_their_step_or_none(trained):
    theirs, said = put(trained, "model.ckpt-2")[:1], []
    write_checkpoints(trained, "tf1", said.append)
    assert said == ["model.ckpt-2 is another program's: that of step 2 is not written"]
    assert theirs[0].read_bytes() == b"theirs"
    assert listed(trained) == ["model.ckpt-1", "model.ckpt-1"]


def test_a_run_without_others_replaces_its_own(trained):
    for form, name in (("tf2", "ckpt-{}"), ("tf1", "model.ckpt-{}")):
        first = 2 if form == "tf2" else 1
        names = [name.format(first), name.format(first + 1)]
        for _ in range(2):
            write_checkpoints(trained, form, pytest.fail)
            assert listed(trained) == [names[-1], *names]

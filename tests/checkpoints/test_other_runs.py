"""No run writes into the folder of another program's run, and none is in the way without reason."""

import os

import pytest

from stillbox.checkpoints.checkpoint import EXPERIMENT, LABEL_MAP, VERSIONS
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.other_runs import refuse_other_objects, refuse_other_run
from stillbox.checkpoints.remote_directory import model_place
from stillbox.errors import UserError
from tests.helpers import refused

BINARY = b"weights\0\1\2"
MAP = "item { id: 1 name: 'owl' }\n"


def fill(folder, *names, content=BINARY):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def refusal(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as caught, model_place(folder, writes=True):
        pass
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return str(caught.value)


@pytest.mark.parametrize(("names", "newest"), [
    (("ckpt-7.index", "ckpt-7.data-00000-of-00001"), "ckpt-7"),
    (("ckpt-9.index", "ckpt-9.data-00000-of-00001", "ckpt-10.index"), "ckpt-10"),
    (("model.ckpt-900.index", "model.ckpt-1000.meta", "model.ckpt-1000.index"), "model.ckpt-1000"),
    (("model.ckpt-0.data-00000-of-00002",), "model.ckpt-0"),
    (("args.yaml", "weights/last.pt"), "weights/last.pt"),
    (("checkpoints/epoch=3.ckpt",), "checkpoints/epoch=3.ckpt"),
    (("train/model_final.pth", "last_checkpoint"), "train/model_final.pth"),
    (("a/b/c/d/variables.h5",), "a/b/c/d/variables.h5"),
    (("yolov3_last.weights",), "yolov3_last.weights"),
    (("step_9/state.msgpack", "step_10/state.msgpack"), "step_10/state.msgpack"),
])  # fmt: skip
def test_a_run_of_another_program_is_refused_by_its_newest_checkpoint(tmp_path, names, newest):
    fill(tmp_path, *names)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))
    message = refusal(tmp_path)
    assert f"the run of another program; its newest checkpoint is {tmp_path}/{newest}," in message
    assert "take a new model_dir" in message
    starts = f"train.fine_tune.checkpoint={tmp_path}/{newest} train" in message
    assert starts == any(name in (f"{newest}.index", newest) for name in names) * (
        not newest.endswith((".ckpt", ".h5", ".weights", ".msgpack"))
    )


def test_the_list_of_tensorflow_says_which_is_the_newest(tmp_path):
    fill(tmp_path, "ckpt-3.index", "ckpt-12.index")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/home/me/run/ckpt-3"\n')
    assert f"newest checkpoint is {tmp_path}/ckpt-3," in refusal(tmp_path)


def test_the_newest_by_its_time_where_there_are_several_kinds(tmp_path):
    fill(tmp_path, "epoch99.pt", "last.pt")
    os.utime(tmp_path / "epoch99.pt", (1, 1))
    assert f"newest checkpoint is {tmp_path}/last.pt," in refusal(tmp_path)


@pytest.mark.parametrize("name", ["checkpoint_1000", "d/0/9f8e7d", "state.dat", "metrics.jsonl"])
def test_an_unknown_file_is_refused_by_name(tmp_path, name):
    fill(tmp_path, name)
    assert f"the folder holds {name}, which no run of stillbox wrote here" in refusal(tmp_path)


def test_a_lost_experiment_leaves_a_checkpoint_to_start_from(tmp_path):
    fill(tmp_path, "checkpoints/20/params.npz", "checkpoints/20/checkpoint.json")
    assert f"newest checkpoint is {tmp_path}/checkpoints/20, and" in refusal(tmp_path)


@pytest.mark.parametrize("name", [
    "pipeline.config", "my.yaml", "label_map.pbtxt", "train.log", "logs/out.txt", ".lock",
    "data/train.record-00000-of-00001", "data/conversion.json", "data/conversion.html",
    "data_source.json", "train/events.out.tfevents.1", "images/a.jpg", "train.tfrecord",
    "object_detection/model_main.py", "__pycache__/a.cpython-311.pyc", ".cache/weights.pt",
])  # fmt: skip
def test_other_files_are_in_nobody_s_way(tmp_path, name):
    content = b"text\n" if name.endswith((".txt", ".log", ".config", ".yaml", ".json")) else BINARY
    content = MAP.encode() if name.endswith((".py", ".pbtxt", ".html")) else content
    fill(tmp_path, name, content=content)
    with model_place(tmp_path, writes=True):
        pass
    with model_place(tmp_path / "absent", writes=True):
        pass


def create(folder, label_map=MAP):
    versions = {"stillbox": "1"}
    arguments = {"experiment": "name: a\n", "label_map": label_map, "versions": versions}
    ModelDirectory.create(folder, **arguments).close()


def test_an_own_run_without_a_checkpoint_is_gone_on_with(tmp_path):
    create(tmp_path)
    fill(tmp_path, "plugins/profile/a.xplane.pb")
    refuse_other_run(tmp_path)
    create(tmp_path)
    # Another program's experiment.yaml and checkpoints/ are no run of stillbox.
    (tmp_path / VERSIONS).unlink()
    assert "plugins/profile/a.xplane.pb" in refusal(tmp_path)


@pytest.mark.parametrize("name", [EXPERIMENT, VERSIONS, LABEL_MAP])
def test_no_file_of_the_names_of_a_run_is_replaced(tmp_path, name):
    fill(tmp_path, name, content=b"name: mine\n")
    with pytest.raises(UserError, match="would be replaced, and no run wrote it"):
        create(tmp_path)
    assert (tmp_path / name).read_bytes() == b"name: mine\n"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_label_map_of_the_same_classes_keeps_its_comments(tmp_path):
    mine = "# of my owls\n" + MAP
    (tmp_path / LABEL_MAP).write_text(mine)
    for _ in range(2):
        create(tmp_path)
        assert (tmp_path / LABEL_MAP).read_text() == mine
    create(tmp_path, MAP.replace("owl", "hen"))
    assert "hen" in (tmp_path / LABEL_MAP).read_text()


def test_objects_of_another_program_are_refused_by_their_names():
    with refused("s3://b/run", "s3://b/run/checkpoints/9/model.pt"):
        refuse_other_objects("s3://b/run", ["a.txt", "checkpoints/9/model.pt"])
    refuse_other_objects("s3://b/run", ["data/train.record", ".writer/000001", "p.config"])
    refuse_other_objects("s3://b/run", [EXPERIMENT, VERSIONS, "checkpoints/9/params.npz"])

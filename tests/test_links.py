"""Nothing is written, emptied or deleted through links in untrusted folders."""

import errno
import os
import shutil
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from stillbox.api import evaluate, export
from stillbox.checkpoints.array_files import write_npz
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.tf1 import write_tf1_checkpoint
from stillbox.errors import UserError
from stillbox.evaluation.report import write_report
from stillbox.experiment.resolve import changed
from stillbox.experiment.schema import Experiment
from stillbox.predicting.files import json_lines, write_list
from stillbox.predicting.video import VideoFile
from stillbox.profiling.profiler import StepProfiler
from stillbox.records.files import (
    append_file,
    create_file,
    make_folder,
    open_in_place,
    refuse_links,
    remove_tree,
    write_whole,
)
from stillbox.records.scenes import write_scenes
from stillbox.records.tfrecord import sharded_writer, tfrecord_writer
from stillbox.training.summaries import Summaries
from stillbox.training.watching import CheckpointWatcher, WatchPolicy

PRECIOUS = b"what must not be lost"
LINKS = ("symbolic", "hard", "dangling")
REFUSED = "nothing is written there"


class Outside:
    """A folder beside the folder of the test; its content must stay as it is."""

    def __init__(self, folder):
        self.folder, self.file = folder / "home", folder / "home/file"
        (self.folder / "inner").mkdir(parents=True)
        self.file.write_bytes(PRECIOUS)
        (self.folder / "inner/file").write_bytes(PRECIOUS)

    def link(self, path, kind):
        """Makes a link of a name in the folder of somebody else."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            path.unlink()
        if kind == "hard":
            path.hardlink_to(self.file)
        else:
            target = {"symbolic": self.file, "dangling": self.folder / "new", "folder": self.folder}
            path.symlink_to(target[kind])

    def check(self):
        names = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}
        assert names == {"file", "inner", "inner/file"}
        assert self.file.read_bytes() == PRECIOUS
        assert (self.folder / "inner/file").read_bytes() == PRECIOUS


@pytest.fixture
def outside(tmp_path):
    outside = Outside(tmp_path)
    yield outside
    outside.check()


def test_a_new_file_takes_the_place_of_a_link(tmp_path, outside):
    for kind in LINKS:
        outside.link(tmp_path / kind, kind)
        with create_file(tmp_path / kind) as file:
            file.write(b"new")
        assert (tmp_path / kind).read_bytes() == b"new"
        assert not (tmp_path / kind).is_symlink()


def test_a_file_is_appended_to_only_where_it_lies(tmp_path, outside):
    for kind in LINKS:
        outside.link(tmp_path / kind, kind)
        with pytest.raises(UserError, match=REFUSED):
            append_file(tmp_path / kind)
    for text in (b"a", b"b"):
        with append_file(tmp_path / "own") as file:
            file.write(text)
    assert (tmp_path / "own").read_bytes() == b"ab"


@pytest.mark.timeout(20)
def test_a_pipe_is_neither_waited_for_nor_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=REFUSED):
        open_in_place(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises((UserError, OSError)) as caught:
        append_file(tmp_path / "pipe")
    assert isinstance(caught.value, UserError) or caught.value.errno == errno.ENXIO
    with pytest.raises(IsADirectoryError):
        append_file(tmp_path)


def test_folders_are_made_without_links_below_the_named_one(tmp_path, outside):
    named = tmp_path / "named"
    (tmp_path / "real").mkdir()
    named.symlink_to(tmp_path / "real")
    assert make_folder(named / "a/b", below=named).is_dir()
    (named / "a/link").symlink_to(outside.folder)
    (named / "a/nowhere").symlink_to(outside.folder / "new")
    for place in ("a/link", "a/link/x", "a/nowhere", "a/nowhere/x", "a/../../home"):
        with pytest.raises(UserError, match=REFUSED):
            make_folder(named / place, below=named)
    # What lies elsewhere was named by the user.
    refuse_links(outside.folder, below=named)
    with pytest.raises(UserError, match=REFUSED):
        write_whole(named / "a/link/file", b"new", below=named)


def test_of_a_link_only_the_link_is_removed(tmp_path, outside):
    for kind in ("folder", "symbolic", "dangling"):
        outside.link(tmp_path / kind, kind)
        remove_tree(tmp_path / kind)
        assert not os.path.lexists(tmp_path / kind)
    tree = tmp_path / "tree"
    outside.link(tree / "deep/link", "folder")
    remove_tree(tree)
    assert not tree.exists()


WORK = [
    "experiment.yaml",
    ".experiment.yaml.unfinished",
    "label_map.pbtxt",
    ".label_map.pbtxt.unfinished",
    "versions.json",
    ".versions.json.unfinished",
    "best.json",
    ".best.json.unfinished",
    ".lock",
    "metrics.jsonl",
    ".metrics.jsonl.unfinished",
]
FOLDERS = [
    "checkpoints",
    "tensorboard",
    "checkpoints/.unfinished-2",
    "checkpoints/.deleted-1",
    "checkpoints/1",
    "checkpoints/2",
]


def run(directory):
    """Does what training does in its model directory: two checkpoints, of which one is kept."""
    arrays = {"params": {"a": np.ones(3, np.float32)}}
    writing = ModelDirectory.create(
        directory, experiment="name: x\n", label_map="", versions={}, keep=1
    )
    with closing(writing):
        for step in (2, 3):
            with suppress(FileExistsError):
                writing.save(step, arrays, {})
        writing.mark_best(3, "AP", 0.5)
        with closing(Summaries(directory, from_step=0)) as summaries:
            summaries.metrics(3, {"loss": 1.0})
            summaries.evaluation(3, {"AP": 0.5}, {})


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in WORK for kind in LINKS] + [(name, "folder") for name in FOLDERS],
)
def test_training_writes_through_no_link_of_a_model_directory(tmp_path, outside, name, kind):
    outside.link(tmp_path / "model" / name, kind)
    try:
        run(tmp_path / "model")
    except UserError as error:
        assert Path(name).name in str(error)
    else:
        assert not (tmp_path / "model" / name).is_symlink()
        assert (tmp_path / "model/checkpoints/3/params.npz").is_file()


def test_a_model_directory_may_be_a_link_itself(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "model").symlink_to(tmp_path / "real")
    run(tmp_path / "model")
    assert (tmp_path / "real/checkpoints/3/params.npz").is_file()


def test_event_files_are_not_appended_to_a_link(tmp_path, outside, monkeypatch):
    monkeypatch.setattr("stillbox.training.loggers.time", SimpleNamespace(time=lambda: 7.0))
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    outside.link(tmp_path / "model/tensorboard/events.out.tfevents.7.host", "symbolic")
    with pytest.raises(UserError, match=REFUSED):
        Summaries(tmp_path / "model", from_step=0)


def test_the_folder_of_a_tracker_is_no_link(tmp_path, outside):
    (tmp_path / "model").mkdir()
    outside.link(tmp_path / "model/wandb", "folder")
    settings = changed(Experiment(), {"train.loggers": ["wandb"]})
    with pytest.raises(UserError, match=REFUSED):
        Summaries(tmp_path / "model", from_step=0, experiment=settings)


def test_other_weights_replace_a_link(tmp_path, outside):
    arrays = {"a": np.ones(3, np.float32)}
    for name in ("w.npz", ".m.data-00000-of-00001.unfinished", ".m.index.unfinished", "m.index"):
        outside.link(tmp_path / "out" / name, "symbolic")
    write_npz(tmp_path / "out/w.npz", arrays)
    write_tf1_checkpoint(tmp_path / "out/m", arrays)
    assert not (tmp_path / "out/m.index").is_symlink()


def report(directory):
    figures = SimpleNamespace(names={}, shapes=SimpleNamespace(side=None, ratio=None))
    pictures = [SimpleNamespace(picture=np.zeros((8, 8, 3), np.uint8))]
    scores = SimpleNamespace(coco=None)
    content = SimpleNamespace(analysis=figures, pictures=pictures, scores=scores)
    write_report(content, directory)


@pytest.fixture
def empty_report(monkeypatch):
    module = "stillbox.evaluation.report"
    monkeypatch.setattr(f"{module}._draw", lambda report: {"loss": "a figure"})
    monkeypatch.setattr(f"{module}.render_page", lambda report, drawn: "<html>")
    monkeypatch.setattr("stillbox.evaluation.charts.figure_svg", lambda figure, name: "")
    monkeypatch.setattr("stillbox.evaluation.charts.figure_png", lambda figure, numbers: b"")
    monkeypatch.setattr("stillbox.evaluation.figures_files.figures", lambda analysis: {})
    for table in ("classes", "curves", "confusion", "mistakes", "sizes"):
        monkeypatch.setattr(f"stillbox.evaluation.figures_files._{table}", lambda analysis: [])


@pytest.mark.parametrize("folder", ["curves", "pictures", "csv"])
def test_a_report_has_its_own_folders(tmp_path, outside, empty_report, folder):
    outside.link(tmp_path / "out" / folder, "folder")
    with pytest.raises(UserError, match=REFUSED):
        report(tmp_path / "out")


def test_files_of_a_report_replace_links(tmp_path, outside, empty_report):
    names = ("report.html", "report.json", "csv/classes.csv", "curves/loss.png", "pictures/001.jpg")
    for name in names:
        outside.link(tmp_path / "out" / name, "symbolic")
    report(tmp_path / "out")
    assert not any((tmp_path / "out" / name).is_symlink() for name in names)


def test_results_of_a_model_are_not_written_through_a_link(tmp_path, outside, trained_once):
    """The folders that nobody names: `evaluation`, `export/FORMAT` and the folder of a step."""
    model = shutil.copytree(trained_once, tmp_path / "model")
    shutil.rmtree(model / "evaluation", ignore_errors=True)
    outside.link(model / "evaluation", "folder")
    with pytest.raises(UserError, match=REFUSED) as caught:
        evaluate(model)
    assert caught.value.where == str(model / "evaluation")
    for name in ("export", "export/stablehlo"):
        outside.link(model / name, "folder")
        with pytest.raises(UserError, match=REFUSED) as caught:
            export(model, format="stablehlo", overwrite=True)
        assert caught.value.where == str(model / name)
        (model / name).unlink()


def test_scores_of_each_checkpoint_are_not_written_through_a_link(
    tmp_path, outside, trained_once, experiment, monkeypatch
):
    monkeypatch.setattr("stillbox.training.watching.score_dataset", lambda *a, **k: None)
    monkeypatch.setattr("stillbox.training.watching.score_program", Program)
    outside.link(tmp_path / "out/1", "folder")
    watcher = CheckpointWatcher(
        experiment("model.postprocessing.nms.score_threshold=0.001"),
        trained_once,
        tmp_path / "out",
        WatchPolicy(existing=True),
        say=lambda line: None,
    )
    with pytest.raises(UserError, match=REFUSED) as caught:
        watcher.run()
    assert caught.value.where == str(tmp_path / "out/1")


def test_scores_beside_the_checkpoints_are_not_written_through_a_link(
    tmp_path, outside, trained_once, experiment
):
    model = shutil.copytree(trained_once, tmp_path / "model")
    shutil.rmtree(model / "evaluation", ignore_errors=True)
    outside.link(model / "evaluation", "folder")
    settings = experiment("model.postprocessing.nms.score_threshold=0.001")
    watcher = CheckpointWatcher(settings, model, model / "evaluation", WatchPolicy(existing=True))
    with pytest.raises(UserError, match=REFUSED):
        watcher.run()


class Program:
    """Stands for a compiled program."""

    def __init__(self, experiment):
        pass

    def bind(self, params, stats):
        return None


def test_a_trace_is_not_written_through_a_link(tmp_path, outside):
    for name in ("plugins", "plugins/profile"):
        outside.link(tmp_path / "out" / name, "folder")
        profiler = StepProfiler(SimpleNamespace(first=1, last=1), tmp_path / "out")
        with profiler, pytest.raises(UserError, match=REFUSED):
            list(profiler.mark(iter([1, 2])))
        (tmp_path / "out" / name).unlink()


def test_predictions_replace_links(tmp_path, outside):
    names = ("p.jsonl", ".p.json.partial", "p.json", ".v.partial.webm", "v.webm")
    for name in names:
        outside.link(tmp_path / "out" / name, "symbolic")
    out = tmp_path / "out"
    with json_lines(out / "p.jsonl") as append:
        append({"a": 1})
        # A line is in the file at once.
        assert (out / "p.jsonl").read_text() == '{"a": 1}\n'
    write_list(out / "p.jsonl", out / "p.json")
    with VideoFile(out / "v.webm", 10.0) as video:
        video.write(np.zeros((32, 32, 3), np.uint8), 0.0)
    assert not any((out / name).is_symlink() for name in names)
    assert (out / "v.webm").stat().st_size


def test_records_replace_links(tmp_path, outside):
    out = tmp_path / "out"
    names = (".a.record.partial", "a.record")
    for name in names:
        outside.link(out / name, "symbolic")
    with tfrecord_writer(out / "a.record") as write:
        write(b"x")
    outside.link(out / ".t.stillbox-partial", "folder")
    with suppress(UserError, OSError), sharded_writer(out, "t") as write:
        write(b"x")
    assert not any((out / name).is_symlink() for name in names)


@pytest.mark.parametrize("name", ["images", "annotations", "images/train"])
def test_scenes_have_their_own_folders(tmp_path, outside, name):
    outside.link(tmp_path / "out" / name, "folder")
    with pytest.raises(UserError) as caught:
        write_scenes(tmp_path / "out", train=1, val=1, seed=1)
    assert caught.value.where == str(tmp_path / "out" / name)

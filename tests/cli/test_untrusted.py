"""What belongs to others, in every verb: names that a terminal would act on, model directories."""

import csv
import io
import json
import os
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from stillbox.api import evaluate, export, load
from stillbox.checkpoints.saving import save_weights
from stillbox.cli.main import main
from stillbox.errors import UserError
from stillbox.experiment.yaml_config import from_yaml
from stillbox.exporting.export import check_free
from stillbox.exporting.manifest import is_export
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import tfrecord_writer
from tests import shared_programs
from tests.checkpoints.detectors import reseal
from tests.helpers import refused
from tests.small import small_overrides

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")

# Clear the screen, ring, the same in eight bits, write to the left, no width, a line of its own.
HOSTILE = "\x1b[2J\x07\x9b2J\u202e\u200b\nstillbox: all is well\r\x7f"
SPELT = r"\x1b[2J\x07\x9b2J\u202e\u200b\nstillbox: all is well\r\x7f"
# Latin-1, which is no UTF-8.
BYTES = os.fsdecode(b"caf\xe9")
# A person types the names of folders, and breaks no line.
FOLDER = HOSTILE.replace("\n", "")


def option(field, value):
    """Returns `--set` with a value in quotes."""
    return ["--set", f"{field}={json.dumps(value)}"]


@pytest.fixture(scope="module")
def world(scenes, tmp_path_factory):
    """A folder with records, photographs and a model, all of them with hostile names."""
    folder = tmp_path_factory.mktemp("names") / FOLDER
    folder.mkdir()
    plain = LabelMap.from_file(scenes / "label_map.pbtxt")
    hostile = LabelMap.from_names([f"={HOSTILE}{item.id}" for item in plain])
    (folder / "map.pbtxt").write_text(hostile.to_text())
    source = ExampleSource([f"{scenes}/val.record-*"], plain, bad_records="drop")
    with tfrecord_writer(folder / f"{HOSTILE}.record") as write:
        for index in range(len(source)):
            name = f"{HOSTILE}{index}.jpg"
            example = replace(source.example(index), filename=name, image_id=name)
            write(serialize_example(example, hostile))
        write(b"no record")
    (folder / "photos").mkdir()
    for name, photo in zip((HOSTILE, BYTES), (scenes / "images/val").iterdir(), strict=False):
        shutil.copy(photo, folder / f"photos/{name}.jpg")
    (folder / f"photos/{HOSTILE}bad.jpg").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def training(world):
    """What training a model on the records prints."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out):
        shared_programs.share(patch)
        assert main(["train", *small(world), "--model-dir", str(world / "model")]) == 0
    return out.getvalue()


@pytest.fixture
def told(capfd, here, monkeypatch):
    """The function from a command line to its code and output, which is printable text."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words):
        capfd.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = end.code
        out, err = capfd.readouterr()
        assert [c for c in out + err if not c.isprintable() and c != "\n"] == []
        lines = (out + err).splitlines()
        assert [line for line in lines if line.startswith("stillbox: all is well")] == []
        assert "Traceback" not in err
        return code, out, err

    return run


def records_options(world):
    """Returns what makes a config train and score on the hostile records."""
    words = []
    for part in ("train", "evaluation"):
        words += option(f"data.{part}.paths", [f"{world}/{HOSTILE}.record"])
        words += option(f"data.{part}.label_map", f"{world}/map.pbtxt")
    return [*words, "--set", "data.bad_records=drop"]


def small(world):
    everything = small_overrides(
        Path("unused"),
        # The programs of `trained_once`.
        "train.steps=2",
        "train.checkpoint_every=1",
        "train.optimizer.schedule.learning_rate=0.1",
        "model.postprocessing.nms.score_threshold=0.001",
    )
    return [
        "demo_scenes",
        *(word for override in everything for word in ("--set", override)),
        *records_options(world),
    ]


def records(world, *words):
    return [*words, world / f"{HOSTILE}.record", "--label-map", world / "map.pbtxt"]


VERBS = {
    "data check": (1, lambda w: ["data", "check", w / f"{HOSTILE}.record"]),
    "data check of classes": (1, lambda w: records(w, "data", "check")),
    "data stats": (0, lambda w: records(w, "data", "stats")),
    "data tile": (0, lambda w: [*records(w, "data", "tile"), "--tile", 99, "--output", FOLDER]),
    "data export": (0, lambda w: [*records(w, "data", "export", "coco"), "--output", FOLDER]),
    "data augmentations": (
        *(0, lambda w: ["data", "augmentations", *small(w), "--output", f"{FOLDER}.png"]),
    ),
    "data convert": (2, lambda w: ["data", "convert", w, "--output", FOLDER]),
    "check": (2, lambda w: ["check", *small(w)]),
    "check of a folder": (2, lambda w: ["check", w / "photos"]),
    "config": (0, lambda w: ["config", *small(w)]),
    "anchors": (0, lambda w: ["anchors", *small(w), "--output", FOLDER]),
    "train": (2, lambda w: ["train", *small(w), "--model-dir", w / "map.pbtxt"]),
    "evaluate": (0, lambda w: ["evaluate", w / "model", "--output", FOLDER]),
    "predict": (2, lambda w: ["predict", w / "model", w / "nothing"]),
    "export": (2, lambda w: ["export", w / "model", "--format", HOSTILE]),
    "serve": (2, lambda w: ["serve", w / "photos"]),
    "a verb": (2, lambda w: [HOSTILE]),
    "an option": (2, lambda w: ["doctor", f"--{FOLDER}"]),
    "a field": (2, lambda w: ["config", "demo_scenes", "--set", f"{HOSTILE}=1"]),
    "a module": (2, lambda w: ["config", "demo_scenes", "--import", f"{FOLDER}.py"]),
    "model_main": (
        2,
        lambda w: ["model_main", f"--pipeline_config_path={w}/none", "--model_dir=m"],
    ),
    "retinanet": (2, lambda w: ["retinanet", "--model_dir=m", f"--config_file={w}/none"]),
    "weights": (2, lambda w: ["weights", "get", HOSTILE]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_prints_what_a_terminal_would_act_on(world, training, told, verb):
    expected, words = VERBS[verb]
    code, out, err = told(*words(world))
    assert code == expected, out + err
    # Tables break lines, and rich leaves some characters out.
    assert "\\u202e" in re.sub(r"[\s│]", "", out + err)


def test_training_prints_no_such_character(training):
    assert [c for c in training if not c.isprintable() and c != "\n"] == []
    assert SPELT in training


def test_json_and_reports_keep_names_exactly(world, training, told):
    names = [f"={HOSTILE}{number}" for number in range(1, 7)]
    stats = json.loads(told(*records(world, "data", "stats"), "--json")[1])
    assert [entry["name"] for entry in stats["classes"]] == names
    assert told("evaluate", world / "model", "--output", "out")[0] == 0
    assert list(json.loads(Path("out/report.json").read_text())["per_class"]) == names
    with open("out/csv/classes.csv", newline="") as file:  # noqa: PTH123
        assert [row[0] for row in csv.reader(file)][1:] == [f"'{name}" for name in names]
    page = Path("out/report.html").read_text()
    assert SPELT.replace("\\n", "\n") in page
    assert not set(page) & {"\x1b", "\x9b", "\u202e", "\u200b"}


def test_a_config_with_such_names_reads_back(world, told):
    out = told("config", *small(world))[1]
    assert from_yaml(out, "it").data.train.paths == (f"{world}/{HOSTILE}.record",)


PROGRAM = f"jit_detect-{'0' * 64}-cache"


def change(model, pattern, text):
    """Edits the stored experiments of a model directory."""
    for path in model.rglob("experiment.yaml"):
        changed, count = re.subn(pattern, text, path.read_text(), flags=re.MULTILINE)
        assert count == 1, path
        path.write_text(changed)
    for manifest in model.rglob("checkpoint.json"):
        reseal(manifest.parent)


@pytest.fixture
def greedy(trained, tmp_path):
    """A model directory; its experiment names folders and services of the machine."""
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in (PROGRAM, "thesis-cache"):
        (victim / name).write_bytes(bytes(1000))
    settings = f"program_cache: {victim}\n  program_cache_gib: 1.0e-9"
    change(trained, "^devices:$", f"devices:\n  {settings}")
    change(trained, "^  pictures_directory: .*$", f"  pictures_directory: {victim}/shown")
    change(trained, "^  loggers: .*$", "  loggers: [wandb, mlflow]")
    change(trained, "^  workers: .*$", "  workers: 100000")
    return trained, victim


def state(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*")}


NAMES = "data.workers, train.loggers, evaluation.pictures_directory"


@pytest.mark.parametrize("step", ["best", "all"])
def test_a_stored_experiment_names_no_folder_of_the_machine(stillbox, greedy, tmp_path, step):
    model, victim = greedy
    before, cache = state(victim), jax.config.jax_compilation_cache_dir
    _, err = stillbox("evaluate", model, "--step", step, "--output", tmp_path / "out").ended()
    assert state(victim) == before
    assert jax.config.jax_compilation_cache_dir == cache
    assert re.search(r"note: .*: devices\.program_cache has no effect any more: STILLBOX_CAC", err)
    assert f"not taken from a stored experiment: {NAMES}; set them anew" in err
    assert "shown" not in err


def test_no_verb_takes_such_fields(greedy, tmp_path):
    model, victim = greedy
    before, said = state(victim), []
    loaded = load(model, say=said.append).backend.model.experiment
    assert loaded.train.loggers == ("tensorboard",)
    assert (loaded.data.workers, loaded.evaluation.pictures_directory) == (None, "")
    assert len([line for line in said if NAMES in line]) == 1
    save_weights(model, tmp_path / "w.npz")
    assert state(victim) == before


def both(model):
    (model / "export.json").write_text(json.dumps({"version": 1}))
    return model


@pytest.mark.parametrize(
    "use",
    [
        load,
        evaluate,
        lambda model: load(model, step="latest"),
        lambda model: load(model, runtime="stablehlo"),
        lambda model: export(model.parent / "model", output=model, overwrite=True),
        lambda model: check_free(model, overwrite=True),
    ],
)
def test_a_folder_is_an_export_or_a_model_directory(trained, use):
    both(trained)
    with pytest.raises(UserError, match=r"an export, which is a program, and a model directory"):
        use(trained)
    assert (trained / "checkpoints/2/params.npz").is_file()


@pytest.mark.parametrize("name", ["checkpoints", "best.json", "checkpoint.json"])
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_whatever_tells_a_model_directory_makes_an_export_doubtful(tmp_path, name, kind):
    assert is_export(both(tmp_path))
    path = tmp_path / name
    {"file": path.touch, "folder": path.mkdir, "link": lambda: path.symlink_to("absent")}[kind]()
    with refused(tmp_path, "export.json", name):
        is_export(tmp_path)


def test_the_refusal_is_one_sentence(refused, trained, scenes):
    message = refused("predict", both(trained), scenes / "images/val")
    assert message.count("\n") == 2
    assert "fix: move export.json" in message


def test_saved_weights_are_those_of_the_checkpoint(trained, tmp_path):
    """Reading weights runs no program, so that an export beside them does not matter."""
    assert save_weights(both(trained), tmp_path / "w.npz").files == (tmp_path / "w.npz",)

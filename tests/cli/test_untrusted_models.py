"""What a model directory of somebody else cannot do, whatever verb is given it."""

import json
import re

import jax
import pytest

from stillbox.api import evaluate, export, load
from stillbox.checkpoints.trained import save_weights
from stillbox.errors import UserError
from stillbox.exporting.export import check_free
from stillbox.exporting.manifest import is_export
from tests.checkpoints.manifests import reseal

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")

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
    """A model directory whose experiment names folders and services of the machine."""
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
    code, _, err = stillbox("evaluate", model, "--step", step, "--output", tmp_path / "out")
    assert code == 0, err
    assert state(victim) == before
    assert jax.config.jax_compilation_cache_dir == cache
    assert re.search(r"note: .*: devices\.program_cache has no effect any more: STILLBOX_CAC", err)
    assert f"not taken from a stored experiment: {NAMES}; --set sets them" in err
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
    with pytest.raises(UserError, match=f"it holds export.json and {name}"):
        is_export(tmp_path)


def test_the_refusal_is_one_sentence(refused, trained, scenes):
    message = refused("predict", both(trained), scenes / "images/val")
    assert message.count("\n") == 2
    assert "fix: move export.json" in message


def test_saved_weights_are_those_of_the_checkpoint(trained, tmp_path):
    """Reading weights runs no program, so that an export beside them does not matter."""
    assert save_weights(both(trained), tmp_path / "w.npz").files == (tmp_path / "w.npz",)

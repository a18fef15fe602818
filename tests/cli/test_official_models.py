"""The command lines of "Object Detection Models on TPU"."""

import json
from pathlib import Path

import pytest
import yaml

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.cli import official_models
from stillbox.cli.main import main
from stillbox.errors import UserError
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.experiment.params_dict import read_params
from stillbox.training import loop, watching
from stillbox.training.loop import Outcome

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")

# Ten layers, two levels, 64 pixels; everything else is what the parameters say.
SMALL = (
    "model.resizer={height: 64, width: 64, multiple: 16}",
    "model.backbone.depth=10",
    "model.neck={depth: 8, max_level: 4}",
    "model.anchors.max_level=4",
    "model.head={depth: 8, layers_before: 1}",
    "model.postprocessing.nms.score_threshold=0",
    # One schedule for runs of any length, and so one program.
    "train.optimizer.schedule={kind: constant, learning_rate: 0.01}",
    "evaluation.num_visualizations=0",
    "train.log_every=1",
    "train.checkpoint_every=2",
    "data.workers=0",
)
PATHS = """{{ type: retinanet, architecture: {{ num_classes: 7, use_bfloat16: False }},
    train: {{ total_steps: {steps}, train_batch_size: 4,
              train_file_pattern: {scenes}/train.record-* }},
    eval: {{ eval_batch_size: 4, eval_file_pattern: {scenes}/val.record-*, num_steps_per_eval: 2,
             min_eval_interval: 0 }} }}"""


@pytest.fixture
def params(scenes):
    """The function that writes the one line that the page has."""

    def write(steps=2):
        return " ".join(PATHS.format(scenes=scenes, steps=steps).split())

    return write


@pytest.fixture
def command(tmp_path):
    """The function that runs the script of the page in a small size."""

    def run(*flags):
        sets = [word for text in SMALL for word in ("--set", text)]
        return main(["main.py", f"--model_dir={tmp_path / 'run'}", *flags, *sets])

    return run


@pytest.fixture
def trained_with(monkeypatch):
    """Takes the place of training and remembers what it was called with."""
    seen = []

    def train(experiment, directory, origins, profile, hint):
        assert not hint  # the verb has no --minutes
        seen.append(experiment)
        return Outcome(step=1, reason="finished", scores=None)

    monkeypatch.setattr(loop, "train", train)
    return seen


def test_the_first_command_of_the_page(tmp_path, trained_with, capsys, much_memory):
    (tmp_path / "label_map.pbtxt").write_text("item { id: 1 name: 'owl' }")
    override = (
        "{ type: retinanet, train: { checkpoint: { path: resnet50.ckpt, prefix: resnet50/ }, "
        f"train_file_pattern: {tmp_path}/train-* }}, "
        f"eval: {{ val_json_file: val.json, eval_file_pattern: {tmp_path}/val-* }} }}"
    )
    words = ["main.py", "--use_tpu=True", "--tpu=my-tpu", "--num_cores=8", "--mode=train"]
    words += [f"--model_dir={tmp_path / 'run'}", "--eval_after_training=True"]
    assert main([*words, f"--params_override={override}"]) == 0
    (experiment,) = trained_with
    assert experiment.model.backbone.depth == 50
    assert experiment.train.fine_tune.checkpoint == "resnet50.ckpt"
    assert experiment.data.train.paths == (f"{tmp_path}/train-*",)
    assert experiment.data.evaluation.annotations == "val.json"
    assert experiment.train.evaluate_every == 0  # once, at the end
    notes = capsys.readouterr().err
    assert "--tpu, --num_cores: all devices that JAX finds are used" in notes
    kept = tmp_path / "run/params.yaml"
    assert yaml.safe_load(kept.read_text())["train"]["total_steps"] == 22500
    assert read_params(config_file=kept).experiment.train.steps == 22500


def test_params_override_comes_after_the_config_file(tmp_path, trained_with, params):
    config = tmp_path / "my_retinanet.yaml"
    config.write_text("type: 'retinanet'\ntrain:\n  total_steps: 7\n  train_batch_size: 3\n")
    words = ["main.py", f"--model_dir={tmp_path / 'run'}", f"--config_file={config}"]
    assert main([*words, f"--params_override={params(steps=9)}"]) == 0
    (experiment,) = trained_with
    assert (experiment.train.steps, experiment.train.batch_size) == (9, 4)
    assert experiment.data.evaluation.paths == ()  # without --eval_after_training


def test_training_scoring_and_predicting_follow_one_another(command, params, tmp_path, capsys):
    one_line = f"--params_override={params()}"
    run = tmp_path / "run"
    assert command(one_line) == 0
    assert ModelDirectory.open(run).steps() == (2,)
    assert not read_history(run / HISTORY).evaluations

    assert command(one_line, "--mode=eval") == 0
    ((step, _),) = read_history(run / "eval" / HISTORY).evaluations
    assert step == 2

    few = one_line.replace("type: retinanet", "type: retinanet, postprocess: { max_total_size: 3 }")
    assert command(few, "--mode=predict") == 0
    detections = json.loads((run / "predictions.json").read_text())
    assert 0 < len(detections) <= 3 * 6
    assert all(
        set(detection) == {"image_id", "category_id", "bbox", "score"} for detection in detections
    )
    assert f"step 2: {len(detections)} detections in 6 images" in capsys.readouterr().out
    other = one_line.replace("type: retinanet", "type: retinanet, anchor: { num_scales: 1 }")
    assert command(other, "--mode=predict") == 2
    assert "the checkpoints belong to another model" in capsys.readouterr().err

    # Further steps go on from there.
    words = (f"--params_override={params(steps=4)}", "--mode=train_and_eval")
    assert command(*words) == 0
    assert [step for step, _ in read_history(run / HISTORY).evaluations] == [2, 4]


def test_a_refused_resumption_leaves_the_parameters(tmp_path, params, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "experiment.yaml").touch()
    kept = tmp_path / "params.yaml"
    kept.write_text("before")
    words = ["main.py", f"--model_dir={tmp_path}", f"--params_override={params()}"]

    def refuse(*arguments, **options):
        raise UserError("another model")

    monkeypatch.setattr(official_models, "run_training", refuse)
    assert main(words) == 2
    assert kept.read_text() == "before"
    monkeypatch.setattr(official_models, "run_training", lambda *arguments, **options: 0)
    assert main(words) == 0
    assert read_params(config_file=kept).experiment.train.steps == 2


def test_parameters_that_the_user_wrote_are_not_replaced(tmp_path, params, monkeypatch, capsys):
    monkeypatch.setattr(official_models, "run_training", lambda *arguments, **options: 0)
    mine = tmp_path / "params.yaml"
    mine.write_text("type: retinanet  # mine\n")
    words = ["main.py", f"--model_dir={tmp_path}"]
    assert main([*words, f"--params_override={params()}"]) == 2
    assert "params.yaml: this file would be replaced, and no run" in capsys.readouterr().err
    assert mine.read_text() == "type: retinanet  # mine\n"
    mine.unlink()
    # A run replaces files of an attempt that did not begin.
    for steps in (2, 4):
        assert main([*words, f"--params_override={params(steps=steps)}"]) == 0
        assert read_params(config_file=mine).experiment.train.steps == steps


def test_a_run_of_the_original_is_refused_before_its_parameters(tmp_path, params, capsys):
    for name in ("model.ckpt-9.index", "params.yaml"):
        (tmp_path / name).write_bytes(b"theirs")
    assert main(["main.py", f"--model_dir={tmp_path}", f"--params_override={params()}"]) == 2
    assert f"its newest checkpoint is {tmp_path}/model.ckpt-9," in capsys.readouterr().err
    assert (tmp_path / "params.yaml").read_bytes() == b"theirs"


@pytest.mark.slow
def test_evaluation_may_begin_before_training(command, params, tmp_path, monkeypatch):
    def begin(seconds):
        monkeypatch.undo()
        assert command(f"--params_override={params()}") == 0

    monkeypatch.setattr(watching.time, "sleep", begin)
    assert command(f"--params_override={params()}", "--mode=eval") == 0
    assert [s for s, _ in read_history(tmp_path / "run/eval" / HISTORY).evaluations] == [2]


def test_flags_that_the_original_never_reads_are_warned_about(
    trained_with, params, tmp_path, capsys
):
    words = ["main.py", f"--model_dir={tmp_path}", f"--params_override={params()}"]
    assert main([*words, "--train_batch_size=64", "--iterations_per_loop", "100"]) == 0
    warned = capsys.readouterr().err
    assert "warning: --train_batch_size has no effect, as in the original" in warned
    assert "train.train_batch_size" in warned
    assert trained_with[0].train.batch_size == 4


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--params_override={train: {total_step: 1}}"], "total_steps"),
        (["--params_override={type: mask_rcnn}"], "mask_rcnn"),
        (["--model=shapemask"], "shapemask"),
        (["--config_file=spinet49_retinanet.yaml"], "spinenet49_retinanet"),
        (["--mode=evaluate"], "evaluate"),
    ],
)
def test_contradictory_flags_are_refused(command, capsys, flags, expected):
    try:
        code = command(*flags)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert expected in capsys.readouterr().err


def test_a_dictionary_has_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several are for experiments of Model Garden."""
    words = ("--config_file=a.yaml", "--config_file=b.yaml")
    places = (f"--export_dir={tmp_path / 'e'}", f"--checkpoint_path={tmp_path}")
    assert main(["export_saved_model", *places, *words]) == 2
    assert "several files" in capsys.readouterr().err

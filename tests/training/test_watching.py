"""Scoring the checkpoints of another process's run as they appear."""

import json
import shutil
from types import SimpleNamespace

import jax
import pytest

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.devices.chips import figures_of
from stillbox.errors import UserError
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.evaluation.program import DetectProgram
from stillbox.training import reporting as module
from stillbox.training import watching
from stillbox.training.loop import train
from stillbox.training.reporting import Forecast, forecast
from stillbox.training.watching import CheckpointWatcher, WatchPolicy
from tests.helpers import refused
from tests.small import small_experiment

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")

FIELDS = ("train.checkpoint_every=1", "train.steps=3", "evaluation.num_visualizations=1")


@pytest.fixture(scope="module")
def trained_once(scenes, tmp_path_factory):
    """A model directory with the checkpoints of steps 1, 2 and 3."""
    directory = tmp_path_factory.mktemp("watched") / "model"
    train(small_experiment(scenes, *FIELDS, evaluated=False), directory)
    return directory


@pytest.fixture
def coming(trained, monkeypatch):
    """The function that hides checkpoints; one or more come back with each look at the folder."""

    def hide(*arrivals):
        store = trained.parent / "to come"
        for step in (step for together in arrivals for step in together):
            shutil.move(trained / f"checkpoints/{step}", store / str(step))
        queue = list(arrivals)

        def arrive(seconds):
            assert queue, "nothing more is to come"
            for step in queue.pop(0):
                shutil.move(store / str(step), trained / f"checkpoints/{step}")

        monkeypatch.setattr(watching.time, "sleep", arrive)

    return hide


@pytest.fixture
def compiled(monkeypatch, shared_programs):
    """A list with an entry for each program that is compiled from now on."""
    shared_programs.forget()
    entries, lower = [], DetectProgram.lower
    monkeypatch.setattr(DetectProgram, "lower", lambda self: entries.append(1) or lower(self))
    return entries


@pytest.fixture
def watch(experiment, trained):
    """The function that watches `trained` and returns the steps that were scored and the lines."""

    def run(*overrides, checkpoints=trained, said=None, on_scores=lambda *scored: None, **patience):
        said = [] if said is None else said
        settings = experiment(*FIELDS, *overrides)
        output = trained.parent / "out"
        watcher = CheckpointWatcher(
            settings, checkpoints, output, WatchPolicy(**patience), said.append, on_scores
        )
        return watcher.run(), said

    return run


def out(trained):
    return trained.parent / "out"


def recorded(trained):
    """Returns the steps in the history of the scores."""
    return [step for step, _ in read_history(out(trained) / HISTORY).evaluations]


def test_every_new_checkpoint_is_scored(watch, trained, coming, compiled):
    coming([2], [3])
    steps, said = watch(last_step=3)
    assert steps == (1, 2, 3)
    assert compiled == [1]
    waiting = [line for line in said if line.startswith("waiting")]
    assert waiting == [
        f"waiting for a checkpoint after step {n} in {trained}; step 3 is the last; Ctrl-C ends"
        for n in (1, 2)
    ]
    assert said[0].startswith("step 1: AP ")
    assert said[-1] == f"3 checkpoints scored; results in {out(trained)}"
    for step in (1, 2, 3):
        metrics = json.loads((out(trained) / f"{step}/metrics.json").read_text())
        assert metrics["weights"] == f"{trained}, step {step}"
        assert (out(trained) / f"{step}/report.html").is_file()
    assert recorded(trained) == [1, 2, 3]
    (events,) = (out(trained) / "tensorboard").iterdir()
    assert b"DetectionBoxes_Precision/mAP@.50IOU" in events.read_bytes()


@pytest.mark.parametrize(
    ("come_together", "interval", "scored"),
    [
        ((2, 3), 0.0, (1, 2, 3)),
        # Only the newest of the checkpoints at the start, or of an interval, is scored.
        ((), 0.0, (3,)),
        ((2, 3), 180.0, (1, 3)),
    ],
)
def test_several_new_checkpoints_are_scored_in_order(
    watch, coming, come_together, interval, scored
):
    if come_together:
        coming(come_together)
    assert watch(last_step=3, interval=interval)[0] == scored


def test_a_scored_checkpoint_is_not_scored_again(watch, trained, coming):
    coming([3])
    assert watch(last_step=2)[0] == (2,)
    assert watch(last_step=3)[0] == (3,)
    steps, said = watch(last_step=3)
    assert (steps, said) == ((), [f"0 checkpoints scored; results in {out(trained)}"])
    assert recorded(trained) == [2, 3]


def test_once_scores_the_newest_and_ends(watch, trained):
    assert watch(once=True)[0] == (3,)
    steps, said = watch(once=True)
    assert steps == ()
    assert said[0] == f"step 3 is scored already: {out(trained)}/3"


@pytest.mark.parametrize("options", [{"once": True}, {"last_step": 3}])
def test_later_steps_of_an_older_run_do_not_count(watch, trained, options):
    out(trained).mkdir()
    (out(trained) / HISTORY).write_text('{"step": 900, "evaluation": {"AP": 0.5}}\n')
    assert watch(**options)[0] == (3,)


def test_existing_scores_all_checkpoints_in_order_without_waiting(
    watch, trained, monkeypatch, compiled
):
    given = []
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: pytest.fail("it waits"))
    steps, said = watch(existing=True, on_scores=lambda *scored: given.append(scored))
    assert steps == (1, 2, 3)
    assert compiled == [1]
    assert [line.split(":")[0] for line in said[:3]] == ["step 1", "step 2", "step 3"]
    history = read_history(out(trained) / HISTORY).evaluations
    assert [(step, scores.summary) for step, scores in given] == list(history)


def test_existing_scores_every_unscored_checkpoint(watch, trained, coming):
    coming([2])
    assert watch(existing=True)[0] == (1, 3)
    (trained.parent / "to come/2").rename(trained / "checkpoints/2")
    steps, said = watch(existing=True)
    assert steps == (2,)
    assert said[0] == f"step 1 is scored already: {out(trained)}/1"
    assert recorded(trained) == [1, 2, 3]


def test_checkpoints_that_appear_during_scoring_are_scored_too(watch, trained, coming):
    coming([3])

    def train_on(step, scores):
        if step == 2:
            (trained.parent / "to come/3").rename(trained / "checkpoints/3")

    assert watch(existing=True, on_scores=train_on)[0] == (1, 2, 3)


def test_the_checkpoint_of_step_0_is_skipped(watch, trained):
    (trained / "checkpoints/1").rename(trained / "checkpoints/0")
    assert watch(existing=True)[0] == (2, 3)
    for step in (2, 3):
        shutil.rmtree(trained / f"checkpoints/{step}")
    with pytest.raises(UserError, match="there is no checkpoint to score"):
        watch(existing=True)


def test_scores_of_other_settings_do_not_mix(watch, trained):
    watch(once=True)
    with pytest.raises(UserError, match=r"other settings:\n    evaluation.max_examples: 0 -> 5"):
        watch("evaluation.max_examples=5", existing=True)
    # Settings without an effect on scores may change.
    assert watch("evaluation.num_visualizations=0", "train.steps=9", existing=True)[0] == (1, 2)


def test_once_does_not_wait_for_a_run_that_has_not_begun(watch, tmp_path):
    with pytest.raises(UserError, match="no such model directory"):
        watch(checkpoints=tmp_path / "later", once=True)


def test_a_run_that_has_not_begun_is_waited_for(watch, trained, tmp_path, monkeypatch):
    later = tmp_path / "later"
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: trained.rename(later))
    steps, said = watch(checkpoints=later, last_step=3)
    assert steps == (3,)
    assert said[0].startswith(f"waiting for the first checkpoint in {later}")


def test_the_wait_ends_after_its_timeout(watch, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        watching.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    steps, said = watch(last_step=9, timeout=12.0, poll=5.0)
    assert steps == (3,)
    assert now[0] == 15.0
    assert "no new checkpoint in 12 s" in said


def test_ctrl_c_ends_the_wait_and_keeps_what_was_scored(watch, trained, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", interrupt)
    said = []
    with pytest.raises(KeyboardInterrupt):
        watch(said=said)
    assert said[-1] == f"stopped after 1 checkpoint; results in {out(trained)}"
    assert recorded(trained) == [3]


@pytest.fixture
def vanishing(trained, monkeypatch):
    """Step 2 is removed by training while it is being read."""
    load = watching.load_trained

    def lose(directory, *, step, overrides):
        if step == 2:
            shutil.rmtree(trained / "checkpoints/2")
        return load(directory, step=step, overrides=overrides)

    monkeypatch.setattr(watching, "load_trained", lose)


def test_a_vanished_checkpoint_is_skipped(watch, coming, vanishing):
    coming([2, 3])
    steps, said = watch(last_step=3)
    assert steps == (1, 3)
    assert "step 2 was removed before it could be read" in said


def test_the_number_of_vanished_checkpoints_is_limited(watch, coming, vanishing):
    coming([2, 3])
    with refused("model", 2):
        watch(last_step=3, retries=0)


def test_a_damaged_checkpoint_is_an_error(watch, trained):
    (trained / "checkpoints/3/checkpoint.json").unlink()
    with pytest.raises(UserError, match="not a checkpoint of stillbox"):
        watch(last_step=3)


def test_checkpoints_of_another_model_are_refused_and_other_thresholds_are_not(watch):
    with pytest.raises(UserError, match=r"another model(.|\n)*model.head.dropout: False -> True"):
        watch("model.head.dropout=true", once=True)
    assert watch("model.postprocessing.nms.score_threshold=0.3", once=True)[0] == (3,)


@pytest.mark.parametrize("use_ema", ["true", "false"])
def test_the_average_is_scored_if_the_config_says_so(watch, monkeypatch, use_ema):
    def load(directory, *, step, overrides):
        assert overrides == {
            "evaluation.use_ema": use_ema == "true",
            "evaluation.precision": "float32",
        }
        raise UserError("seen")

    monkeypatch.setattr(watching, "load_trained", load)
    with pytest.raises(UserError, match="seen"):
        watch(f"evaluation.use_ema={use_ema}", once=True)


def test_the_folder_of_the_checkpoints_is_accepted_too(watch, trained):
    assert watch(checkpoints=trained / "checkpoints", once=True)[0] == (3,)


def test_the_history_of_the_training_is_not_that_of_the_scores(experiment, tmp_path):
    model = tmp_path / "model"
    (model / "checkpoints").mkdir(parents=True)
    (model / "experiment.yaml").write_text("name: x\n")
    (tmp_path / "link").symlink_to("model")
    with pytest.raises(UserError, match="has the history of the training itself"):
        CheckpointWatcher(
            experiment(*FIELDS), model, tmp_path / "link", WatchPolicy(existing=True)
        ).run()
    assert not (model / HISTORY).exists()


def test_other_folders_are_refused_with_a_remedy(watch, tmp_path):
    tf1 = tmp_path / "tf1"
    tf1.mkdir()
    (tf1 / "model.ckpt-7.index").touch()
    with pytest.raises(UserError, match=f"with weights={tf1}/model.ckpt-7$"):
        watch(checkpoints=tf1)
    holiday = tmp_path / "holiday"
    holiday.mkdir()
    (holiday / "photo.jpg").touch()
    with pytest.raises(UserError, match="not a model directory"):
        watch(checkpoints=holiday)


def test_a_folder_with_results_alone_may_still_become_a_model_directory(watch, tmp_path):
    early = tmp_path / "early"
    (early / "eval_validation_data").mkdir(parents=True)
    assert watch(checkpoints=early, timeout=0.0)[0] == ()


def test_records_are_required(watch):
    with refused("data.evaluation.paths"):
        watch("data.evaluation.paths=[]")


def test_training_in_the_same_folder_is_not_disturbed(experiment, trained):
    settings = experiment(*FIELDS)
    output = trained / "eval_validation_data"
    CheckpointWatcher(settings, trained, output, WatchPolicy(once=True), lambda line: None).run()
    longer = experiment(*FIELDS, "train.steps=4", evaluated=False)
    assert train(longer, trained).step == 4
    assert ModelDirectory.open(trained).latest_step() == 4


# ---- The time of a step before the first one, from its costs -------------------------------------


class Compiled:
    """A program of a trillion operations and 100 GB of traffic, or of unknown costs."""

    def __init__(self, costs):
        self.costs = costs

    def cost_analysis(self):
        return self.costs


STEP = Compiled({"flops": 1e12, "bytes accessed": 1e11})


def on(monkeypatch, platform, kind, cores=4):
    device = SimpleNamespace(platform=platform, device_kind=kind)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    monkeypatch.setattr(module, "own_processors", lambda: cores)


def test_a_cpu_is_as_fast_as_its_cores(monkeypatch):
    on(monkeypatch, "cpu", "cpu")
    # 100 GB at 12.5 GB/s a core take longer than the operations, and up to five times as long.
    assert forecast([STEP], 1, "float32") == Forecast(2, 10, "1,000 GFLOP a step on 4 cores")


def test_an_accelerator_stays_below_its_published_peaks(monkeypatch):
    on(monkeypatch, "tpu", "TPU v5 lite")
    step = Compiled({"flops": 197e12, "bytes accessed": 1e9})
    # 197 TFLOP/s in bfloat16, half of them in float32.
    assert forecast([step], 8, "bfloat16")[:2] == (1.5, 6)
    assert forecast([step], 8, "float32") == Forecast(3, 12, "1,576,000 GFLOP a step on 8 chips")


@pytest.mark.parametrize(
    ("kind", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("TPU v4", 275e12),
        ("TPU v5p", 459e12),
        ("TPU v5", 459e12),
        ("TPU v6 lite", 918e12),
    ],
)
def test_devices_are_known_by_their_names_in_jax(kind, flops):
    assert figures_of(kind).flops == flops


def test_unknown_devices_and_costs_have_no_forecast(monkeypatch):
    on(monkeypatch, "gpu", "NVIDIA GeForce RTX 3060")
    assert forecast([STEP], 1, "float32") is None
    on(monkeypatch, "cpu", "cpu")
    assert forecast([Compiled(None)], 1, "float32") is None


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (1, "about 1 second to 4 seconds, by X"),
        (850, "about 14 minutes to 57 minutes, by X"),
        (100_000, "about 28 hours to 5 days, by X"),
    ],
)
def test_the_time_of_a_run_is_rounded(steps, said):
    assert Forecast(1, 4, "X").describe(steps) == said

"""Runs, whole and in parts, and at several input sizes."""

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from stillbox.checkpoints.checkpoint import MANIFEST
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.cli.overrides import changes_of
from stillbox.devices import free_memory
from stillbox.errors import UserError
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.experiment import schema
from stillbox.experiment.resolve import read_config
from stillbox.inputs.loader import TrainLoader
from stillbox.training import loop, periodic, program
from stillbox.training.length import set_length
from stillbox.training.loop import train
from tests.checkpoints.detectors import age
from tests.helpers import refusal, refused
from tests.inputs.helpers import dataset, example
from tests.inputs.test_loader import same
from tests.small import small_experiment

# Other tests check the numbers of the steps.
pytestmark = pytest.mark.usefixtures("shared_programs")


def sections(directory, step):
    """Returns every array of a checkpoint by section and name."""
    checkpoint = ModelDirectory.open(directory).checkpoint(step)
    return {
        (section, name): array
        for section in checkpoint.sections
        for name, array in checkpoint.read(section).items()
    }


def assert_same_bits(left, other):
    assert left.keys() == other.keys()
    different = [key for key in left if not np.array_equal(left[key], other[key], equal_nan=True)]
    assert different == []


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_two_steps_resumed_for_two_more_equal_four_bit_for_bit(tmp_path, experiment, precision):
    settings = [f"train.precision={precision}", "model.head.dropout=true"]
    train(experiment(*settings), tmp_path / "whole")
    train(experiment(*settings, "train.steps=2"), tmp_path / "parts")
    outcome = train(experiment(*settings), tmp_path / "parts")
    assert outcome.step == 4
    assert_same_bits(sections(tmp_path / "whole", 4), sections(tmp_path / "parts", 4))


def test_the_last_steps_of_a_run_leave_an_augmentation_out(experiment):
    def batches(*steps):
        overrides = f"train.augmentations=[{', '.join(steps)}]", "train.steps=3", "data.workers=0"
        loader = loop.open_data(experiment(*overrides, evaluated=False))
        return [np.asarray(loader.batch(step).images) for step in range(3)]

    cut = batches("{kind: mosaic, height: 64, width: 64, skip_last_steps: 1}")
    always, never = batches("{kind: mosaic, height: 64, width: 64}"), batches()
    assert [(image == other).all() for image, other in zip(cut, always, strict=True)] == [1, 1, 0]
    assert [(image == other).all() for image, other in zip(cut, never, strict=True)] == [0, 0, 1]


def test_the_number_of_threads_and_processes_changes_no_bit(tmp_path, experiment):
    for workers, processes in ((0, 0), (3, 2)):
        settings = f"data.workers={workers}", f"data.processes={processes}", "train.steps=2"
        train(experiment(*settings, evaluated=False), tmp_path / str(workers))
    assert_same_bits(sections(tmp_path / "0", 2), sections(tmp_path / "3", 2))


def test_the_loss_falls_on_images_that_are_seen_again_and_again(tmp_path, experiment):
    train(
        experiment(
            "train.steps=40",
            "train.checkpoint_every=40",
            "train.augmentations=[]",
            "train.optimizer.schedule.learning_rate=0.05",
            evaluated=False,
        ),
        tmp_path,
    )
    _, losses = read_history(tmp_path / HISTORY).series("loss")
    assert losses[-5:].mean() < 0.8 * losses[:5].mean()


@pytest.mark.parametrize("normalizer, told", [("per_replica", True), ("global", False)])
def test_another_number_of_replicas_is_told_where_it_matters(
    tmp_path, experiment, capfd, normalizer, told
):
    settings = [f"model.loss.normalizer={normalizer}"]
    train(experiment(*settings, "train.steps=1", evaluated=False), tmp_path)
    now = [*settings, "train.steps=2", "devices.replicas=2"]
    train(experiment(*now, evaluated=False), tmp_path)
    warning = "1 replica before, now 2; devices.replicas=1 keeps"
    assert (warning in capfd.readouterr().err) is told


def test_a_finished_run_does_nothing(tmp_path, experiment, capfd):
    train(experiment("train.steps=2"), tmp_path)
    outcome = train(experiment("train.steps=2"), tmp_path)
    assert outcome.reason == "step 2 of 2 is done, nothing is left"
    assert outcome.scores is not None
    assert "resuming at step 2" in capfd.readouterr().err


def test_the_start_names_its_case(tmp_path, experiment, capfd):
    train(experiment("train.steps=2", evaluated=False), tmp_path / "first")
    error = capfd.readouterr().err
    assert "from scratch: " in error
    assert "mostly ends in NaN" not in error
    source = f"train.fine_tune.checkpoint={tmp_path / 'first'}"
    tuned = [source, "train.fine_tune.load_heads=true", "train.steps=1"]
    train(experiment(*tuned, evaluated=False), tmp_path / "second")
    error = capfd.readouterr().err
    assert f"fine-tuning from {tmp_path / 'first'}: " in error
    assert " 0 missing" in error
    skipping = experiment(*tuned, "train.fine_tune.skip=[no such layer]", evaluated=False)
    with refused("train.fine_tune.skip", "no such layer"):
        train(skipping, tmp_path / "third")


def test_a_directory_of_another_experiment_is_refused_and_left_alone(tmp_path, experiment):
    train(experiment("train.steps=2", evaluated=False), tmp_path)
    before = (tmp_path / "experiment.yaml").read_text()
    changed = experiment("train.steps=4", "train.optimizer.momentum=0.5", evaluated=False)
    with pytest.raises(UserError, match=r"train\.optimizer\.momentum: 0\.9 -> 0\.5"):
        train(changed, tmp_path)
    assert (tmp_path / "experiment.yaml").read_text() == before


def test_a_checkpoint_holds_its_experiment_and_labels(tmp_path, experiment):
    train(experiment("train.steps=2", evaluated=False), tmp_path)
    folder = tmp_path / "checkpoints" / "2"
    manifest = json.loads((folder / "checkpoint.json").read_text())
    loader = manifest["metadata"]["loader"]
    assert len(loader.pop("files")) == 16
    assert loader == {"next_step": 2, "seed": 0, "records": 10}
    assert (folder / "label_map.pbtxt").read_text().count("item") == 6
    assert "depth_multiplier: 0.125" in (folder / "experiment.yaml").read_text()
    assert "jax" in json.loads((folder / "versions.json").read_text())


def test_early_stopping_ends_the_run_and_the_best_checkpoint_is_kept(tmp_path, experiment):
    outcome = train(
        experiment(
            "train.steps=40",
            "train.evaluate_every=1",
            "train.early_stopping={patience: 2, min_delta: 1.0}",
            "train.keep_checkpoints=1",
        ),
        tmp_path,
    )
    # No AP50 rises by 1, so the first evaluation stays the best and two more end the run.
    assert outcome.step == 3
    assert outcome.reason.startswith("stopped early: AP50 has not risen above ")
    directory = ModelDirectory.open(tmp_path)
    assert directory.best().step in directory.steps()
    assert [step for step, _ in read_history(tmp_path / HISTORY).evaluations] == [1, 2, 3]


def test_a_finished_run_with_another_evaluation_is_scored_anew(tmp_path, experiment, capfd):
    train(experiment("train.steps=1"), tmp_path)
    train(experiment("train.steps=1", "evaluation.max_examples=5"), tmp_path)
    error = capfd.readouterr().err
    assert "warning: later scores are not comparable with those so far" in error
    assert "evaluation.max_examples: 0 -> 5" in error
    assert "on 5 images" in error
    metadata = ModelDirectory.open(tmp_path).read_metadata(1)
    assert len(metadata["evaluation_files"]) == 16


def test_a_target_that_was_reached_ends_the_run_and_every_one_that_resumes_it(
    tmp_path, experiment, monkeypatch
):
    value = periodic._value
    monkeypatch.setattr(periodic, "_value", lambda scores, metric: value(scores, metric) + 0.5)
    stopping = ["train.evaluate_every=2", "train.early_stopping={patience: 0, target: 0.5}"]
    outcome = train(experiment("train.steps=40", *stopping), tmp_path)
    assert outcome.step == 2
    assert outcome.reason.startswith("stopped early: AP50 0.5")
    assert outcome.reason.endswith("at step 2 reaches the target 0.5")
    again = train(experiment("train.steps=50", *stopping), tmp_path)
    assert (again.step, again.images, again.peak_memory) == (2, 0, None)
    assert again.reason.startswith("stopped early at step 2 already: AP50 0.5")
    # A higher target continues the run.
    higher = [stopping[0], "train.early_stopping={patience: 0, target: 1.0}"]
    assert train(experiment("train.steps=3", *higher), tmp_path).step == 3


def test_one_batch_is_trained_again_and_again_and_a_resumed_run_goes_on_with_it(
    tmp_path, experiment
):
    settings = ["data.repeat_first_batch=true", "train.checkpoint_every=9"]
    outcome = train(experiment(*settings, evaluated=False), tmp_path / "whole")
    assert (outcome.step, outcome.images) == (4, 16)
    train(experiment(*settings, "train.steps=2", evaluated=False), tmp_path / "parts")
    train(experiment(*settings, evaluated=False), tmp_path / "parts")
    assert_same_bits(sections(tmp_path / "whole", 4), sections(tmp_path / "parts", 4))


def test_the_last_line_has_time_images_and_memory(tmp_path, experiment, capfd):
    outcome = train(
        experiment("train.steps=0", "data.train.num_epochs=1", "data.cache_images=true"), tmp_path
    )
    # 10 images in batches of 4: the last batch has two rows of padding, and is trained.
    assert (outcome.step, outcome.images) == (3, 10)
    assert ModelDirectory.open(tmp_path).latest_step() == 3
    assert outcome.seconds > outcome.seconds_to_first_step > 0
    assert outcome.images_per_second > 10 / outcome.seconds
    assert outcome.peak_memory.nbytes > 2**26
    error = capfd.readouterr().err
    assert re.search(r"decoded images are kept in memory: [\d.,]+ [GM]iB at most", error)
    assert re.search(r"epoch 1 finished: 0:00:\d\d, [\d,.]+ images/s\n10 decoded images", error)
    assert re.search(r"of the evaluation's data: 6 decoded images in memory", error)
    assert f"10 images, {outcome.images_per_second:,.1f} images/s in training" in error
    assert outcome.peak_memory.describe() in error


def test_the_moving_average_is_what_is_scored(tmp_path, experiment):
    train(experiment("train.ema_decay=0.5", "train.ema_warmup=false", "train.steps=1"), tmp_path)
    arrays = sections(tmp_path, 1)
    name = "head.map_0.class_.bias"
    # One step: average = (start + now) / 2, and the class biases start at -4.6.
    np.testing.assert_allclose(arrays["ema", name], (arrays["params", name] - 4.6) / 2, rtol=1e-5)


def test_a_checkpoint_from_before_a_part_of_the_state_was_there_is_resumed(tmp_path, experiment):
    train(experiment("train.steps=2", evaluated=False), tmp_path)
    folder = ModelDirectory.open(tmp_path).checkpoint(2).folder
    sections = json.loads((folder / MANIFEST).read_text())["sections"]
    del sections["loss"]
    age(folder, sections=sections)
    assert train(experiment("train.steps=3", evaluated=False), tmp_path).step == 3


def test_a_step_that_exceeds_free_memory_is_refused(monkeypatch, tmp_path, experiment):
    monkeypatch.setattr(free_memory, "available_memory", lambda: 2**10)
    with refused("train.batch_size") as error:
        train(experiment("train.steps=1", evaluated=False), tmp_path)
    assert "lower train.batch_size" in str(error.value)


# ---- The length of a run: steps or epochs, and what fixes the schedule ---------------------------


@pytest.fixture
def small(scenes):
    """The function from overrides to the small experiment of 10 records, with a cosine."""
    cosine = "train.optimizer.schedule={kind: cosine, warmup_steps: 1}"
    start = small_experiment(scenes, cosine)

    def length(*overrides, **options):
        return set_length(
            read_config(start, changes_of(overrides)), changes_of(overrides), **options
        ).experiment.train

    return length


def test_epochs_are_passes_over_the_records(small):
    assert small(epochs=6).steps == 15  # 60 images of 4 a step
    assert small("data.train.sample_1_of_n=3", epochs=6).steps == 6
    assert small(epochs=0.1).steps == 1
    stretched = small(epochs=6).optimizer.schedule
    assert (stretched.total_steps, stretched.warmup_steps) == (15, 4)
    assert small().steps == 4


def test_a_schedule_that_is_set_is_not_stretched(small):
    fixed = small("train.optimizer.schedule.total_steps=30", steps=40)
    assert (fixed.steps, fixed.optimizer.schedule.total_steps) == (40, 30)


def test_an_end_of_an_augmentation_that_is_set_is_not_stretched(small):
    mosaic = "train.augmentations=[{kind: mosaic, skip_last_steps: 2}]"
    (stretched,) = small(mosaic, steps=40).augmentations
    assert stretched.skip_last_steps == 20
    (fixed,) = small(mosaic, "train.augmentations.0.skip_last_steps=2", steps=40).augmentations
    assert fixed.skip_last_steps == 2


def test_a_delay_of_rounding_that_is_set_is_not_stretched(small):
    assert small("train.quantization={delay: 3}", steps=40).quantization.delay == 3


@pytest.mark.parametrize(
    ("overrides", "options", "expected"),
    [
        ((), {"steps": 3, "epochs": 1}, "a run has one length"),
        (("train.steps=3",), {"epochs": 1}, "leave train.steps out"),
        ((), {"steps": 0}, "a run of 0 is none"),
        ((), {"epochs": float("nan")}, "a run of nan is none"),
        ((), {"epochs": -2.0}, "a run of -2.0 is none"),
        (("train.batch_size=0",), {"epochs": 2}, "train.batch_size is 0"),
    ],
)
def test_invalid_lengths_are_refused(small, overrides, options, expected):
    error = refusal(small, *overrides, **options)
    assert expected in str(error)


# ---- Training at several input sizes: what is drawn, and what a step at one of them computes -----

RESIZERS = tuple(schema.FixedShapeResizer(height=side, width=2 * side) for side in (16, 24, 32))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return dataset(tmp_path_factory.mktemp("records"), [example(n) for n in range(7)])


def loader(data, **changes):
    settings = {"batch_size": 4, "seed": 3, "workers": 0, "resizers": RESIZERS}
    return TrainLoader(data, **settings | changes)


def test_a_size_is_drawn_for_each_step_and_all_are_equally_likely(data):
    drawn = Counter(batch.input_size for batch in loader(data).iterate(0, 60))
    assert drawn.keys() == {(16, 32), (24, 48), (32, 64)}
    assert all(abs(count - 20) < 12 for count in drawn.values())  # over 3 standard deviations
    others = [batch.input_size for batch in loader(data, seed=4).iterate(0, 20)]
    assert others != [batch.input_size for batch in loader(data).iterate(0, 20)]


def test_resumed_runs_threads_and_processes_draw_the_same(data):
    whole = list(loader(data).iterate(0, 8))
    same(loader(data, workers=3).iterate(3, 8), whole[3:])
    halves = [loader(data, process_index=p, process_count=2).iterate(0, 8) for p in (0, 1)]
    parts = zip(*halves, strict=True)
    same([type(a)(*map(np.concatenate, zip(a, b, strict=True))) for a, b in parts], whole)


def test_boxes_and_pixels_are_those_of_a_resizer_of_that_size(data):
    for batch in loader(data).iterate(0, 6):
        resizer = next(
            candidate for candidate in RESIZERS if candidate.input_size == batch.input_size
        )
        (step,) = np.unique(batch.true_sizes, axis=0)
        assert tuple(step) == batch.input_size
        alone = loader(data, resizers=(resizer,))
        assert any((alone.batch(n).images == batch.images).all() for n in range(6))


@pytest.mark.parametrize(
    ("resizer", "height", "size"),
    [
        (schema.FixedShapeResizer(height=480, width=640), 240, (240, 320)),
        (schema.FixedShapeResizer(height=480, width=640), 241, None),
        (schema.ScaleJitterResizer(height=512, width=512, multiple=128), 500, (512, 512)),
        (schema.KeepAspectRatioResizer(min_dimension=600, max_dimension=1024), 512, (512, 512)),
        (schema.IdentityResizer(canvas=(64, 64)), 64, None),
    ],
)
def test_resizers_have_other_heights_in_proportion(resizer, height, size):
    other = resizer.with_height(height)
    assert (other and other.input_size) == size
    if isinstance(resizer, schema.KeepAspectRatioResizer):
        assert other.min_dimension == 300


def test_a_run_of_one_size_is_a_run_of_a_resizer_of_that_size(tmp_path, experiment):
    other = "model.resizer={kind: fixed_shape, height: 96, width: 96}"
    train(experiment("train.input_sizes=[96]", "train.steps=2", evaluated=False), tmp_path / "one")
    train(experiment(other, "train.steps=2", evaluated=False), tmp_path / "two")
    assert_same_bits(sections(tmp_path / "one", 2), sections(tmp_path / "two", 2))


@pytest.mark.slow
def test_a_run_of_several_sizes_resumes_with_the_same_bits(
    tmp_path, experiment, capfd, monkeypatch
):
    compiled = []
    compile_one = loop.compile_step
    monkeypatch.setattr(
        loop, "compile_step", lambda plan: compiled.append(plan) or compile_one(plan)
    )
    sizes = "train.input_sizes=[64, 96]"
    outcome = train(experiment(sizes), tmp_path / "whole")
    assert [plan.input_size for plan in compiled] == [(64, 64), (96, 96)]
    assert outcome.scores is not None
    assert "input sizes 64 x 64, 96 x 96: one of them for each step" in capfd.readouterr().err
    train(experiment(sizes, "train.steps=2"), tmp_path / "parts")
    train(experiment(sizes), tmp_path / "parts")
    assert_same_bits(sections(tmp_path / "whole", 4), sections(tmp_path / "parts", 4))
    batches = loop.open_data(experiment(sizes))
    assert {batch.input_size for batch in batches.iterate(0, 4)} == {(64, 64), (96, 96)}


def test_the_sizes_of_a_run_stay(tmp_path, experiment):
    train(experiment("train.input_sizes=[64]", "train.steps=1", evaluated=False), tmp_path)
    with pytest.raises(UserError, match=r"train\.input_sizes"):
        train(experiment("train.input_sizes=[64, 96]", "train.steps=2", evaluated=False), tmp_path)
    stored = ModelDirectory.open(tmp_path).checkpoint(1).read_experiment()
    assert stored.train.input_sizes == (64,)


def test_a_model_whose_parameters_follow_the_size_is_refused(tmp_path, experiment, monkeypatch):
    made = program.train_program

    def other_parameters(plan):
        step = made(plan)
        return step if step.input_size == (64, 64) else replace(step, trainable=frozenset())

    monkeypatch.setattr(program, "train_program", other_parameters)
    with refused("train.input_sizes", 64, 96):
        train(experiment("train.input_sizes=[64, 96]"), tmp_path / "run")
    assert not (tmp_path / "run").exists()

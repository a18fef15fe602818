"""Training at several input sizes: what is drawn, and what a step at one of them computes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.inputs.loader import TrainLoader
from stillbox.training import loop, program
from stillbox.training.loop import train
from tests.inputs.helpers import dataset, example
from tests.inputs.test_loader import same
from tests.training.test_loop import assert_same_bits, sections

# What the steps compute is looked at elsewhere.
pytestmark = pytest.mark.usefixtures("shared_programs")

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
        resizer = next(one for one in RESIZERS if one.input_size == batch.input_size)
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
    compile_one = loop._compile
    monkeypatch.setattr(loop, "_compile", lambda one: compiled.append(one) or compile_one(one))
    sizes = "train.input_sizes=[64, 96]"
    outcome = train(experiment(sizes), tmp_path / "whole")
    assert [one.input_size for one in compiled] == [(64, 64), (96, 96)]
    assert outcome.scores is not None
    assert "input sizes 64 x 64, 96 x 96: one of them for each step" in capfd.readouterr().err
    train(experiment(sizes, "train.steps=2"), tmp_path / "parts")
    train(experiment(sizes), tmp_path / "parts")
    assert_same_bits(sections(tmp_path / "whole", 4), sections(tmp_path / "parts", 4))
    _, batches = loop._open_data(experiment(sizes))
    assert {batch.input_size for batch in batches.iterate(0, 4)} == {(64, 64), (96, 96)}


def test_the_sizes_of_a_run_stay(tmp_path, experiment):
    train(experiment("train.input_sizes=[64]", "train.steps=1", evaluated=False), tmp_path)
    with pytest.raises(UserError, match=r"train\.input_sizes"):
        train(experiment("train.input_sizes=[64, 96]", "train.steps=2", evaluated=False), tmp_path)
    stored = ModelDirectory.open(tmp_path).checkpoint(1).read_experiment()
    assert stored.train.input_sizes == (64,)


def test_a_model_whose_parameters_follow_the_size_is_refused(tmp_path, experiment, monkeypatch):
    made = program.train_program

    def other_parameters(one, mesh, teacher=None):
        step = made(one, mesh, teacher)
        return step if step.input_size == (64, 64) else replace(step, trainable=frozenset())

    monkeypatch.setattr(program, "train_program", other_parameters)
    with pytest.raises(UserError, match="other parameters at the input sizes 64 x 64 and 96 x 96"):
        train(experiment("train.input_sizes=[64, 96]"), tmp_path / "run")
    assert not (tmp_path / "run").exists()

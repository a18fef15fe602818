"""The costs of a run: the arithmetic of its time, and what a measurement sees."""

import pytest

from stillbox.checkpoints.remote_directory import ModelPlace
from stillbox.training import probing
from stillbox.training.probing import Costs, measure


def costs(**changes):
    usual = {"start": 30.0, "compilation": 20.0, "step": 0.5, "evaluation": 8.0}
    return Costs(**(usual | changes))


def test_the_steps_are_what_start_and_evaluations_leave():
    # 300 - 30 - 2 * 8 = 254 seconds of half a second each.
    assert costs().steps_in(300, lambda steps: 2) == 508
    # An evaluation every 100 steps, the last one at the end: 450 steps and 5 evaluations take
    # 30 + 225 + 40 = 295 s, 460 take 300.
    assert costs().steps_in(300, lambda steps: -(-steps // 100)) == 460
    assert costs(evaluation=0.0).steps_in(300, lambda steps: 0) == 540


@pytest.mark.parametrize("seconds", [-5.0, 0.0, 38.0, 38.4])
def test_without_time_for_a_step_there_is_none(seconds):
    assert costs().steps_in(seconds, lambda steps: 1) == 0


def test_evaluations_take_a_tenth_of_the_time_at_most_and_one_is_made():
    assert costs().most_evaluations(900) == 11
    assert costs().most_evaluations(60) == 1


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_measurement_leaves_nothing_and_counts_what_there_is(
    experiment, tmp_path, shared_programs, evaluated
):
    small = experiment(evaluated=evaluated)
    measured = measure(small, ModelPlace(tmp_path / "run"), 1.0)
    assert measured.step > 0
    assert measured.start > 0
    assert (measured.evaluation > 0) == evaluated
    assert not (tmp_path / "run").exists()


def test_records_for_fewer_steps_than_are_measured_are_enough(
    experiment, tmp_path, shared_programs
):
    # Ten images, of four a step: three steps.
    small = experiment("data.train.num_epochs=1", evaluated=False)
    assert measure(small, ModelPlace(tmp_path / "run"), 60.0).step > 0


def test_an_evaluation_through_tiles_is_measured_by_its_images(
    experiment, tmp_path, shared_programs, monkeypatch
):
    asked = []

    def score(detect, experiment, dataset, *, trained):
        asked.append((experiment.evaluation.max_examples, len(dataset.source), len(dataset)))

    monkeypatch.setattr(probing, "score_dataset", score)
    measure(experiment("data.tiles={side: 64}"), ModelPlace(tmp_path / "run"), 1.0)
    ((scored, images, tiles),) = asked
    assert scored == images < tiles

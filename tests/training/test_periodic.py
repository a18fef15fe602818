"""Evaluation during training: its steps, the best checkpoint, and early stopping."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.evaluation import program
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.evaluation.program import DetectProgram
from stillbox.experiment.yaml_config import to_yaml
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.records.label_map import ClassSlots, LabelMap
from stillbox.training import periodic
from stillbox.training.loop import train
from stillbox.training.observing import RunContext
from stillbox.training.periodic import PeriodicEvaluation, draw_inputs
from stillbox.training.signals import StopRequest
from stillbox.training.state import create_state
from tests.batches import batch_of
from tests.helpers import refused

NAMES = LabelMap.from_names(("disc", "ring", "square", "triangle", "star", "cross"))


class History:
    """Replaces the summaries: recorded scores, which can be read again."""

    def __init__(self, *scores):
        self.scored = [(step, {"AP50": score}) for step, score in enumerate(scores, start=1)]

    def evaluation(self, step, scores, named):
        self.scored.append((step, scores))

    def evaluations(self):
        return tuple(self.scored)

    def set_evaluations_aside(self):
        self.scored = []
        return "aside"

    def image(self, step, name, image):
        pass


def make(experiment, *overrides, last_step=None, names=NAMES, **options):
    settings = experiment(*overrides, **options)
    return PeriodicEvaluation(settings, names, last_step)


@pytest.fixture
def scored(monkeypatch):
    """Every evaluation brings the next of these scores; nothing is computed."""
    scores = []

    def score(detect, experiment, dataset, progress, trained):
        summary = {"AP": 0.0, "AP50": scores.pop(0), "AP75": 0.0}
        text = SimpleNamespace(
            summary=summary, headline=lambda: str(summary), original_names=lambda **options: {}
        )
        return SimpleNamespace(scores=text, truths=[], records=[], unfound=())

    monkeypatch.setattr(periodic, "score_dataset", score)
    monkeypatch.setattr(PeriodicEvaluation, "_pictures", lambda self, result, folder: iter(()))
    return scores


@pytest.fixture
def directory(tmp_path, experiment):
    directory = ModelDirectory.create(
        tmp_path / "model", experiment=to_yaml(experiment()), label_map="", versions={}, keep=9
    )
    for step in (1, 2, 3):
        directory.save(step, {"params": {"a": np.zeros(1)}}, {})
    yield directory
    directory.close()


STATE = SimpleNamespace(params={}, stats={}, ema={})
QUIET = SimpleNamespace(doing=lambda text: None, say=lambda text: None)


def evaluate(evaluation, directory, step, state=STATE, history=None):
    history = History() if history is None else history
    evaluation.run(step, state, RunContext(directory, history, QUIET, StopRequest()))


def catch_up(evaluation, directory, step, history, progress=QUIET):
    context = RunContext(directory, history, progress, StopRequest())
    evaluation.catch_up(step, STATE, context)
    return evaluation.scores


@pytest.mark.parametrize(
    ("every", "last", "due"),
    [(0, 7, {7}), (3, 7, {3, 6, 7}), (3, None, {3, 6, 9}), (0, None, set())],
)
def test_evaluations_are_due_at_the_interval_and_at_the_end(experiment, every, last, due):
    evaluation = make(experiment, f"train.evaluate_every={every}", last_step=last)
    assert {step for step in range((last or 9) + 1) if evaluation.due(step)} == due


@pytest.mark.parametrize(
    ("most", "last", "scored_at"),
    [
        (0, 9, [2, 4, 6, 8, 9]),  # no limit
        (3, 9, [2, 4, 9]),  # two on the way, the third at the end
        (1, 9, [9]),
        (3, None, [2, 4, 6]),  # the end is unknown
    ],
)
def test_evaluations_are_limited_and_the_last_one_is_for_the_end(
    experiment, scored, directory, most, last, scored_at
):
    limits = [f"evaluation.max_evaluations={most}", "train.evaluate_every=2"]
    evaluation = make(experiment, *limits, last_step=last)
    scored += [0.1] * 9
    seen = []
    for step in range(1, 10):
        if evaluation.due(step):
            seen.append(step)
            directory = SimpleNamespace(best=lambda: None, mark_best=print, path=None)
            evaluate(evaluation, directory, step)
    assert seen == scored_at


def test_evaluations_before_a_resume_count(experiment, scored, directory):
    evaluation = make(
        experiment, "evaluation.max_evaluations=3", "train.evaluate_every=1", last_step=9
    )
    assert catch_up(evaluation, directory, 2, History(0.1, 0.2)) == {"AP50": 0.2}
    assert [step for step in range(3, 10) if evaluation.due(step)] == [9]


def test_without_records_nothing_is_due(experiment):
    evaluation = make(experiment, "train.evaluate_every=1", last_step=3, evaluated=False)
    assert not any(evaluation.due(step) for step in range(5))


def test_the_highest_score_marks_the_best_checkpoint(experiment, scored, directory):
    evaluation = make(experiment)
    scored += [0.2, 0.5, 0.5]
    best, history = [], History()
    for step in (1, 2, 3):
        evaluate(evaluation, directory, step, history=history)
        best.append(directory.best())
    # An equal score comes too late.
    assert [(best_step.step, best_step.metric, best_step.value) for best_step in best] == [
        (1, "AP50", 0.2),
        (2, "AP50", 0.5),
        (2, "AP50", 0.5),
    ]


def test_a_best_checkpoint_of_another_metric_does_not_count(experiment, scored, directory):
    directory.mark_best(1, "AP", 0.9)
    scored.append(0.1)
    evaluate(make(experiment), directory, 2)
    assert directory.best() == (2, "AP50", 0.1)


@pytest.mark.parametrize(
    ("changes", "stored", "said"),
    [
        (["evaluation.max_examples=5"], {}, "evaluation.max_examples: 0 -> 5"),
        ([], {"evaluation_files": "others"}, "in files of other names or sizes"),
    ],
)
def test_scores_that_are_not_comparable_do_not_count_in_a_resumed_run(
    experiment, scored, directory, changes, stored, said
):
    directory.save(4, {"params": {"a": np.zeros(1)}}, stored)
    directory.mark_best(4, "AP50", 0.9)
    lines, history = [], History(0.7, 0.8, 0.8, 0.9)
    scored.append(0.3)
    progress = SimpleNamespace(doing=print, say=lines.append)
    evaluation = make(experiment, "train.evaluate_every=2", *changes)
    catch_up(evaluation, directory, 4, history, progress)
    assert said in lines[0]
    assert [step for step, _ in history.evaluations()] == [4]
    assert directory.best() == (4, "AP50", 0.3)


def test_moved_records_and_further_metrics_leave_scores_comparable(
    experiment, scenes, directory, tmp_path
):
    (tmp_path / "moved").symlink_to(scenes)
    evaluation = make(
        experiment,
        f"data.evaluation.paths={tmp_path}/moved/val.record-*",
        f"data.evaluation.label_map={tmp_path}/moved/label_map.pbtxt",
        "evaluation.metrics=[coco, pascal_voc]",
    )
    directory.save(4, {"params": {"a": np.zeros(1)}}, evaluation.identity)
    history = History(0.7, 0.8, 0.8, 0.9)
    assert catch_up(evaluation, directory, 4, history) == {"AP50": 0.9}
    assert len(history.evaluations()) == 4


def test_without_objects_no_checkpoint_is_best(experiment, scored, directory):
    scored.append(None)
    evaluate(make(experiment), directory, 1)
    assert directory.best() is None


@pytest.mark.parametrize(
    ("scores", "patience", "min_delta", "ends"),
    [
        ((0.1, 0.2, 0.3), 1, 0.0, False),
        ((0.3, 0.2, 0.1), 2, 0.0, True),
        ((0.3, 0.2, 0.1), 3, 0.0, False),
        ((0.3, 0.3), 1, 0.0, True),
        ((0.30, 0.34, 0.38), 2, 0.05, False),  # .38 > .30 + .05
        ((0.30, 0.34), 1, 0.05, True),
        ((0.3, 0.1, 0.4, 0.1), 2, 0.0, False),
        ((None, None), 2, 0.0, True),
        ((), 1, 0.0, False),
    ],
)
def test_patience_counts_evaluations_since_the_last_rise(
    experiment, scores, patience, min_delta, ends
):
    evaluation = make(
        experiment,
        f"train.early_stopping={{patience: {patience}, min_delta: {min_delta}}}",
        "train.evaluate_every=1",
    )
    assert bool(evaluation.exhausted(History(*scores))) == ends


def test_evaluations_by_other_metrics_do_not_end_a_run(experiment):
    history = History(0.3)
    history.scored += [(step, {"VOC_mAP": 0.1}) for step in (2, 3, 4)]
    stopping = "train.early_stopping={patience: 2}"
    evaluation = make(experiment, stopping, "train.evaluate_every=1")
    assert evaluation.exhausted(history) == ""


_TARGET = "{patience: 0, target: 0.23}"


@pytest.mark.parametrize(
    ("stopping", "scores", "ends"),
    [
        (_TARGET, (), ""),
        (_TARGET, (0.1, None, 0.2299), ""),
        (_TARGET, (0.1, 0.23), "AP50 0.2300 at step 2 reaches the target 0.23"),
        # The checkpoint to resume may be later than the step that reached the target.
        (_TARGET, (0.1, 0.25, 0.2), "AP50 0.2500 at step 2 reaches the target 0.23"),
        # Without patience evaluations are unlimited.
        (_TARGET, 30 * (0.1,), ""),
        (
            *("{patience: 2, target: 0.23}", (0.2, 0.1, 0.1)),
            "AP50 has not risen above 0.2000 in 2 evaluations",
        ),
        ("null", (0.3, 0.2, 0.1, 0.0), ""),
    ],
)
def test_a_target_ends_a_run_as_soon_as_it_is_reached(experiment, stopping, scores, ends):
    evaluation = make(experiment, f"train.early_stopping={stopping}", "train.evaluate_every=1")
    assert evaluation.exhausted(History(*scores)) == ends


def test_a_checkpoint_that_was_not_scored_before_the_kill_is_scored(experiment, scored, directory):
    evaluation = make(experiment, "train.evaluate_every=2")
    again = partial(catch_up, evaluation, directory, history=History(0.1))
    scored.append(0.7)
    assert again(1) == {"AP50": 0.1}
    assert again(2)["AP50"] == 0.7
    assert again(2)["AP50"] == 0.7  # from the history: there are no more scores to bring
    assert again(3) is None


@pytest.mark.parametrize(("use_ema", "scored_value"), [(True, 2.0), (False, 1.0)])
def test_the_average_is_scored_if_the_settings_say_so(
    experiment, directory, monkeypatch, use_ema, scored_value
):
    settings = experiment("train.ema_decay=0.5", f"evaluation.use_ema={str(use_ema).lower()}")
    _, params, stats = split_detector(build_detector(settings.model))
    state = create_state(params, stats, settings.train, frozenset(params), {})
    state = state._replace(
        params=jax.tree.map(lambda array: array * 0 + 1, params),
        ema=jax.tree.map(lambda array: array * 0 + 2, params),
    )
    seen = []

    def bind(program, params, stats):
        seen.append(params)
        raise StopIteration

    monkeypatch.setattr(DetectProgram, "bind", bind)
    with pytest.raises(StopIteration):
        evaluate(PeriodicEvaluation(settings, NAMES, 4), directory, 1, state)
    assert {float(array.max()) for array in seen[0].values()} == {scored_value}


def test_records_with_other_classes_are_refused_at_once(experiment):
    with refused(None, 2, "ring", "cat"):
        make(experiment, names=LabelMap.from_names(("disc", "cat")))


def test_scoring_may_transfer_arrays_implicitly(experiment, directory, monkeypatch):
    evaluation = make(experiment)
    moved = np.ones(3, np.float32)

    def score(*rest, **options):
        raise StopIteration(jnp.asarray(moved) + 1)

    monkeypatch.setattr(periodic, "score_dataset", score)
    with jax.transfer_guard("disallow"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device"):
            score()
        with pytest.raises(StopIteration):
            evaluate(evaluation, directory, 1)


def test_inputs_are_drawn_with_their_boxes():
    boxes, weights = np.zeros((3, 2, 4)), np.zeros((3, 2), np.float32)
    boxes[0, 0], weights[0, 0] = [0.25, 0.25, 0.75, 0.75], 1
    batch = batch_of(np.zeros((3, 40, 60, 3), np.float32), boxes, weights)
    dataset = SimpleNamespace(label_map=NAMES, slots=ClassSlots((1,)))
    sheet = draw_inputs(batch, dataset)
    assert sheet.dtype == np.uint8
    assert sheet.any()
    without = draw_inputs(batch._replace(weights=weights * 0), dataset)
    assert (sheet != without).any()
    # The first class of a model with the only id 2 is the second of one with ids 1 and 2.
    ring = draw_inputs(batch, SimpleNamespace(label_map=NAMES, slots=ClassSlots((2,))))
    second = batch._replace(classes=batch.classes + 1)
    both = SimpleNamespace(label_map=NAMES, slots=ClassSlots((1, 2)))
    np.testing.assert_array_equal(ring, draw_inputs(second, both))
    assert (ring != sheet).any()


def test_a_run_follows_what_evaluation_says(experiment, tmp_path):
    folder = tmp_path / "model/shown"
    settings = experiment(
        *("train.steps=4", "train.evaluate_every=1", "train.checkpoint_every=4"),
        *("evaluation.metrics=[pascal_voc]", "evaluation.best_metric=VOC_mAP"),
        *("evaluation.max_evaluations=2", "evaluation.max_examples=5"),
        *("evaluation.num_visualizations=5", "evaluation.pictures_directory=shown"),
    )
    outcome = train(settings, tmp_path / "model")
    assert set(outcome.scores) == {"VOC_mAP"}
    assert ModelDirectory.open(tmp_path / "model").best().metric == "VOC_mAP"
    evaluations = read_history(tmp_path / "model" / HISTORY).evaluations
    assert [step for step, _ in evaluations] == [1, 4]
    assert len(list(folder.iterdir())) == 5
    (events,) = (tmp_path / "model/tensorboard").iterdir()
    content = events.read_bytes()
    assert b"PascalBoxes_Precision/mAP@0.5IOU" in content
    assert b"PascalBoxes_PerformanceByCategory/AP@0.5IOU/disc" in content
    assert b"DetectionBoxes" not in content
    assert b"eval_side_by_side_2" in content  # three at most, whatever the folder has
    assert b"eval_side_by_side_3" not in content


def test_classes_that_are_never_found_are_named_at_the_end(experiment, tmp_path, capsys):
    # No score is above the threshold, so that nothing is found.
    settings = experiment(
        *("train.steps=2", "train.evaluate_every=1"),
        "model.postprocessing.nms.score_threshold=1",
    )
    train(settings, tmp_path / "model")
    said = capsys.readouterr().err
    assert said.count("disc is never found") == 1
    assert said.index("step 2: ") < said.index("warning: disc is never found")


def test_classes_and_pictures_can_be_left_out_of_tensorboard(experiment, tmp_path, capsys):
    settings = experiment(
        *("train.steps=1", "evaluation.per_category=false", "evaluation.num_visualizations=0"),
        "evaluation.max_examples=5",
    )
    train(settings, tmp_path / "model")
    (events,) = (tmp_path / "model/tensorboard").iterdir()
    content = events.read_bytes()
    assert b"DetectionBoxes_Precision/mAP" in content
    assert b"ByCategory" not in content
    assert b"eval_side_by_side" not in content
    assert "warning: scored: the first 5 of 6 images" in capsys.readouterr().err


@pytest.mark.parametrize("trained_in", ["float32", "bfloat16"])
@pytest.mark.parametrize("scored_in", ["float32", "bfloat16"])
def test_scores_come_from_the_type_of_evaluation_whatever_training_has(
    experiment, directory, monkeypatch, trained_in, scored_in
):
    types = []

    def stop(graph):
        types.append(graph)
        raise StopIteration

    settings = experiment(f"train.precision={trained_in}", f"evaluation.precision={scored_in}")
    monkeypatch.setattr(program, "detect_function", stop)
    build = {
        precision: split_detector(build_detector(settings.model, dtype=jnp.dtype(precision)))[0]
        for precision in ("float32", "bfloat16")
    }
    assert build["float32"] != build["bfloat16"]
    with pytest.raises(StopIteration):
        evaluate(PeriodicEvaluation(settings, NAMES, None), directory, 1)
    assert types == [build[scored_in]]

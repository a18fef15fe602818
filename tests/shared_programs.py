"""Programs that are traced and compiled once in a process, however many runs need them.

Most tests of runs train the same small detector and differ in what happens around its steps. Their
programs have the default form of every operation, a third of the size of the forms for a CPU. Tests
of the programs themselves do without the fixture `shared_programs`.
"""

from dataclasses import replace
from functools import cache, cached_property

from stillbox.evaluation import program as detecting
from stillbox.evaluation.program import DetectProgram
from stillbox.experiment import schema
from stillbox.lowering import lowering
from stillbox.training import program as training
from stillbox.training.program import TrainProgram

# Fields of training that no step depends on. Whatever else differs is another program.
_OF_THE_LOOP = (
    *("steps", "augmentations", "fine_tune", "log_every", "summary_every", "loggers"),
    *("checkpoint_every", "keep_checkpoints", "evaluate_every", "early_stopping"),
)
_DEFAULTS = {name: getattr(schema.Training(), name) for name in _OF_THE_LOOP}
_plan_training, _make_train_program = training.plan_training, training.train_program
_make_detect_program = detecting._detect_program


def share(monkeypatch):
    """Gives runs the programs of earlier runs of the same model."""
    monkeypatch.setattr(training, "plan_training", _plan)
    monkeypatch.setattr(training, "train_program", _shared_step)
    monkeypatch.setattr(detecting, "_detect_program", _detect_program)


def forget():
    """Makes the next runs trace and compile again."""
    _shared_plan.cache_clear()
    _shared_step.cache_clear()
    _shared_detector.cache_clear()


class _Compiled:
    """Stands for a traced program; it is compiled when it is first asked to be."""

    def __init__(self, lowered):
        self.compile = cache(lowered.compile)


class _SharedStep(TrainProgram):
    """A train step that is traced once."""

    @cached_property
    def _lowered(self):
        with lowering(portable=True):
            return _Compiled(super().lower())

    def lower(self):
        return self._lowered


class _SharedDetector(DetectProgram):
    """A detector in the default forms; its base class compiles it once."""

    def lower(self):
        with lowering(portable=True):
            return super().lower()


def _plan(experiment, mesh, teacher=None):
    # The program depends on what a teacher is, which the experiment says, not on its arrays.
    records = schema.Records(max_boxes=experiment.data.train.max_boxes)
    data = schema.Data(train=records, pixels=experiment.data.pixels)
    train = replace(experiment.train, **_DEFAULTS)
    return _shared_plan(replace(experiment, name="", data=data, train=train), mesh)


@cache
def _shared_plan(experiment, mesh):
    return _plan_training(experiment, mesh)


@cache
def _shared_step(plan):
    return _SharedStep(**vars(_make_train_program(plan)))


def _detect_program(experiment, mesh, batch_size):
    settings = schema.Evaluation(precision=experiment.evaluation.precision)
    alone = schema.Experiment(model=experiment.model, evaluation=settings)
    return _shared_detector(alone, mesh, batch_size)


@cache
def _shared_detector(experiment, mesh, batch_size):
    return _SharedDetector(**vars(_make_detect_program(experiment, mesh, batch_size)))

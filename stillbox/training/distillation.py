"""The teacher of a run: the model also learns from the distributions of boxes that it predicts.

Localisation distillation (arXiv:2102.12252). The teacher is opened and compared with the model
before anything is compiled. In a step it sees the images of the batch as in evaluation, with its
own normalisation of the pixels; its arrays are arguments of the step, and get no gradient.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.boxes.structures import Batch
from stillbox.checkpoints.array_files import check_finite
from stillbox.checkpoints.packed import array_digest, open_model
from stillbox.checkpoints.trained import check_shapes
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.rules.missing import TEACHER as FIELD
from stillbox.models.build import AbstractDetector, abstract_detector
from stillbox.models.detector import Detector, Taught
from stillbox.models.one_stage.detector import OneStageDetector
from stillbox.models.variables import Arrays, Shapes, Structure, bind_detector
from stillbox.references import Setting

TEACHER = "teacher"
"""Key of a checkpoint's metadata."""
_WITHOUT = f"{Setting('train.distillation', None)} trains without a teacher"


class TeacherArrays(NamedTuple):
    """The arrays of a teacher, or their shapes."""

    params: Arrays | Shapes
    """Parameters by path, or their moving averages."""
    stats: Arrays | Shapes
    """Moving statistics by path."""


@dataclass(frozen=True)
class Teacher:
    """A trained model that another one learns from."""

    source: str
    """Folder and step, for messages."""
    step: int
    digest: str
    """SHA-256 of its arrays."""
    experiment: schema.Experiment
    """The teacher was trained by this experiment."""
    stored: dict[str, np.ndarray]
    """Parameters and moving statistics by path, on the host."""

    @property
    def identity(self) -> dict[str, int | str]:
        """What a checkpoint of the student records."""
        return {"step": self.step, "sha256": self.digest}

    @property
    def model(self) -> schema.OneStage:
        """The model, which `open_teacher` has checked."""
        assert isinstance(self.experiment.model, schema.OneStage)
        return self.experiment.model

    def arrays(self, like: TeacherArrays) -> TeacherArrays:
        """Returns the arrays that the step takes; `like` are their shapes."""
        params, stats = (
            {path: jnp.asarray(self.stored[path]) for path in shapes} for shapes in like
        )
        return TeacherArrays(params, stats)

    def detector(
        self, model: schema.Model, student: AbstractDetector, precision: str
    ) -> AbstractDetector:
        """Returns the teacher as the training step has it: for the input of the student.

        Raises:
            UserError: its anchors are not the student's, or its arrays do not fit it.
        """
        teacher = self._abstract(model.resizer, precision)
        check_shapes(teacher.params | teacher.stats, self.stored, self.source)
        mine, other = _one_stage(student), _one_stage(teacher)
        if mine.feature_shapes != other.feature_shapes:
            problem = (
                f"the teacher has feature maps of {_spell(other.feature_shapes)} cells, and the "
                f"model has {_spell(mine.feature_shapes)}"
            )
            raise _misfit(problem, "give both the same levels of model.neck")
        if mine.anchors.shape != other.anchors.shape or not np.allclose(
            mine.anchors, other.anchors, rtol=0.0, atol=1e-6
        ):
            problem = "the teacher's anchors are not those of the model"
            raise _misfit(problem, f"give the model the model.anchors of {self.source}")
        return teacher

    def _abstract(self, resizer: schema.Resizer, precision: str) -> AbstractDetector:
        model = replace(self.model, resizer=resizer)
        return abstract_detector(model, precision, self.experiment.train.quantization)


def open_teacher(experiment: schema.Experiment, recorded: object = None) -> Teacher | None:
    """Opens the teacher of a run; None if it has none. No device is used.

    Args:
        recorded: `Teacher.identity` in the checkpoint that training goes on from.

    Raises:
        UserError: it is missing or damaged, is not the recorded one, or the model cannot learn from
            it.
    """
    distillation = experiment.train.distillation
    if distillation is None:
        return None
    path = Path(distillation.teacher)
    known = recorded if isinstance(recorded, dict) else {}
    try:
        checkpoint = open_model(path, known.get("step", "best"))
        theirs = checkpoint.read_experiment()
        arrays = checkpoint.parameters(prefer_ema=theirs.evaluation.use_ema)
    except UserError as error:
        problem = f"the teacher cannot be read: {error.where}: {error.what}"
        raise _misfit(problem, f"{_elsewhere(known)}; {error.fix or _WITHOUT}") from error
    source = f"{path}, step {checkpoint.step}"
    refuse_misfit(experiment.model, theirs.model)
    check_finite(arrays, source)
    teacher = Teacher(source, checkpoint.step, array_digest(arrays), theirs, arrays)
    if known and known != teacher.identity:
        problem = f"the run began with another teacher: the weights of {source} have changed since"
        raise _misfit(problem, f"{_elsewhere(known)}, or train into a new model directory")
    return teacher


def without_teacher(experiment: schema.Experiment) -> schema.Experiment:
    """Returns the experiment of a student that learns from the ground truth alone."""
    return replace(experiment, train=replace(experiment.train, distillation=None))


def refuse_misfit(student: schema.Model, teacher: schema.Model) -> None:
    """Refuses a teacher that predicts other distributions than the model, by its configuration.

    Raises:
        UserError: the teacher predicts none, or others.
    """
    theirs = getattr(teacher, "box_coder", None)
    if not isinstance(teacher, schema.OneStage) or not isinstance(
        theirs, schema.DistributionBoxCoder
    ):
        kind = getattr(theirs, "kind", None)
        coder = f"has the box coder {kind}" if kind else f"is a {teacher.kind}"
        problem = f"the teacher {coder}, and predicts no distributions of boxes"
        raise _misfit(problem, "give a detector with the box coder distribution, such as of gfl")
    if not isinstance(student, schema.OneStage):
        return  # refused by the rules
    coder_of_student = student.box_coder
    for name, word in (("longest", "greatest distance"), ("units_in_anchor", "units in an anchor")):
        mine, other = getattr(coder_of_student, name, None), getattr(theirs, name)
        if mine != other:
            bins = f" ({other + 1} bins)" if name == "longest" else ""
            raise _misfit(
                f"the teacher's {word} is {other:g}{bins}, and the model's is {mine}",
                f"{Setting(f'model.box_coder.{name}', f'{other:g}')}",
            )
    if student.image_kind != teacher.image_kind:
        problem = (
            f"the teacher was trained on images of {teacher.image_kind}, and the model's have "
            f"{student.image_kind}"
        )
        raise _misfit(problem, "give both the same model.pixels.channels and bits")
    size, other_size = student.resizer.input_size, teacher.resizer.input_size
    if size != other_size:
        problem = (
            f"the teacher was trained at {_spell([other_size])} pixels, and the model's input has "
            f"{_spell([size])}"
        )
        raise _misfit(problem, "give both the same model.resizer")
    shown, other_shown = _shown(student.resizer), _shown(teacher.resizer)
    if shown != other_shown:
        problem = (
            f"the teacher was trained on images that are {other_shown}, and the model's {shown}"
        )
        raise _misfit(problem, "give both the same model.resizer")


def _shown(resizer: schema.Resizer) -> str:
    """Returns how images fill the input of a network; the teacher sees the model's images."""
    if isinstance(resizer, schema.FixedShapeResizer):
        return "stretched to the input"
    padding = getattr(resizer, "pad_value", ())
    return f"padded with {' '.join(f'{value:g}' for value in padding)}"


def teach(
    graph: Structure[Detector] | None,
    arrays: TeacherArrays | None,
    batch: Batch,
    config: schema.Distillation | None,
) -> Taught | None:
    """Returns what a teacher predicts for a batch, without a gradient; None without a teacher."""
    if graph is None or config is None:
        return None
    assert arrays is not None
    with jax.named_scope("teacher"):
        teacher = bind_detector(graph, arrays.params, arrays.stats)
        logits = teacher.box_logits(jnp.asarray(batch.images))
    return Taught(jax.lax.stop_gradient(logits), config.weight, config.temperature)


def _one_stage(detector: AbstractDetector) -> OneStageDetector:
    module = detector.module()
    assert isinstance(module, OneStageDetector)
    return module


def _spell(sizes: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{height}x{width}" for height, width in sizes)


def _elsewhere(known: dict[str, object]) -> str:
    place = f"{Setting(FIELD, 'DIR')}"
    return f"{place} names where step {known['step']} of it is now" if "step" in known else place


def _misfit(problem: str, fix: str) -> UserError:
    return UserError(problem, where=FIELD, fix=fix)

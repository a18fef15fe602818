"""What the training step of an experiment is made of, as shapes: decided once, before the program.

No device is used.
"""

from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from stillbox.checkpoints.names import reference_names
from stillbox.devices.mesh import DATA_AXIS
from stillbox.experiment import schema
from stillbox.experiment.run_length import replicas_as_groups
from stillbox.models.build import AbstractDetector, abstract_detector
from stillbox.models.variables import Arrays
from stillbox.training.distillation import Teacher, open_teacher
from stillbox.training.state import TrainState, create_state
from stillbox.training.trainable import select_trainable


@dataclass(frozen=True, eq=False)
class TrainPlan:
    """What one training step is made of."""

    experiment: schema.Experiment
    mesh: Mesh
    replicas: int
    """Equal parts of a batch that "per replica" means."""
    model: schema.Model
    """The experiment's model; its batch norms have a group for each replica."""
    detector: AbstractDetector
    trainable: frozenset[str]
    """Paths of the parameters that the step changes."""
    state: TrainState
    """Shape and type of each array of the state."""
    teacher: AbstractDetector | None
    """The teacher for the input of the model; None: there is none."""


def plan_training(
    experiment: schema.Experiment, mesh: Mesh, teacher: Teacher | None = None
) -> TrainPlan:
    """Decides what a training step is made of; opens the experiment's teacher if none is given.

    Raises:
        UserError: the detector cannot be built, no parameter is left to train, or the model cannot
            learn from the teacher.
    """
    train = experiment.train
    replicas = experiment.devices.replicas or mesh.shape[DATA_AXIS]
    model = replicas_as_groups(experiment.model, train.micro_batch_size, replicas)
    detector = abstract_detector(model, train.precision, train.quantization)
    trainable = select_trainable(detector.params, reference_names(model, detector.params), train)
    opened = teacher or open_teacher(experiment)
    return TrainPlan(
        experiment=experiment,
        mesh=mesh,
        replicas=replicas,
        model=model,
        detector=detector,
        trainable=trainable,
        state=_abstract_state(detector, train, trainable),
        teacher=None if opened is None else opened.detector(model, detector, train.precision),
    )


def _abstract_state(
    detector: AbstractDetector, train: schema.Training, trainable: frozenset[str]
) -> TrainState:
    def create(params: Arrays, stats: Arrays) -> TrainState:
        loss = detector.module().initial_loss_state()
        return create_state(params, stats, train, trainable, loss)

    return jax.eval_shape(create, detector.params, detector.stats)

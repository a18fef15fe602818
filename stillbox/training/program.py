"""The program that trains: one step of an experiment, spread over a mesh.

Everything is expressed as shapes and shardings; neither arrays nor devices are used. The loop, a
benchmark and a compilation for absent devices therefore lower the same program. The programs that
score and predict are in `evaluation/program.py`.
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from stillbox.boxes.structures import Batch
from stillbox.devices.mesh import (
    batch_shardings,
    put_batch,
    put_tree,
    replicated,
    spread_shardings,
    tracing_for,
)
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.build import AbstractDetector
from stillbox.printing import sides_text
from stillbox.training.distillation import Teacher, TeacherArrays
from stillbox.training.plan import TrainPlan, plan_training
from stillbox.training.state import TrainState
from stillbox.training.step import StepFunction, make_train_step

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class TrainProgram:
    """One training step, not yet compiled."""

    mesh: Mesh
    function: StepFunction
    """`(state, batch) -> (state, metrics)`; with a teacher `(state, batch, teacher)`."""
    state: TrainState
    """Shape, type and sharding of each array of the state."""
    batch: Batch
    """Shape, type and sharding of each array of a batch."""
    trainable: frozenset[str]
    """Paths of the parameters that the step changes."""
    replicas: int
    """Equal parts of a batch that "per replica" means."""
    devices: schema.Devices
    """Algorithms of convolutions on CPUs, and where compiled programs are kept."""
    teacher: TeacherArrays | None = None
    """Shape, type and sharding of each array of the teacher; None: there is none."""

    def lower(self) -> jax.stages.Lowered:
        """Returns the traced program, ready to be compiled. It donates the buffers of its state."""
        inputs = self.state, self.batch, *filter(None, [self.teacher])
        state, *others = map(_shardings, inputs)
        # The next step expects the state with the same sharding.
        jitted = jax.jit(
            self.function,
            donate_argnums=0,
            in_shardings=(state, *others),
            out_shardings=(state, replicated(self.mesh)),
        )
        with tracing_for(self.mesh, self.devices):
            return jitted.lower(*inputs)

    def put_state(self, state: TrainState) -> TrainState:
        """Places a state on the devices as the step expects it."""
        return put_tree(state, _shardings(self.state))

    def put_teacher(self, teacher: Teacher | None) -> tuple[TeacherArrays, ...]:
        """Places a teacher on the devices: the arguments of the step after state and batch."""
        if teacher is None or self.teacher is None:
            return ()
        return (put_tree(teacher.arrays(self.teacher), _shardings(self.teacher)),)

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the images of a batch, in pixels."""
        return self.batch.input_size

    def put_batch(self, batch: Batch) -> Batch:
        """Moves the rows of a batch that this process has to where the step wants them."""
        return put_batch(batch, self.mesh)


def train_program(plan: TrainPlan) -> TrainProgram:
    """Returns the training step of a plan."""
    experiment, mesh, state = plan.experiment, plan.mesh, plan.state
    train, data = experiment.train, experiment.data
    shapes = abstract_batch(train.batch_size, plan.model, data.train.max_boxes, data.pixels)
    return TrainProgram(
        mesh=mesh,
        function=make_train_step(
            plan.detector.graph,
            train,
            plan.trainable,
            replicas=plan.replicas,
            teacher_graph=plan.teacher.graph if plan.teacher else None,
            backbone_layers=_backbone_layers(plan.model),
        ),
        state=_placed(state, state_shardings(state, mesh, experiment.devices)),
        batch=_placed(shapes, batch_shardings(shapes, mesh)),
        trainable=plan.trainable,
        replicas=plan.replicas,
        devices=experiment.devices,
        teacher=_replicated(plan.teacher, mesh) if plan.teacher else None,
    )


def train_programs(
    experiment: schema.Experiment, mesh: Mesh, teacher: Teacher | None = None
) -> tuple[TrainProgram, ...]:
    """Returns the training step for each input size that the experiment is trained at.

    The arguments are as in `plan_training`. The steps share one state.

    Raises:
        UserError: as `plan_training`, or the parameters depend on the size.
    """
    first, *others = (
        train_program(plan_training(sized, mesh, teacher)) for sized in experiment.at_input_sizes
    )
    for other in others:
        if other.state != first.state or other.trainable != first.trainable:
            sizes = " and ".join(sides_text(program.input_size) for program in (first, other))
            problem = f"the model has other parameters at the input sizes {sizes}"
            raise UserError(
                problem, where="train.input_sizes", fix="give one size, as model.resizer"
            )
    return first, *others


def _backbone_layers(model: schema.Model) -> tuple[str, ...]:
    if isinstance(model, schema.OneStage | schema.FasterRcnn):
        return model.backbone.layers
    return ()


def state_shardings(state: TrainState, mesh: Mesh, settings: schema.Devices) -> TrainState:
    """Returns the sharding of each array of a state: replicated, except what `shard` names."""
    shardings: TrainState = jax.tree.map(lambda _: replicated(mesh), state)
    if settings.shard == "nothing":
        return shardings
    spread = partial(spread_shardings, mesh=mesh)
    return shardings._replace(optimizer=spread(state.optimizer), ema=spread(state.ema))


def abstract_batch(
    batch_size: int, model: schema.Model, max_boxes: int, pixels: str = "float32"
) -> Batch:
    """Returns the shapes and types of a batch of `batch_size` images with `max_boxes` boxes.

    `pixels` is the type of the images.
    """

    def zeros() -> Batch:
        return Batch(
            images=jnp.zeros((batch_size, *model.image_shape), pixels),
            boxes=jnp.zeros((batch_size, max_boxes, 4), jnp.float32),
            classes=jnp.zeros((batch_size, max_boxes), jnp.int32),
            weights=jnp.zeros((batch_size, max_boxes), jnp.float32),
            true_sizes=jnp.zeros((batch_size, 2), jnp.int32),
            records=jnp.zeros(batch_size, jnp.int32),
            image_weights=jnp.zeros(batch_size, jnp.float32),
        )

    return jax.eval_shape(zeros)


def _replicated(teacher: AbstractDetector, mesh: Mesh) -> TeacherArrays:
    arrays = TeacherArrays(teacher.params, teacher.stats)
    return _placed(arrays, jax.tree.map(lambda _: replicated(mesh), arrays))


def _placed(shapes: Tree, shardings: Tree) -> Tree:
    placed: Tree = jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        shapes,
        shardings,
    )
    return placed


def _shardings(placed: Tree) -> Tree:
    shardings: Tree = jax.tree.map(lambda shape: shape.sharding, placed)
    return shardings

"""The memory that a run needs on a device and on the host, by use, from shapes alone.

The sizes of a model's arrays come from tracing its training step; nothing is computed. No
compilation of the program needs less than the lower estimate, so a run may be refused by it. The
upper one was enough for all compilations that were measured. The factors are ratios of the memory
of compiled training steps to what automatic differentiation keeps: .5 to 1.3 for the compared
programs in `docs/gpu_verdicts.json` and `docs/tpu_verdicts.json`, down to .26 if the compiler
computes twice what does not fit, and 1.0 to 2.4 on a CPU (1.9 in bfloat16). Rematerialised blocks
keep less, but what one block computes again is added: 2.2 to 2.7 on a CPU.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from stillbox.boxes.structures import Batch
from stillbox.checkpoints.names import reference_names
from stillbox.checkpoints.packed import open_model
from stillbox.devices.setup import collection_paused
from stillbox.experiment import schema
from stillbox.experiment.run_length import batch_norms
from stillbox.experiment.schema import Experiment
from stillbox.inputs.memory import MOST_RECENT
from stillbox.lowering import lowering
from stillbox.models.anchors import anchors_per_location
from stillbox.models.build import AbstractDetector, abstract_detector
from stillbox.models.detector import LossInputs
from stillbox.models.rematerialization import set_rematerialization
from stillbox.models.variables import Arrays, bind_detector
from stillbox.training.program import abstract_batch
from stillbox.training.state import TrainState, create_state
from stillbox.training.trainable import select_trainable

# Larger images and more classes are extrapolated: anchors and their order are computed even where
# only shapes count.
_MOST_PIXELS, _TRACED_SIDE = 1536**2, 1024
# Boxes of an image; they do not change what is kept for the gradient.
_BOXES = 8
_MOST_CLASSES, _TRACED_CLASSES = 2000, (100, 200)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes and numbers of one model; activations and anchors grow with the pixels of an image."""

    parameters: float
    """Parameters and moving statistics, bytes."""
    optimizer: float
    """Accumulators of the optimizer, bytes."""
    average: float
    """Moving average of the parameters, bytes."""
    activations: float
    """What automatic differentiation keeps of one image for the gradient, bytes."""
    anchors: float
    """Anchors of one image."""
    teacher: float = 0.0
    """Arrays of the teacher, bytes."""
    teacher_activations: float = 0.0
    """What differentiation would keep of the teacher's forward pass of one image, bytes."""

    def with_pixels(self, factor: float) -> "Sizes":
        """Returns the sizes for images with `factor` times as many pixels."""
        return replace(
            self,
            activations=self.activations * factor,
            anchors=self.anchors * factor,
            teacher_activations=self.teacher_activations * factor,
        )

    def mixed(self, other: "Sizes", share: float) -> "Sizes":
        """Returns the sizes on the line from these to others; `share` 1 gives the others."""
        theirs = vars(other)
        values = {name: size + share * (theirs[name] - size) for name, size in vars(self).items()}
        return Sizes(**values)


def many_classes(model: schema.Model) -> bool:
    """Whether a model has so many classes that its sizes are extrapolated from smaller ones."""
    return model.num_classes > _MOST_CLASSES


def sizes_of(
    model: schema.Model, train: schema.Training, *, extrapolate: bool | None = None
) -> Sizes:
    """Returns the sizes of a model of any size within seconds.

    Args:
        extrapolate: take the sizes from two models of few classes; None: if `many_classes`.

    Raises:
        UserError: the model cannot be built.
    """
    teacher = _sizes_of_teacher(model, train)
    height, width = model.network_size
    scale = 1.0
    if height * width > _MOST_PIXELS:
        small = schema.FixedShapeResizer(height=_TRACED_SIDE, width=_TRACED_SIDE)
        model, scale = replace(model, resizer=small), height * width / _TRACED_SIDE**2
        if isinstance(model, schema.OneStage) and _TRACED_SIDE % model.pad_to_multiple:
            model = replace(model, pad_to_multiple=1)
    # Everything else does not change the sizes, and would trace the same again.
    train = schema.Training(
        optimizer=replace(train.optimizer, schedule=schema.ConstantSchedule()),
        ema_decay=None if train.ema_decay is None else 0.5,
        ema_statistics=train.ema_statistics,
        precision=train.precision,
        rematerialization=train.rematerialization,
        freeze=train.freeze,
        trainable=train.trainable,
    )
    if many_classes(model) if extrapolate is None else extrapolate:
        first, second = _TRACED_CLASSES
        few, more = (_traced(replace(model, num_classes=n), train) for n in _TRACED_CLASSES)
        sizes = few.mixed(more, (model.num_classes - first) / (second - first))
    else:
        sizes = _traced(model, train)
    sizes = sizes.with_pixels(scale)
    if teacher is None:
        return sizes
    return replace(sizes, teacher=teacher.parameters, teacher_activations=teacher.activations)


def _sizes_of_teacher(model: schema.Model, train: schema.Training) -> Sizes | None:
    """Returns the sizes of the teacher for the input of a model; None if there is none here."""
    path = train.distillation and train.distillation.teacher
    if not path or not Path(path).exists():
        return None
    theirs = open_model(Path(path)).read_experiment().model
    return sizes_of(
        replace(theirs, resizer=model.resizer), schema.Training(precision=train.precision)
    )


@lru_cache(maxsize=16)
# Forms for single platforms keep almost the same arrays, and take longer to trace.
@lowering(portable=True)
@collection_paused()
def _traced(model: schema.Model, train: schema.Training) -> Sizes:
    detector = abstract_detector(model, train.precision, train.quantization)
    trainable = select_trainable(detector.params, reference_names(model, detector.params), train)

    def create(params: Arrays, stats: Arrays) -> TrainState:
        return create_state(params, stats, train, trainable, {})

    state = jax.eval_shape(create, detector.params, detector.stats)
    return Sizes(
        parameters=_nbytes((state.params, state.stats)),
        optimizer=_nbytes(state.optimizer),
        average=_nbytes(state.ema),
        activations=_activations(detector, model, trainable, train.rematerialization),
        anchors=_anchors(detector, model),
    )


def _activations(
    detector: AbstractDetector,
    model: schema.Model,
    trainable: frozenset[str],
    kind: schema.Rematerialization,
) -> float:
    """Returns the bytes that the gradient needs of the forward pass of one image."""
    # Groups of a batch norm are whole.
    groups = (norm.group_size for _, norm in batch_norms(model) if norm.statistics == "groups")
    images = max([1, *groups])

    def kept(params: Arrays, stats: Arrays, batch: Batch) -> object:
        frozen = {path: array for path, array in params.items() if path not in trainable}

        def loss(trained: Arrays) -> jax.Array:
            module = bind_detector(detector.graph, frozen | trained, stats)
            set_rematerialization(module, kind)
            step, key = jnp.zeros((), jnp.int32), jax.random.key(0)
            output = module.loss(LossInputs(batch, module.initial_loss_state(), step, key))
            return sum(output.terms.values(), jnp.zeros(()))

        # The leaves of this function are the arrays that it keeps.
        return jax.vjp(loss, {path: params[path] for path in sorted(trainable)})[1]

    batch = abstract_batch(images, model, _BOXES)
    arrays = jax.tree.leaves(jax.eval_shape(kept, detector.params, detector.stats, batch))
    # Kernels are kept too, but they are no copies.
    kernels = {array.shape for array in detector.params.values()}
    return _nbytes([array for array in arrays if array.shape not in kernels]) / images


def _anchors(detector: AbstractDetector, model: schema.Model) -> float:
    if model.anchor_stage is None:
        return 0.0
    shapes = detector.module().feature_shapes
    per_location = anchors_per_location(model.anchor_stage.anchors, len(shapes))
    maps = zip(shapes, per_location, strict=True)
    return float(sum(rows * columns * count for (rows, columns), count in maps))


def _nbytes(tree: object) -> float:
    return float(sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(tree)))


Platform = Literal["cpu", "gpu", "tpu"]

# Least share of the kept activations that a compiled step holds: compilers for accelerators compute
# some of them twice, that for CPUs hardly any.
_LOWER = {"cpu": 0.4, "gpu": 0.3, "tpu": 0.15}
# TPUs pad small channels to whole tiles.
_UPPER = {"cpu": 2.75, "gpu": 1.3, "tpu": 1.6}
# XLA computes bfloat16 in float32 on a CPU, and keeps results in float32.
_BFLOAT16_ON_CPU = 2.0
# Memory of a process without its arrays: libraries, the compiler and its programs. Two recipes
# took 1.2 and 1.5 GiB on a CPU.
_PROCESS = 2**31
# Likewise of a process that makes batches, which took 140 to 180 MiB.
_INPUT_PROCESS = 2**28
# Without a gradient no more is alive at once than enters the blocks, a quarter of all.
_ALIVE = 0.25
# Batches on the device ahead of their use.
_AHEAD = 2
_FLOAT = 4


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bytes: certain to be needed, and certain to be enough."""

    low: float
    high: float

    def __add__(self, other: "Bounds") -> "Bounds":
        return Bounds(low=self.low + other.low, high=self.high + other.high)


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Memory of a run by use, on one device except for `host`."""

    parameters: Bounds
    """Parameters, moving statistics and the gradient, and the arrays of a teacher."""
    optimizer: Bounds
    """Accumulators and the moving average."""
    activations: Bounds
    """What is kept of the forward pass for the gradient, and what a teacher computes."""
    batch: Bounds
    """Batches on the device."""
    matching: Bounds
    """Overlaps of anchors and boxes."""
    evaluation: Bounds
    """A batch of evaluation with its predictions; it replaces the activations."""
    host: Bounds
    """Batches that are prepared ahead, in the host's memory."""

    @property
    def device(self) -> Bounds:
        """What is on a device at the same time."""
        state = self.parameters + self.optimizer
        step = self.activations + self.batch + self.matching
        return Bounds(
            low=state.low + max(step.low, self.evaluation.low),
            high=state.high + max(step.high, self.evaluation.high),
        )


def estimate(
    experiment: Experiment,
    sizes: Sizes,
    platform: Platform,
    *,
    devices: int = 1,
    processes: int = 1,
) -> MemoryEstimate:
    """Returns the needs of a run, by arithmetic.

    Args:
        devices: devices that share a batch.
        processes: processes that share its preparation.
    """
    train, data, model = experiment.train, experiment.data, experiment.model
    height, width = model.network_size
    images = max(train.batch_size / devices, 1 / experiment.devices.spatial_partitions)
    image = _FLOAT * model.image_kind.channels * height * width
    # Box, class and weight.
    row = image + 24 * data.train.max_boxes
    parts = train.accumulation_steps
    shared = devices if experiment.devices.shard != "nothing" else 1
    accumulators = (sizes.optimizer + sizes.average) / shared
    # Of one micro-batch at a time.
    once = images / parts
    kept, taught = sizes.activations * once, sizes.teacher_activations * once * _ALIVE
    if platform == "cpu" and train.precision == "bfloat16":
        kept, taught = kept * _BFLOAT16_ON_CPU, taught * _BFLOAT16_ON_CPU
    overlaps = _FLOAT * once * sizes.anchors * data.train.max_boxes
    scored = max(experiment.evaluation.batch_size / devices, 1) if data.evaluation.paths else 0
    # Boxes and scores of every anchor, then the detections.
    predictions = _FLOAT * (sizes.anchors * (4 + model.num_classes) + 7 * model.max_detections)
    scoring = scored * (image + predictions)
    alive = _ALIVE if train.rematerialization == "none" else 1.0
    made = max(train.batch_size / processes, 1) * row
    low, high = _LOWER[platform], _UPPER[platform]
    forward = high * scored * sizes.activations * alive
    return MemoryEstimate(
        parameters=Bounds(
            low=sizes.parameters + sizes.teacher,
            # The sum of the gradients is beside the gradient of a micro-batch.
            high=(2 if parts == 1 else 3) * sizes.parameters + sizes.teacher,
        ),
        optimizer=Bounds(low=accumulators, high=accumulators),
        activations=Bounds(low=low * kept, high=high * (kept + taught)),
        batch=Bounds(low=images * row, high=(1 + _AHEAD) * images * row),
        matching=Bounds(low=0, high=2 * overlaps),
        evaluation=Bounds(low=scoring, high=4 * scoring + forward),
        # One batch is made while another one is used.
        host=Bounds(
            low=made * max(1, data.batches_ahead),
            high=made * (1 + data.batches_ahead)
            + _PROCESS
            + data.processes * _INPUT_PROCESS
            + (0 if data.tiles is None else MOST_RECENT * max(data.processes, 1)),
        ),
    )

"""The training state, one training step of fixed shape, and the guard of its metrics.

The guard checks the metrics of every step without waiting for the newest one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from operator import add
from typing import NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from stillbox.boxes.structures import AnyArray, Batch
from stillbox.devices.job import local_rows
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.models.detector import Detector
from stillbox.models.layers.lowering.primitives import computed_once, norm_of
from stillbox.models.parallel import replicated
from stillbox.models.rematerialization import set_rematerialization
from stillbox.models.variables import Arrays, bind_detector, read_statistics
from stillbox.textformat.name_patterns import found_in
from stillbox.training.distillation import TeacherArrays, teach
from stillbox.training.optimizer import build_optimizer, build_schedule

Metrics = dict[str, jax.Array]


class Piece(NamedTuple):
    """The input of the loss beside the parameters, for a batch or a part of it."""

    batch: Batch
    stats: Arrays
    """Moving statistics by path, before it."""
    key: jax.Array
    """For all random numbers."""
    divisors: Mapping[str, jax.Array] | None = None
    """`LossOutput.divisors` of the whole; None: of these images."""


class Seen(NamedTuple):
    """The output of the loss beside its value."""

    metrics: Metrics
    stats: Arrays
    """Moving statistics by path, after it."""
    loss: Arrays
    """State of the loss, after it."""
    divisors: Mapping[str, jax.Array]
    """`LossOutput.divisors` of these images."""


Objective = Callable[[Arrays, Piece], tuple[jax.Array, Seen]]
"""From parameters `{path: array}` and a piece to the loss, a scalar, and what was seen."""


def accumulated_gradient(
    objective: Objective, params: Arrays, whole: Piece, parts: int
) -> tuple[Arrays, Seen]:
    """Returns the gradient of a batch of B images, and its metrics.

    `parts` is the number of micro-batches, which divides B; 1: there is no loop. A micro-batch is
    every n-th image, so that each device and each replica has an equal part of it. A `lax.scan`
    over them keeps the activations of one.

    Terms of a loss are divided by sums over images, such as the number of matches. A first pass
    collects these sums, and the second one divides by those of the whole batch; with divisors, the
    objectives of the pieces add up to that of the whole. Where the sums follow from the ground
    truth, the compiler removes the network from the first pass. Statistics of batch norm are those
    of a micro-batch, and moving ones move once a micro-batch.
    """
    gradient_of = jax.value_and_grad(objective, has_aux=True)
    if parts == 1:
        (_, seen), gradient = gradient_of(params, whole)
        return gradient, seen
    numbers, piece_of = jnp.arange(parts), partial(_piece, whole, parts)

    def count(stats: Arrays, number: jax.Array) -> tuple[Arrays, Mapping[str, jax.Array]]:
        _, seen = objective(params, piece_of(number, stats))
        return seen.stats, dict(seen.divisors)

    def add(carry: tuple[Arrays, Arrays], number: jax.Array) -> tuple[tuple[Arrays, Arrays], Seen]:
        summed, stats = carry
        (_, seen), gradient = gradient_of(params, piece_of(number, stats, divisors))
        summed = replicated(jax.tree.map(jnp.add, summed, gradient))
        return (summed, seen.stats), seen._replace(stats={}, divisors={})

    divisors = _summed(jax.lax.scan(count, whole.stats, numbers)[1])
    zeros = jax.tree.map(jnp.zeros_like, params)
    (gradient, stats), seen = jax.lax.scan(add, (zeros, whole.stats), numbers)
    # The state of the loss is computed from the divisors of the whole, or is that of the last part.
    loss = {name: values[-1] for name, values in seen.loss.items()}
    return gradient, Seen(_summed(seen.metrics), stats, loss, divisors)


def _piece(
    whole: Piece,
    parts: int,
    number: jax.Array,
    stats: Arrays,
    divisors: Mapping[str, jax.Array] | None = None,
) -> Piece:

    def rows(array: jax.Array) -> jax.Array:
        divided = array.reshape(-1, parts, *array.shape[1:])
        return jax.lax.dynamic_index_in_dim(divided, number, axis=1, keepdims=False)

    batch = jax.tree.map(rows, whole.batch)
    return Piece(batch, stats, jax.random.fold_in(whole.key, number), divisors)


def _summed(values: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.sum(one, axis=0) for name, one in values.items()}


class TrainState(NamedTuple):
    """The input and output of a step, stored in checkpoints."""

    step: jax.Array
    """int32 scalar, updates done so far; the position in the data follows from it."""
    params: Arrays
    """Parameters by path, float32, frozen ones included."""
    stats: Arrays
    """Moving statistics of batch norm by path, float32."""
    optimizer: optax.OptState
    """Accumulators of the trainable parameters."""
    ema: Arrays
    """Moving average of the parameters by path, and of the statistics with `ema_statistics`; empty
    without one."""
    loss: Arrays
    """Moving average of the matches that the loss is divided by; empty without one."""


def create_state(
    params: Arrays, stats: Arrays, train: schema.Training, trainable: frozenset[str], loss: Arrays
) -> TrainState:
    """Returns the state before the first step.

    `trainable` are the paths of the parameters that training changes, `loss` is
    `Detector.initial_loss_state`.
    """
    optimizer = build_optimizer(train).init({path: params[path] for path in sorted(trainable)})
    averaged = averaged_arrays(params, stats, train)
    ema = _first_average(averaged, train, trainable) if train.ema_decay is not None else {}
    return TrainState(jnp.zeros((), jnp.int32), params, stats, optimizer, ema, loss)


def _first_average(params: Arrays, train: schema.Training, trainable: frozenset[str]) -> Arrays:
    # The original averages trainable parameters only; a frozen parameter is its own average. Others
    # are copied, because the step donates its input buffers and may donate each of them once.
    zeroed = trainable if train.ema_from_zero else frozenset()
    return {
        path: jnp.zeros_like(array) if path in zeroed else jnp.copy(array)
        for path, array in params.items()
    }


def averaged_arrays(params: Arrays, stats: Arrays, train: schema.Training) -> Arrays:
    """Returns the arrays that a moving average follows."""
    return params | stats if train.ema_statistics else params


def arrays_to_score(state: TrainState, *, use_ema: bool) -> tuple[Arrays, Arrays]:
    """Returns the parameters and the moving statistics that are scored."""
    if not (use_ema and state.ema):
        return state.params, state.stats
    params = {path: state.ema[path] for path in state.params}
    return params, {path: state.ema.get(path, array) for path, array in state.stats.items()}


def average_parameters(
    ema: Arrays, params: Arrays, step: jax.Array, train: schema.Training
) -> Arrays:
    """Returns the moving average after a step; empty without one.

    `ema` is the average before the step, `params` are the parameters after it, and `step` is an
    int32 scalar, the updates before it.
    """
    if train.ema_decay is None:
        return ema
    decay = computed_once(partial(_decay_at, highest=train.ema_decay, train=train))(step)
    return {path: decay * ema[path] + (1 - decay) * array for path, array in params.items()}


def _decay_at(step: jax.Array, *, highest: float, train: schema.Training) -> jax.Array:
    """Returns the share of the average that a step keeps."""
    decay = jnp.asarray(highest, jnp.float32)
    if train.ema_warmup:
        # Otherwise the first value would outweigh all of the first 1 / (1 - decay) steps.
        counted = step + (1.0 if train.ema_from_zero else 0.0)
        decay = jnp.minimum(decay, (1.0 + counted) / (10.0 + counted))
    if train.ema_tau:
        decay *= -jnp.expm1(-(step + 1.0) / train.ema_tau)
    if train.ema_copy_first:
        decay = jnp.where(step == 0, 0.0, decay)
    if train.ema_interval > 1:
        decay = jnp.where(step % train.ema_interval == 0, decay, 1.0)
    return decay


def select_trainable(
    paths: Iterable[str], reference_names: Mapping[str, str], train: schema.Training
) -> frozenset[str]:
    """Returns the paths of the parameters that training may change.

    A pattern is searched for in our path and in the name that the parameter has in the original's
    checkpoints, because `freeze_variables` in a `pipeline.config` refers to the latter.

    Raises:
        UserError: a pattern matches nothing, or nothing is left to train.
    """
    paths = frozenset(paths)
    trainable = paths
    if train.trainable:
        trainable = _matching(paths, reference_names, train.trainable, "train.trainable")
    if train.freeze:
        trainable -= _matching(paths, reference_names, train.freeze, "train.freeze")
    if not trainable:
        what = "no parameter is left to train"
        fix = "freeze fewer: for example --set 'train.freeze=[^backbone]'"
        raise UserError(what, where="train.freeze, train.trainable", fix=fix)
    return trainable


def _matching(
    paths: frozenset[str], names: Mapping[str, str], patterns: Iterable[str], where: str
) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    named = {path: names.get(path, "") for path in paths}
    for pattern, matches in found_in(patterns, named, where):
        if not matches:
            fix = f"paths look like {', '.join(sorted(paths)[:3])}"
            raise UserError(f"the pattern {pattern!r} matches no parameter", where=where, fix=fix)
        found |= matches
    return found


class StepFunction(Protocol):
    """One training step."""

    def __call__(
        self, state: TrainState, batch: Batch, teacher: TeacherArrays | None = None, /
    ) -> tuple[TrainState, Metrics]:
        """Returns the state after a batch, and its metrics; a run with a teacher gives its."""


def make_train_step(
    graph: nnx.GraphDef[Detector],
    train: schema.Training,
    trainable: frozenset[str],
    *,
    replicas: int = 1,
    teacher_graph: nnx.GraphDef[Detector] | None = None,
    backbone_layers: Sequence[str] = (),
) -> StepFunction:
    """Returns the function `(state, batch) -> (state, metrics)`, not yet compiled.

    If the loss, the gradient or the result is not finite, the state is unchanged and
    `metrics["finite"]` is false. The caller stops with the last valid state.

    Args:
        trainable: paths of the parameters to change; the others are frozen.
        replicas: equal parts of a batch, if the loss is normalised per replica.
        teacher_graph: static part of the teacher that `train.distillation` names, whose arrays the
            function then takes too.
        backbone_layers: `Backbone.layers` of the model, for `backbone_layer_decay`.
    """
    optimizer = build_optimizer(train, backbone_layers)
    schedule = build_schedule(train.optimizer.schedule)

    parts = train.accumulation_steps

    def loss_function(
        params: Arrays,
        frozen: Arrays,
        state: TrainState,
        teacher: TeacherArrays | None,
        piece: Piece,
    ) -> tuple[jax.Array, Seen]:
        detector: Detector = bind_detector(graph, {**params, **frozen}, piece.stats)
        set_rematerialization(detector, train.rematerialization)
        taught = teach(teacher_graph, teacher, piece.batch, train.distillation)
        # A detector without divisors lacks this parameter.
        whole = {"divisors": piece.divisors} if piece.divisors else {}
        loss = detector.loss(
            piece.batch,
            state.loss,
            step=state.step,
            key=piece.key,
            replicas=replicas,
            taught=taught,
            **whole,
        )
        share = 1.0 if loss.divisors else 1.0 / parts
        terms = {name: share * term for name, term in loss.terms.items()}
        penalty = detector.regularization() / parts if train.regularization else jnp.zeros(())
        total = reduce(add, terms.values()) + penalty
        metrics = {"loss": total, **terms, "regularization_loss": penalty, **loss.metrics}
        return total, Seen(metrics, read_statistics(detector), loss.state, loss.divisors)

    def step(
        state: TrainState, batch: Batch, teacher: TeacherArrays | None = None, /
    ) -> tuple[TrainState, Metrics]:
        params = {path: array for path, array in state.params.items() if path in trainable}
        frozen = {path: array for path, array in state.params.items() if path not in trainable}
        key = jax.random.fold_in(jax.random.key(train.seed), state.step)

        # ---- loss and gradient ----
        def objective(params: Arrays, piece: Piece) -> tuple[jax.Array, Seen]:
            return loss_function(params, frozen, state, teacher, piece)

        gradient, seen = accumulated_gradient(
            objective, params, Piece(batch, state.stats, key), parts
        )
        metrics, stats = seen.metrics, seen.stats
        # The gradient is a sum over the whole batch and replicated; accumulators may be sharded.
        gradient = replicated(gradient)

        # ---- update ----
        with jax.named_scope("update"):
            norm = norm_of(jax.tree.leaves(gradient))
            updates, accumulators = optimizer.update(gradient, state.optimizer, params)
            updated = {**frozen, **cast(Arrays, optax.apply_updates(params, updates))}
            averaged = averaged_arrays(updated, stats, train)
            ema = average_parameters(state.ema, averaged, state.step, train)
            after = TrainState(state.step + 1, updated, stats, accumulators, ema, seen.loss)
            # A huge rate makes infinite parameters from a finite gradient. Huge activations make an
            # infinite variance despite a finite loss. No checkpoint may contain either.
            finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(norm)
            finite &= jnp.isfinite(norm_of(jax.tree.leaves((replicated(updates), stats))))
            after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state)
        metrics |= {"learning_rate": schedule(state.step), "gradient_norm": norm, "finite": finite}
        return after, metrics

    return step


class NonFiniteLossError(FloatingPointError):
    """A loss, gradient or parameter is not finite; the message names step and images."""


class MetricsGuard:
    """Fetches metrics one step late and stops on the first that is not finite.

    The device would be idle if the host waited for the newest step. One step later its metrics are
    available without a wait.
    """

    def __init__(self, name_records: Callable[[np.ndarray], list[str]]) -> None:
        self._name_records = name_records
        self._pending: deque[tuple[int, Metrics, AnyArray]] = deque()

    def push(self, step: int, metrics: Metrics, records: AnyArray) -> None:
        """Takes the metrics of the step just dispatched."""
        self._pending.append((step, metrics, records))

    def pop(self, *, leave: int = 1) -> list[tuple[int, dict[str, float]]]:
        """Returns step and metrics of all but the `leave` newest steps.

        Raises:
            NonFiniteLossError: naming step, loss parts and images.
        """
        seen = []
        while len(self._pending) > leave:
            step, metrics, records = self._pending.popleft()
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            if not values.pop("finite"):
                raise NonFiniteLossError(self._complaint(step, values, local_rows(records)))
            seen.append((step, values))
        return seen

    def _complaint(self, step: int, values: Mapping[str, float], records: np.ndarray) -> str:
        parts = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
        images = "\n    ".join(self._name_records(records))
        return (
            f"step {step}: the loss, its gradient or the new parameters are not finite\n"
            f"  {parts}\n"
            f"  images of the batch:\n    {images}\n"
            "  fix: look at these images' boxes with `stillbox data check`; if they are sound, "
            "lower the learning rate, lengthen its warm-up, or set train.gradient_clip_norm.\n"
            "  Every checkpoint there is was written before this step and is finite."
        )

"""Learning rates by step and by parameter, and update rules, compiled into the train step.

The update rules are optax transformations with the arithmetic of TF1's `tf.train` optimisers. The
path of a parameter shows what it is: `norm.scale` and `norm.bias` of a layer (`norm_k` of level k),
`bias` of a layer, `scale_k` of a head.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements
from stillbox.models.layers.lowering.primitives import computed_once, norm_of
from stillbox.models.variables import Arrays
from stillbox.textformat.name_patterns import found_in

ScheduleFunction = Callable[[ArrayLike], jax.Array]


def build_schedule(schedule: schema.Schedule) -> ScheduleFunction:
    """Returns the function from a step (int32 scalar) to its learning rate (float32 scalar)."""
    function: ScheduleFunction = implementation_of(schedule)(schedule)
    return computed_once(function)


@implements(schema.ConstantSchedule)
def _constant(schedule: schema.ConstantSchedule) -> ScheduleFunction:
    def rate(step: ArrayLike) -> jax.Array:
        return jnp.full_like(jnp.asarray(step, jnp.float32), schedule.learning_rate)

    return _warmed(rate, schedule)


@implements(schema.CosineSchedule)
def _cosine(schedule: schema.CosineSchedule) -> ScheduleFunction:
    total, warmup = schedule.total_steps, schedule.warmup_steps
    if total is None or warmup is None:
        raise UserError(
            "the cosine has no length of its own",
            where="train.optimizer.schedule",
            fix="give total_steps and warmup_steps, or resolve the experiment, which takes them "
            "from train.steps",
        )
    start = schedule.hold_steps + (0 if schedule.warmup_overlaps else warmup)
    length = max(total - start, 1)
    last = schedule.final_learning_rate
    height = 0.5 * (schedule.learning_rate - last)
    warmed = schedule.learning_rate
    if schedule.warmup_overlaps:
        warmed = last + height * (1 + math.cos(math.pi * max(warmup - start, 0) / length))

    def rate(step: ArrayLike) -> jax.Array:
        now = jnp.asarray(step, jnp.float32)
        slope = (warmed - schedule.warmup_learning_rate) / max(warmup, 1)
        warm = schedule.warmup_learning_rate + slope * now
        cosine = last + height * (1 + jnp.cos(jnp.pi * (now - start) / length))
        # The hold includes its last step only where there is one: without a hold the cosine
        # takes over right after the warm-up.
        hold = now <= start if schedule.hold_steps else False
        held = jnp.where(hold, schedule.learning_rate, cosine)
        after = jnp.where(now < warmup, warm, held)
        return jnp.where(now > total, last, after).astype(jnp.float32)

    return rate


@implements(schema.ExponentialSchedule)
def _exponential(schedule: schema.ExponentialSchedule) -> ScheduleFunction:
    burnin_rate = schedule.burnin_learning_rate or schedule.learning_rate

    def rate(step: ArrayLike) -> jax.Array:
        now = jnp.asarray(step, jnp.float32)
        power = (now - schedule.burnin_steps) / schedule.decay_steps
        power = jnp.floor(power) if schedule.staircase else power
        decayed = schedule.learning_rate * schedule.decay_factor**power
        rate = jnp.where(now < schedule.burnin_steps, burnin_rate, decayed)
        return jnp.maximum(rate, schedule.min_learning_rate).astype(jnp.float32)

    return _warmed(rate, schedule)


@implements(schema.PolynomialSchedule)
def _polynomial(schedule: schema.PolynomialSchedule) -> ScheduleFunction:
    last, height = schedule.final_learning_rate, schedule.learning_rate

    def rate(step: ArrayLike) -> jax.Array:
        now = jnp.minimum(jnp.asarray(step, jnp.float32), schedule.decay_steps)
        left = 1 - now / schedule.decay_steps
        return (last + (height - last) * left**schedule.power).astype(jnp.float32)

    return _warmed(rate, schedule)


_Warmed = schema.ConstantSchedule | schema.ExponentialSchedule | schema.PolynomialSchedule


def _warmed(rate: ScheduleFunction, schedule: _Warmed) -> ScheduleFunction:
    """Returns the function with a linear warm-up to its value at the end of the warm-up."""
    start, length = schedule.warmup_learning_rate, schedule.warmup_steps
    if not length:
        return rate

    def warmed(step: ArrayLike) -> jax.Array:
        now = jnp.asarray(step, jnp.float32)
        line = start + now / length * (rate(length) - start)
        return jnp.where(now < length, line, rate(step)).astype(jnp.float32)

    return warmed


@implements(schema.ManualStepSchedule)
def _manual_step(schedule: schema.ManualStepSchedule) -> ScheduleFunction:
    boundaries = jnp.asarray([step.step for step in schedule.schedule], jnp.int32)
    rates = jnp.asarray(
        [schedule.learning_rate, *(step.learning_rate for step in schedule.schedule)], jnp.float32
    )

    def rate(step: ArrayLike) -> jax.Array:
        now = jnp.asarray(step, jnp.int32)
        flat = rates[jnp.sum(now >= boundaries)]
        if not (schedule.warmup and schedule.schedule):
            return flat
        first = schedule.schedule[0]
        slope = (first.learning_rate - schedule.learning_rate) / first.step
        warm = schedule.learning_rate + slope * now.astype(jnp.float32)
        return jnp.where(now < first.step, warm, flat).astype(jnp.float32)

    return rate


Rule: TypeAlias = optax.GradientTransformation

# Not in the format: TF1's own defaults.
_BETA1, _BETA2 = 0.9, 0.999


def build_optimizer(train: schema.Training, backbone_layers: Sequence[str] = ()) -> Rule:
    """Returns clipping, update rule and learning rates as one transformation.

    The learning rate is read at the step count before the update, so that the first update uses
    the schedule's value at step 0.

    Args:
        backbone_layers: `Backbone.layers` of the model, for `backbone_layer_decay`.
    """
    before = []
    if train.bias_gradient_multiplier != 1:
        before.append(_scale_biases(train.bias_gradient_multiplier))
    # In the order of Keras.
    if train.gradient_clip_value:
        before.append(optax.clip(train.gradient_clip_value))
    if train.gradient_clip_parameter_norm:
        before.append(_clip_norms(train.gradient_clip_parameter_norm))
    if train.gradient_clip_norm:
        before.append(_clip_norm(train.gradient_clip_norm))
    after = []
    if has_rate_factors(train.optimizer):
        after.append(_scale_rates(train.optimizer, tuple(backbone_layers)))
    rate = optax.scale_by_learning_rate(build_schedule(train.optimizer.schedule))
    rule: Rule = implementation_of(train.optimizer)(train.optimizer, rate)
    return optax.chain(*before, rule, *after)


def _clip_norm(largest: float) -> Rule:
    """Scales the gradient of all parameters to a norm that is at most this.

    The clipping of optax sums the squares of each parameter alone, which XLA compiles for each
    shape. This norm is the one that the step reports.
    """
    factor = computed_once(lambda norm: jnp.where(norm < largest, 1.0, largest / norm))

    def clip(gradient: optax.Updates, params: optax.Params | None) -> optax.Updates:
        scale = factor(norm_of(jax.tree.leaves(gradient)))
        return jax.tree.map(lambda array: scale * array, gradient)

    return optax.stateless(clip)


def _clip_norms(largest: float) -> Rule:
    """Scales the gradient of each parameter to a norm that is at most this."""

    def clip(gradient: optax.Updates, params: optax.Params | None) -> optax.Updates:
        arrays = cast(Arrays, gradient)
        return {
            path: array * (largest / jnp.maximum(jnp.linalg.norm(array.ravel()), largest))
            for path, array in arrays.items()
        }

    return optax.stateless(clip)


def _scale_biases(factor: float) -> Rule:
    def scale(gradient: optax.Updates, params: optax.Params | None) -> optax.Updates:
        arrays = cast(Arrays, gradient)
        return {path: factor * arrays[path] if is_bias(path) else arrays[path] for path in arrays}

    return optax.stateless(scale)


def _scale_rates(optimizer: schema.Optimizer, layers: Sequence[str]) -> Rule:
    """Multiplies the learning rates of single parameters.

    All update rules are linear in a constant factor, so the factor may follow them.
    """

    def init(params: optax.Params) -> optax.OptState:
        groups_of(optimizer, cast(Arrays, params))  # refuses what matches nothing
        return optax.EmptyState()

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        arrays = cast(Arrays, updates)
        factors = rate_factors(optimizer, arrays, layers)
        return {path: factors[path] * array for path, array in arrays.items()}, state

    return optax.GradientTransformation(init, update)


@implements(schema.Momentum)
def _momentum(config: schema.Momentum, rate: Rule) -> Rule:
    accumulate = optax.trace(config.momentum, nesterov=config.nesterov)
    inside = config.rate_in_accumulator
    return optax.chain(rate, accumulate) if inside else optax.chain(accumulate, rate)


@implements(schema.RmsProp)
def _rms_prop(config: schema.RmsProp, rate: Rule) -> Rule:
    mean_square = optax.scale_by_rms(
        decay=config.decay,
        eps=config.epsilon,
        initial_scale=config.initial_square,
        eps_in_sqrt=not config.epsilon_outside,
    )
    # TF1 accumulates updates that already carry their rate.
    return optax.chain(mean_square, rate, optax.trace(config.momentum))


@implements(schema.Adagrad)
def _adagrad(config: schema.Adagrad, rate: Rule) -> Rule:
    # optax adds an epsilon, TF1 does not: its accumulator starts above 0.
    return optax.chain(optax.scale_by_rss(config.initial_accumulator, eps=0.0), rate)


@implements(schema.Adadelta)
def _adadelta(config: schema.Adadelta, rate: Rule) -> Rule:
    return optax.chain(optax.scale_by_adadelta(config.rho, config.epsilon), rate)


@implements(schema.Adam)
def _adam(config: schema.Adam, rate: Rule) -> Rule:
    """TF1's Adam: `m * sqrt(1 - b2^t) / (1 - b1^t) / (sqrt(v) + epsilon)`.

    optax adds epsilon to the root of the unbiased second moment instead, which makes it larger by
    `1 / sqrt(1 - b2^t)`: 32 times at the first step.
    """

    def direction(m: jax.Array, v: jax.Array, left1: jax.Array, left2: jax.Array) -> jax.Array:
        return jnp.sqrt(left2) / left1 * m / (jnp.sqrt(v) + config.epsilon)

    return optax.chain(_scale_by_moments(_BETA1, _BETA2, direction), rate)


@implements(schema.AdamW)
def _adamw(config: schema.AdamW, rate: Rule) -> Rule:
    """PyTorch's AdamW: the moments are unbiased before epsilon is added, and the decay follows."""

    def direction(m: jax.Array, v: jax.Array, left1: jax.Array, left2: jax.Array) -> jax.Array:
        epsilon = config.epsilon / jnp.sqrt(left2) if config.raw_epsilon else config.epsilon
        return m / left1 / (jnp.sqrt(v / left2) + epsilon)

    def decay(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        arrays, weights = cast(Arrays, updates), cast(Arrays, params)
        factors = decay_factors(config, arrays)
        return {
            path: array + config.weight_decay * factors[path] * weights[path]
            for path, array in arrays.items()
        }

    moments = _scale_by_moments(config.beta1, config.beta2, direction)
    return optax.chain(moments, optax.stateless(decay), rate)


Direction = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
"""From both moments and `1 - beta^t` of each to the direction of an update."""


def _scale_by_moments(beta1: float, beta2: float, direction: Direction) -> Rule:
    accumulate = optax.scale_by_adam(beta1, beta2)
    # Of a beta of 0 nothing is left after one step.
    logs = [math.log(beta) if beta else -math.inf for beta in (beta1, beta2)]

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        _, state = accumulate.update(updates, state, params)
        moments = cast(optax.ScaleByAdamState, state)
        # `1 - b^t` loses four digits to rounding at the first steps; this does not.
        left1, left2 = (-jnp.expm1(moments.count * log) for log in logs)
        updates = jax.tree.map(lambda m, v: direction(m, v, left1, left2), moments.mu, moments.nu)
        return updates, state

    return optax.GradientTransformation(accumulate.init, update)


_WHERE = "train.optimizer.groups"
# A head multiplies the maps of a level by this parameter.
_LEVEL_SCALE = re.compile(r"scale_\d+")
# The convolutions of one block are layers of their own in some backbones.
_OPERATION = re.compile(r"_(expand|depthwise|pointwise|project)$")
_BLOCK = re.compile(r"(block|unit)_\d+")


def is_bias(path: str) -> bool:
    """Returns whether a parameter is what TF1 calls `biases`.

    The shift of a batch norm is its `beta`, and no bias.
    """
    return path.rpartition(".")[2] == "bias" and not is_norm(path)


def is_norm(path: str) -> bool:
    """Returns whether a parameter is scale or bias of a batch norm or group norm."""
    return path.rpartition(".")[0].rpartition(".")[2].startswith("norm")


def groups_of(
    optimizer: schema.Optimizer, paths: Iterable[str]
) -> dict[str, schema.ParameterGroup]:
    """Returns the first group with a pattern in a path, for each path that has such a group.

    Raises:
        UserError: a group would have no parameter.
    """
    left = dict.fromkeys(paths, "")
    chosen: dict[str, schema.ParameterGroup] = {}
    for group in optimizer.groups:
        ((_, matching),) = found_in([group.pattern], left, _WHERE)
        if not matching:
            raise UserError(
                f"the pattern {group.pattern!r} matches no parameter that is trained and in no "
                "earlier group",
                where=_WHERE,
                fix=f"paths look like {', '.join(sorted(left)[:3])}",
            )
        chosen |= dict.fromkeys(matching, group)
        left = {path: "" for path in left if path not in matching}
    return chosen


def has_rate_factors(optimizer: schema.Optimizer) -> bool:
    """Returns whether any factor of a learning rate may differ from 1."""
    factors = (optimizer.backbone_multiplier, optimizer.backbone_layer_decay)
    return factors != (1, 1) or bool(optimizer.groups)


def rate_factors(
    optimizer: schema.Optimizer, paths: Iterable[str], layers: Sequence[str]
) -> dict[str, float]:
    """Returns the factor of the learning rate of each parameter.

    Args:
        layers: `Backbone.layers` of the model, in the order of their computation.

    Raises:
        UserError: a group would have no parameter.
    """
    paths = list(paths)
    groups = groups_of(optimizer, paths)
    depths = _depths(paths, layers) if optimizer.backbone_layer_decay != 1 else {}
    last = max(depths.values(), default=0)
    factors = {}
    for path in paths:
        factor = groups[path].learning_rate_multiplier if path in groups else 1.0
        if path.startswith("backbone."):
            below = last - depths.get(path, last)
            factor *= optimizer.backbone_multiplier * optimizer.backbone_layer_decay**below
        factors[path] = factor
    return factors


def _depths(paths: Iterable[str], layers: Sequence[str]) -> dict[str, int]:
    """Returns the number of the layer of each parameter of a backbone, from 0 at the image.

    A layer is a block, or a convolution outside of blocks.
    """
    order: dict[str, int] = {}
    for layer in layers:
        order.setdefault(_OPERATION.sub("", layer), len(order))
    places = {}
    for path in paths:
        part, *names = path.split(".")
        if part == "backbone":
            block = names[1] if _BLOCK.fullmatch(names[1]) else "block_0"
            number = int(block.rpartition("_")[2])
            places[path] = (order[_OPERATION.sub("", names[0])], number)
    ranks = {place: rank for rank, place in enumerate(sorted(set(places.values())))}
    return {path: ranks[place] for path, place in places.items()}


def decay_factors(optimizer: schema.AdamW, paths: Iterable[str]) -> Mapping[str, float]:
    """Returns the factor of the weight decay of each parameter.

    The factor of a group takes the place of the factors of norms, biases and level scales, as
    `custom_keys` do in mmengine (`optim/optimizer/default_constructor.py`).
    """
    paths = list(paths)
    groups = groups_of(optimizer, paths)
    factors = {}
    for path in paths:
        factor = groups[path].decay_multiplier if path in groups else None
        factors[path] = _decay_of_kind(optimizer, path) if factor is None else factor
    return factors


def _decay_of_kind(optimizer: schema.AdamW, path: str) -> float:
    if is_norm(path):
        return optimizer.norm_decay_multiplier
    if is_bias(path):
        return optimizer.bias_decay_multiplier
    is_level_scale = _LEVEL_SCALE.fullmatch(path.rpartition(".")[2])
    return optimizer.scale_decay_multiplier if is_level_scale else 1.0

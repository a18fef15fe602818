"""Learning rates by step, compiled into the train step."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import implementation_of, implements

ScheduleFunction = Callable[[jax.Array | int], jax.Array]


def build_schedule(schedule: schema.Schedule) -> ScheduleFunction:
    """Returns the function from a step (int32 scalar) to its learning rate (float32 scalar)."""
    function: ScheduleFunction = implementation_of(schedule)(schedule)
    return function


@implements(schema.ConstantSchedule)
def _constant(schedule: schema.ConstantSchedule) -> ScheduleFunction:
    return lambda step: jnp.full_like(jnp.asarray(step, jnp.float32), schedule.learning_rate)


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
    start = warmup + schedule.hold_steps
    length = max(total - start, 1)

    def rate(step: jax.Array | int) -> jax.Array:
        now = jnp.asarray(step, jnp.float32)
        slope = (schedule.learning_rate - schedule.warmup_learning_rate) / max(warmup, 1)
        warm = schedule.warmup_learning_rate + slope * now
        last = schedule.final_learning_rate
        height = 0.5 * (schedule.learning_rate - last)
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

    def rate(step: jax.Array | int) -> jax.Array:
        now = jnp.asarray(step, jnp.float32)
        power = (now - schedule.burnin_steps) / schedule.decay_steps
        power = jnp.floor(power) if schedule.staircase else power
        decayed = schedule.learning_rate * schedule.decay_factor**power
        rate = jnp.where(now < schedule.burnin_steps, burnin_rate, decayed)
        return jnp.maximum(rate, schedule.min_learning_rate).astype(jnp.float32)

    return rate


@implements(schema.ManualStepSchedule)
def _manual_step(schedule: schema.ManualStepSchedule) -> ScheduleFunction:
    boundaries = jnp.asarray([step.step for step in schedule.schedule], jnp.int32)
    rates = jnp.asarray(
        [schedule.learning_rate, *(step.learning_rate for step in schedule.schedule)], jnp.float32
    )

    def rate(step: jax.Array | int) -> jax.Array:
        now = jnp.asarray(step, jnp.int32)
        flat = rates[jnp.sum(now >= boundaries)]
        if not (schedule.warmup and schedule.schedule):
            return flat
        first = schedule.schedule[0]
        slope = (first.learning_rate - schedule.learning_rate) / first.step
        warm = schedule.learning_rate + slope * now.astype(jnp.float32)
        return jnp.where(now < first.step, warm, flat).astype(jnp.float32)

    return rate

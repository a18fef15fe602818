"""Update rules with TF1's arithmetic (fact sheet 3.9), as optax transformations."""

import optax

from stillbox.experiment import schema
from stillbox.training.schedules import build_schedule


def build_optimizer(train: schema.Training) -> optax.GradientTransformation:
    """Returns clipping, update rule and learning rate as one transformation.

    The learning rate is read at the step count before the update, so that the first update uses
    the schedule's value at step 0.
    """
    clip = [optax.clip_by_global_norm(train.gradient_clip_norm)] if train.gradient_clip_norm else []
    return optax.chain(*clip, _rule(train.optimizer))


def _rule(optimizer: schema.Optimizer) -> optax.GradientTransformation:
    rate = optax.scale_by_learning_rate(build_schedule(optimizer.schedule))
    if isinstance(optimizer, schema.Momentum):
        # The rate multiplies the accumulator: a change of rate takes effect at once.
        return optax.chain(optax.trace(optimizer.momentum), rate)
    if isinstance(optimizer, schema.RmsProp):
        mean_square = optax.scale_by_rms(
            decay=optimizer.decay, eps=optimizer.epsilon, initial_scale=1.0, eps_in_sqrt=True
        )
        # TF1 accumulates updates that already carry their rate.
        return optax.chain(mean_square, rate, optax.trace(optimizer.momentum))
    return optax.chain(optax.scale_by_adam(eps=optimizer.epsilon), rate)

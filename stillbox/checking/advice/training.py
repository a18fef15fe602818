"""Advice about `train`: learning rates, moving averages, penalties, rounding, unused fields.

The height of a learning rate belongs to the batch, the length of its schedule to the steps.
Moving averages, of batch norm and of the parameters, take steps to converge, and
quantisation-aware training takes steps with rounding.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.rules import frozen_fresh_statistics
from stillbox.experiment.rules.rule import Remark, Remarks, Written, rule
from stillbox.printing import count_text
from stillbox.references import Setting

_PATH = "train.optimizer.schedule"
# Batch -> rate of the published configs for TPUs, with a momentum of .9.
_PUBLISHED = {64: 0.04, 512: 0.7, 1024: 0.9}
_PUBLISHED_MOMENTUM = 0.9
# Factors by which a rate may differ from all of them; among themselves they differ by 2.2.
_TOO_HIGH, _TOO_LOW = 3.0, 10.0
# A cosine is down to 2.4 % of its rate after nine tenths of its decay.
_NEARLY_DONE = 0.9


@rule(schema.Experiment, severity="warning", on="checking")
def rate_fits_the_batch(experiment: schema.Experiment) -> Remarks:
    """The linear scaling rule (arXiv:1706.02677): half the batch needs half the rate."""
    train = experiment.train
    # Adaptive optimizers scale their steps themselves; no rule holds for them.
    if not isinstance(train.optimizer, schema.Momentum) or train.optimizer.momentum >= 1.0:
        return
    # A momentum m makes every gradient count 1 / (1 - m) times.
    reach = (1 - _PUBLISHED_MOMENTUM) / (1 - train.optimizer.momentum)
    peak = train.optimizer.schedule.peak_rate()
    fitting = {batch: rate * train.batch_size / batch / reach for batch, rate in _PUBLISHED.items()}
    low, high = min(fitting.values()), max(fitting.values())
    if low / _TOO_LOW <= peak <= high * _TOO_HIGH or peak == 0:
        return
    closest = min(_PUBLISHED, key=lambda batch: abs(math.log(batch / train.batch_size)))
    scaled = fitting[closest]
    effect = "such runs end in NaN" if peak > high else "such runs hardly learn"
    yield Remark(
        f"{_PATH}.learning_rate",
        f"a learning rate of {peak:g} is out of scale with a batch of {train.batch_size}: "
        f"{effect}; the linear rule gives {scaled:.2g} (published: {_PUBLISHED[closest]:g} for "
        f"{closest}), and {low:.2g} to {high:.2g} over all published rates",
        _scaling(train.optimizer.schedule, scaled / peak),
        # A rate that is too low costs time; it can be meant, where good weights are only adjusted.
        "warning" if peak > high else "note",
    )


def _scaling(schedule: schema.Schedule, factor: float) -> str:
    """Returns the options that multiply all rates of a schedule."""
    if isinstance(schedule, schema.ManualStepSchedule):
        return f"multiply learning_rate and every scheduled rate by {factor:.2g}"
    rates = {"learning_rate": schedule.learning_rate}
    if rate := getattr(schedule, "burnin_learning_rate", 0):
        rates["burnin_learning_rate"] = rate
    if getattr(schedule, "warmup_steps", 0):
        rates["warmup_learning_rate"] = getattr(schedule, "warmup_learning_rate", 0)
    return " ".join(
        f"{Setting(f'{_PATH}.{name}', f'{rate * factor:.2g}')}" for name, rate in rates.items()
    )


@rule(schema.Experiment, severity="warning", on="checking")
def a_high_rate_is_warmed_up(experiment: schema.Experiment) -> Remarks:
    """A large rate is reached gradually."""
    optimizer = experiment.train.optimizer
    schedule = optimizer.schedule
    peak, warmed = schedule.peak_rate(), schedule.is_warmed_up()
    if isinstance(optimizer, schema.Momentum) and not warmed and peak >= min(_PUBLISHED.values()):
        problem = f"a learning rate of {peak:g} from the first step on, without a warm-up"
        fixes = {
            "manual_step": f"{Setting(f'{_PATH}.warmup', True)}",
            "exponential": f"set {_PATH}.burnin_steps and burnin_learning_rate",
            "polynomial": f"set {_PATH}.warmup_steps, for example 1000",
        }
        cosine = f"take a cosine with {_PATH}.warmup_steps, for example 1000"
        fix = fixes.get(schedule.kind, cosine)
        yield Remark(f"{_PATH}.learning_rate", problem, fix)


@rule(schema.Experiment, severity="warning", on="checking")
def warm_up_ends(experiment: schema.Experiment) -> Remarks:
    """The warm-up is shorter than training."""
    schedule, steps = experiment.train.optimizer.schedule, experiment.train.steps
    name, length = schedule.first_fall()
    if 0 < steps <= length:
        problem = (
            f"the warm-up takes {count_text(length, 'step')} and training {steps:,}: the rate "
            "never gets beyond it"
        )
        fix = f"shorten it to some {count_text(max(1, steps // 20), 'step')}, or raise train.steps"
        yield Remark(f"{_PATH}.{name}", problem, fix)


@rule(schema.Experiment, severity="warning", on="checking")
def cosine_ends_with_training(experiment: schema.Experiment) -> Remarks:
    """A cosine ends with training: its last steps with a small rate improve the model most."""
    schedule, steps = experiment.train.optimizer.schedule, experiment.train.steps
    if not isinstance(schedule, schema.CosineSchedule) or schedule.total_steps is None:
        return
    total, path = schedule.total_steps, f"{_PATH}.total_steps"
    start = (schedule.warmup_steps or 0) + schedule.hold_steps
    if not steps:
        problem = f"training has no end, and the learning rate is 0 from step {total} on"
        yield Remark("train.steps", problem, f"{Setting('train.steps', total)}")
    elif start < steps < start + _NEARLY_DONE * (total - start):
        rate = 0.5 * (1 + math.cos(math.pi * (steps - start) / (total - start)))
        problem = (
            f"training ends at step {steps} of a schedule of {total}: the learning rate is still "
            f"at {100 * rate:.0f} % of its height"
        )
        yield Remark(path, problem, f"{Setting(path, steps)}")


@rule(schema.Experiment, severity="warning", on="checking")
def rates_are_reached(experiment: schema.Experiment) -> Remarks:
    """Boundaries of a schedule after the end of training have no effect."""
    schedule, steps = experiment.train.optimizer.schedule, experiment.train.steps
    if isinstance(schedule, schema.ManualStepSchedule) and steps:
        late = [boundary.step for boundary in schedule.schedule if boundary.step >= steps]
        if late:
            yield Remark(
                f"{_PATH}.schedule.{len(schedule.schedule) - len(late)}.step",
                f"the rate of step {late[0]} is never used: training ends at step {steps}",
                "move the boundary forward, or raise train.steps",
            )
    if isinstance(schedule, schema.ExponentialSchedule) and 0 < steps <= schedule.decay_steps:
        falls = "falls" if schedule.staircase else "has fallen by one factor"
        problem = (
            f"the rate {falls} only after {count_text(schedule.decay_steps, 'step')}, and training "
            f"has {steps:,}"
        )
        fix = f"for ten steps down: {Setting(f'{_PATH}.decay_steps', max(1, steps // 10))}"
        yield Remark(f"{_PATH}.decay_steps", problem, fix, "note")


@rule(schema.Experiment, severity="note", on="checking")
def epochs_last(experiment: schema.Experiment) -> Remarks:
    """A number of epochs may end training before its steps."""
    epochs = experiment.data.train.num_epochs
    if epochs and experiment.train.steps:
        problem = (
            f"training ends after {epochs} passes over the records, or after "
            f"{count_text(experiment.train.steps, 'step')}, whichever comes first"
        )
        yield Remark("data.train.num_epochs", problem)


# The part of the initial variances, of 1, that may be left without a warning: one in a hundred.
_LEFT = 0.01
# Variances in a head with small kernels are near .01. With a quarter of that left, its signals in
# evaluation are several times smaller in each layer than in training, and nothing is detected.
_SETTLED = 1e-4
_USUAL_DECAYS = (0.9997, 0.999, 0.997, 0.99, 0.97, 0.9)
# With a lower decay the statistics would follow the last batch alone.
_LEAST_DECAY = 0.5
# Statistics of smaller batches are mostly noise (arXiv:1803.08494).
_SMALL_BATCH = 8


@rule(schema.Experiment, severity="warning", on="checking")
def statistics_arrive(experiment: schema.Experiment) -> Remarks:
    """The moving statistics of batch norm, used in evaluation, must forget their start."""
    steps = experiment.train.steps
    slow, fitting = _slow_norms(experiment, _LEFT)
    for decay, paths in slow.items():
        problem = (
            f"batch norm with a decay of {decay:g} over {count_text(steps, 'step')}: "
            f"{100 * decay**steps:.0f} % of the moving statistics is still what training began "
            f"with, and evaluation normalises with them"
        )
        fix = " ".join(f"{Setting(f'{path}.decay', f'{fitting:g}')}" for path in paths)
        yield Remark(f"{paths[0]}.decay", problem, fix)


def settling_decays(experiment: schema.Experiment) -> dict[str, float]:
    """Returns the decays, by field, with which moving statistics settle within the steps."""
    slow, fitting = _slow_norms(experiment, _SETTLED)
    return {f"{path}.decay": fitting for paths in slow.values() for path in paths}


def _slow_norms(
    experiment: schema.Experiment, left: float
) -> tuple[Mapping[float, list[str]], float]:
    """Returns the paths of batch norms that do not settle, by decay, and a decay that does."""
    steps = experiment.train.steps
    slow = defaultdict(list)
    fitting = next((usual for usual in _USUAL_DECAYS if usual**steps <= left), _LEAST_DECAY)
    for path, norm in _trained_norms(experiment.model) if steps else ():
        # A trial of a few steps has no decay that is low enough.
        if norm.decay**steps > left and norm.decay > fitting:
            slow[norm.decay].append(path)
    return slow, fitting


@rule(schema.Experiment, severity="warning", on="checking")
def statistics_have_a_batch(experiment: schema.Experiment) -> Remarks:
    """Statistics of few images are noise; the global batch counts."""
    batch = experiment.train.batch_size
    if batch < _SMALL_BATCH and any(_trained_norms(experiment.model)):
        problem = f"batch norm takes its statistics from {count_text(batch, 'image')}"
        fix = (
            f"a batch of at least {_SMALL_BATCH}, or, with a checkpoint to start from, "
            f"{Setting('model.freeze_batch_norm', True)}"
        )
        yield Remark("train.batch_size", problem, fix)


@rule(schema.Experiment, severity="warning", on="checking")
def statistics_have_weights(experiment: schema.Experiment) -> Remarks:
    """Moving statistics belong to the weights that they were measured with."""
    finding = frozen_fresh_statistics(experiment)
    if finding is not None:
        fix = f"{Setting('train.fine_tune.checkpoint', 'PATH')}"
        yield Remark(finding.path, finding.what, fix)


@rule(schema.Experiment, severity="warning", on="checking")
def averages_arrive(experiment: schema.Experiment) -> Remarks:
    """The moving average of the parameters must forget the initial ones."""
    train, decay = experiment.train, experiment.train.ema_decay
    forgets = train.ema_warmup or train.ema_tau or train.ema_copy_first
    if decay is None or forgets or not train.steps or decay**train.steps <= _LEFT:
        return
    yield Remark(
        "train.ema_decay",
        f"the moving average of the parameters keeps {100 * decay**train.steps:.0f} % of the "
        f"first ones over {count_text(train.steps, 'step')} (decay {decay:g})",
        f"{Setting('train.ema_warmup', True)}",
        "warning" if experiment.evaluation.use_ema else "note",
    )


@rule(Written, severity="warning", on="checking")
def averages_exist(written: Written) -> Remarks:
    """Evaluation cannot use an average that training does not compute."""
    asked = "evaluation.use_ema" in written.fields and written.experiment.evaluation.use_ema
    if asked and written.experiment.train.ema_decay is None:
        problem = "use_ema (use_moving_averages) has no effect: training keeps no moving average"
        fix = f"{Setting('train.ema_decay', 0.9999)}, or take it out"
        yield Remark("evaluation.use_ema", problem, fix)


def _trained_norms(model: schema.Model) -> Iterator[tuple[str, schema.BatchNorm]]:
    """Yields the batch norms that some layer trains, with their paths."""
    if getattr(model, "freeze_batch_norm", False):
        return
    neck, head = getattr(model, "neck", None), getattr(model, "head", None)
    unused = {
        "neck.conv": isinstance(neck, schema.Ppn) and not neck.depth,
        "head.conv": not _has_layers(head),
    }
    for path, conv in model.convolutions().items():
        if conv.batch_norm is not None and conv.batch_norm.train and not unused.get(path):
            yield f"model.{path}.batch_norm", conv.batch_norm


def _has_layers(head: object) -> bool:
    """Whether batch norms are between a feature map and the last convolutions."""
    if not isinstance(head, schema.ConvolutionalHead | schema.WeightSharedHead):
        return False
    between = head.layers_before > 0
    if isinstance(head, schema.ConvolutionalHead):
        between = between and head.max_depth > 0
    return between or head.depthwise


# A larger penalty drives kernels to zero; configs that train have 1e-5 to 1e-3.
_LARGE_PENALTY = 0.01


@rule(Written, severity="warning", on="checking")
def penalties_are_small(written: Written) -> Remarks:
    """A regularizer without a weight has the format's default, 1.0."""
    for place, conv in written.experiment.model.convolutions().items():
        penalty = conv.regularizer
        if isinstance(penalty, schema.L1 | schema.L2) and penalty.weight > _LARGE_PENALTY:
            path = f"model.{place}.regularizer.weight"
            default = "" if path in written.fields else ", the format's default,"
            problem = f"a weight of {penalty.weight:g}{default} presses all kernels to zero"
            yield Remark(path, problem, f"{Setting(path, 4e-05)}")


@rule(schema.Experiment, severity="warning", on="checking")
def penalties_are_added(experiment: schema.Experiment) -> Remarks:
    """Regularizers have an effect only if the loss includes them."""
    penalties = [conv.regularizer for conv in experiment.model.convolutions().values()]
    # A penalty of weight 0 is none.
    counted = any(getattr(penalty, "weight", penalty) for penalty in penalties)
    if not experiment.train.regularization and counted:
        problem = "regularization (add_regularization_loss) is false: no regularizer has an effect"
        fix = f"{Setting('train.regularization', True)}, or take the regularizers out"
        yield Remark("train.regularization", problem, fix)


@rule(schema.Experiment, severity="warning", on="checking")
def rounding_is_trained(experiment: schema.Experiment) -> Remarks:
    """Weights adapt to rounding in the steps after the delay."""
    train = experiment.train
    if train.quantization is None or not 0 < train.steps <= train.quantization.delay:
        return
    problem = (
        f"rounding begins after {count_text(train.quantization.delay, 'step')}, but there are "
        f"{train.steps}: evaluation and export still round, and the weights never adapt to "
        "it"
    )
    fix = f"{Setting('train.quantization.delay', train.steps * 9 // 10)}"
    yield Remark("train.quantization.delay", problem, fix)


@rule(schema.Experiment, severity="note", on="checking")
def levels_are_exact(experiment: schema.Experiment) -> Remarks:
    """bfloat16 has as many significant bits as a range has by default."""
    if experiment.train.quantization is not None and experiment.train.precision == "bfloat16":
        problem = (
            "bfloat16 rounds once more what quantisation has rounded, off the levels of its range"
        )
        yield Remark("train.precision", problem, f"{Setting('train.precision', 'float32')}")


@rule(Written, severity="note", on="checking")
def clipping_clips(written: Written) -> Remarks:
    """A limit of 0 disables clipping."""
    if (
        "train.gradient_clip_norm" in written.fields
        and not written.experiment.train.gradient_clip_norm
    ):
        problem = "0 leaves gradients as they are: it does not clip them to 0"
        yield Remark("train.gradient_clip_norm", problem)


@rule(Written, severity="note", on="checking")
def first_weights_are_named(written: Written) -> Remarks:
    """Options of reading a checkpoint have no effect without one."""
    if written.experiment.train.fine_tune.checkpoint:
        return
    for name in ("scope", "min_loaded", "skip"):
        path = f"train.fine_tune.{name}"
        if path in written.fields:
            problem = (
                f"{name} has no effect: no checkpoint is named, training starts from random weights"
            )
            yield Remark(path, problem, f"{Setting('train.fine_tune.checkpoint', 'PATH')}")
            return


@rule(schema.Experiment, severity="note", on="checking")
def evaluations_happen(experiment: schema.Experiment) -> Remarks:
    """An interval longer than training has no effect."""
    every, steps = experiment.train.evaluate_every, experiment.train.steps
    if every > steps > 0:
        problem = (
            f"evaluate_every {every:,} is more than the {count_text(steps, 'step')}: the only "
            "evaluation is the one at the end"
        )
        yield Remark("train.evaluate_every", problem)


@rule(schema.Experiment, severity="note", on="checking")
def patterns_match(experiment: schema.Experiment) -> Remarks:
    """Patterns of frozen parameters match some of them, but not all."""
    train = experiment.train
    if not train.freeze and not train.trainable:
        return
    # Only these patterns need jax.
    from stillbox.checkpoints.names import reference_names
    from stillbox.models.build import abstract_detector
    from stillbox.training.trainable import select_trainable

    path = "train.freeze" if train.freeze else "train.trainable"
    try:
        params = abstract_detector(experiment.model, train.precision).params
        trained = select_trainable(params, reference_names(experiment.model, params), train)
    except UserError as error:
        # An error about both fields stands at the field that is set.
        named = path if error.where in (None, "train.freeze, train.trainable") else error.where
        yield Remark(named or path, error.what, error.fix or "", "error")
        return
    sizes = {name: int(params[name].size) for name in params}
    share = sum(sizes[name] for name in trained) / sum(sizes.values())
    problem = (
        f"{len(trained)} of {len(params)} parameters are trained, {100 * share:.0f} % of all "
        "their numbers"
    )
    yield Remark(path, problem)

"""Learning rate schedules, optimizers and their groups of parameters."""

from dataclasses import dataclass, field
from typing import Annotated

from stillbox.experiment.schema.ranges import (
    Fraction,
    FractionBelowOne,
    Items,
    LearningRate,
    Many,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveFraction,
    PositiveInt,
)
from stillbox.experiment.variants import RegisteredConfig


@dataclass(frozen=True, kw_only=True)
class Schedule(RegisteredConfig):
    """Learning rate by step.

    Called as `(config)`; returns the function from a step (int32 scalar) to its rate (float32).
    """

    learning_rate: LearningRate = 0.002
    """The rate that the schedule is relative to."""

    def peak_rate(self) -> float:
        """Returns the highest rate."""
        return self.learning_rate

    def first_fall(self) -> tuple[str, int]:
        """Returns the field of the slow start, and the step until which the rate does not fall."""
        return "", 0

    def is_warmed_up(self) -> bool:
        """Returns whether training begins with other rates than the peak."""
        return self.first_fall()[1] > 0


@dataclass(frozen=True, kw_only=True)
class ConstantSchedule(Schedule, kind="constant"):
    """One rate for all steps, after a linear warm-up.

    No rate depends on the length of the run: a run may be stopped or lengthened at any step. The
    model is then the moving average of the parameters.
    """

    warmup_learning_rate: LearningRate = 0.0
    """Rate at step 0 of a warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Length of the warm-up, whatever the length of the run; 0: there is none."""

    def first_fall(self) -> tuple[str, int]:
        """Returns the end of the warm-up."""
        return "warmup_steps", self.warmup_steps


@dataclass(frozen=True, kw_only=True)
class CosineSchedule(Schedule, kind="cosine"):
    """A linear warm-up, then half a cosine down to `total_steps`
    (`utils/learning_schedules.py`)."""

    learning_rate: LearningRate = 0.002
    """Rate after the warm-up."""
    total_steps: PositiveInt | None = None
    """Step at which the cosine ends; None: `train.steps`."""
    final_learning_rate: LearningRate = 0.0
    """Rate at the end of the cosine and after it."""
    warmup_learning_rate: LearningRate = 0.0002
    """Rate at step 0."""
    warmup_steps: NonNegativeInt | None = None
    """Length of the warm-up; None: a twentieth of `total_steps`. Where that follows the run and the
    warm-up does not fit, it is a twentieth too."""
    hold_steps: NonNegativeInt = 0
    """Steps at the full rate between warm-up and decay."""
    warmup_overlaps: bool = False
    """The cosine begins at step 0, and the warm-up leads to its value at `warmup_steps`, as in
    TensorFlow Model Garden; otherwise the cosine begins after the warm-up."""

    def first_fall(self) -> tuple[str, int]:
        """Returns the end of warm-up and hold."""
        return "warmup_steps", (self.warmup_steps or 0) + self.hold_steps

    def is_warmed_up(self) -> bool:
        """Returns whether there is a warm-up before the hold."""
        return bool(self.warmup_steps)


@dataclass(frozen=True, kw_only=True)
class ExponentialSchedule(Schedule, kind="exponential"):
    """`rate * decay_factor ** ((step - burnin_steps) / decay_steps)`
    (`utils/learning_schedules.py`)."""

    learning_rate: LearningRate = 0.002
    """Rate at the start of the decay."""
    decay_steps: PositiveInt = 4_000_000
    """Steps in which the rate falls by one factor."""
    decay_factor: Positive = 0.95
    """The factor."""
    staircase: bool = True
    """Fall in steps instead of continuously."""
    burnin_learning_rate: LearningRate = 0.0
    """Rate during the first `burnin_steps`; 0 stands for `learning_rate`."""
    burnin_steps: NonNegativeInt = 0
    """Length of the constant start."""
    min_learning_rate: LearningRate = 0.0
    """Least rate, of the constant start too."""
    warmup_learning_rate: LearningRate = 0.0
    """Rate at step 0 of a warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Length of a line to the rate that is due at its end; the decay begins at step 0, as in
    TensorFlow Model Garden. 0: there is none."""

    def peak_rate(self) -> float:
        """Returns the rate of the constant start, or of the decay."""
        return max(self.learning_rate, self.burnin_learning_rate)

    def first_fall(self) -> tuple[str, int]:
        """Returns the end of the constant start, or of a longer warm-up."""
        if self.warmup_steps > self.burnin_steps:
            return "warmup_steps", self.warmup_steps
        return "burnin_steps", self.burnin_steps


@dataclass(frozen=True, kw_only=True)
class PolynomialSchedule(Schedule, kind="polynomial"):
    """`last + (rate - last) * (1 - step / decay_steps) ** power`
    (`tf.keras.optimizers.schedules.PolynomialDecay`)."""

    learning_rate: LearningRate = 0.002
    """Rate at step 0, apart from a warm-up."""
    decay_steps: PositiveInt = 10_000
    """Step at which the decay ends."""
    final_learning_rate: LearningRate = 0.0001
    """Rate at the end of the decay and after it."""
    power: Positive = 1.0
    """1: a straight line."""
    warmup_learning_rate: LearningRate = 0.0
    """Rate at step 0 of a warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Length of a line to the rate that is due at its end; the decay begins at step 0. 0: there is
    none."""

    def first_fall(self) -> tuple[str, int]:
        """Returns the end of the warm-up."""
        return "warmup_steps", self.warmup_steps


@dataclass(frozen=True, kw_only=True)
class ScheduleStep:
    """From `step` on, `learning_rate`."""

    step: NonNegativeInt = 0
    """First step with this rate; 0: it takes the place of the rate before the first boundary."""
    learning_rate: LearningRate = 0.002
    """The rate."""


@dataclass(frozen=True, kw_only=True)
class ManualStepSchedule(Schedule, kind="manual_step"):
    """Piecewise constant rates (`utils/learning_schedules.py`)."""

    learning_rate: LearningRate = 0.002
    """Rate before the first boundary."""
    schedule: Annotated[tuple[ScheduleStep, ...], Many] = ()
    """Boundaries in rising order."""
    warmup: bool = False
    """Go in a straight line from `learning_rate` to the first scheduled rate."""

    def peak_rate(self) -> float:
        """Returns the highest scheduled rate."""
        return max(self.learning_rate, *(step.learning_rate for step in self.schedule), 0.0)

    def first_fall(self) -> tuple[str, int]:
        """Returns the first boundary, where a warm-up leads to it."""
        return "warmup", self.schedule[0].step if self.warmup and self.schedule else 0

    def is_warmed_up(self) -> bool:
        """Returns whether there is a line to the first boundary."""
        return self.warmup


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters with a learning rate or a weight decay of their own."""

    pattern: str = ""
    """Regular expression, found in the paths of the parameters. The first group that matches
    counts."""
    learning_rate_multiplier: NonNegative = 1.0
    """Multiplies their learning rate, on top of the factors of the backbone."""
    decay_multiplier: NonNegative | None = None
    """Multiplies their weight decay, norms, biases and scales included; None: as their kind has it.
    Of `adamw` only."""


@dataclass(frozen=True, kw_only=True)
class Optimizer(RegisteredConfig):
    """Update rule.

    Called as `(config, rate)`, with the learning rate as an optax transformation; returns an optax
    transformation.
    """

    schedule: Schedule = field(default_factory=ConstantSchedule)
    """Learning rate by step."""
    backbone_multiplier: NonNegative = 1.0
    """Multiplies the learning rate of the backbone: below 1 for a pretrained one."""
    backbone_layer_decay: PositiveFraction = 1.0
    """Multiplies it again for each layer between a parameter and the end of the backbone
    (arXiv:2106.08254): a layer is a block, or a convolution outside of blocks."""
    groups: Annotated[tuple[ParameterGroup, ...], Items(1000)] = ()
    """Parameters with a learning rate or a weight decay of their own."""


@dataclass(frozen=True, kw_only=True)
class Momentum(Optimizer, kind="momentum"):
    """SGD with momentum: `a = m * a + g; v = v - lr * a` in TF1."""

    momentum: Fraction = 0.9
    """Share of the accumulated gradient that is kept."""
    rate_in_accumulator: bool = False
    """Accumulate gradients times their rate, `a = m * a - lr * g; v = v + a`, as Keras does: a new
    rate acts on new gradients only. Otherwise it acts on all that are accumulated."""
    nesterov: bool = False
    """Step by the gradient plus the share of the accumulated one, `v = v - lr * (g + m * a)`."""


@dataclass(frozen=True, kw_only=True)
class RmsProp(Optimizer, kind="rms_prop"):
    """TF1's RMSProp: epsilon inside the square root, mean square starts at 1.

    Keras's mean square starts at 0, and without momentum its epsilon is outside of the root.
    """

    momentum: Fraction = 0.9
    """Share of the last update that is kept."""
    decay: Fraction = 0.9
    """Share of the mean square that is kept."""
    epsilon: NonNegative = 1.0
    """Added to the mean square before the root."""
    epsilon_outside: bool = False
    """Add epsilon to the root instead."""
    initial_square: NonNegative = 1.0
    """Mean square at the start."""


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer, kind="adam"):
    """TF1's Adam (arXiv:1412.6980, the efficient form before its section 2.1): epsilon is added to
    the root of the second moment before its bias is taken out."""

    epsilon: NonNegative = 1e-8
    """Added to the root of the raw second moment."""


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer, kind="adamw"):
    """Adam with decoupled weight decay: `v = v - lr * (m / (sqrt(q) + epsilon) + decay * v)`, with
    unbiased moments m and q (arXiv:1711.05101; `torch.optim.AdamW`)."""

    weight_decay: NonNegative = 0.01
    """Share of a parameter that is taken off, times the learning rate."""
    norm_decay_multiplier: NonNegative = 0.0
    """Multiplies the weight decay of scale and bias of batch norms and group norms."""
    bias_decay_multiplier: NonNegative = 0.0
    """Multiplies the weight decay of other biases."""
    scale_decay_multiplier: NonNegative = 0.0
    """Multiplies the weight decay of the scales that a head has for each level."""
    beta1: FractionBelowOne = 0.9
    """Share of the mean gradient that is kept."""
    beta2: FractionBelowOne = 0.999
    """Share of the mean square that is kept."""
    epsilon: NonNegative = 1e-8
    """Added to the root of the unbiased second moment."""
    raw_epsilon: bool = False
    """Add epsilon to the root of the second moment before its bias is taken out, as Keras does."""


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer, kind="adagrad"):
    """TF1's Adagrad: `a = a + g^2; v = v - lr * g / sqrt(a)` (Duchi et al., JMLR 12, 2011)."""

    initial_accumulator: Positive = 0.1
    """Sum of squares at the start."""


@dataclass(frozen=True, kw_only=True)
class Adadelta(Optimizer, kind="adadelta"):
    """TF1's Adadelta (arXiv:1212.5701).

    The paper's learning rate is 1.
    """

    rho: Fraction = 0.95
    """Share of both mean squares that is kept."""
    epsilon: NonNegative = 1e-8
    """Added to both mean squares before the root."""

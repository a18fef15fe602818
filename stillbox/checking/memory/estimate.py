"""The memory that a run needs on a device and on the host, by use.

A lower estimate is needed by every compilation of the program, so that it may refuse; an upper one
is enough for all that were measured. The factors are those of compiled training steps over what
automatic differentiation keeps: .5 to 1.3 for the programs in `docs/gpu_verdicts.json` and
`docs/tpu_verdicts.json` that were compared, down to .26 where the compiler computes twice what does
not fit, and 1.0 to 2.4 on a CPU (1.9 in bfloat16). With rematerialised blocks less is kept; what
one block computes again lies on top: 2.2 to 2.7 on a CPU.
"""

from dataclasses import dataclass
from typing import Literal

from stillbox.checking.memory.traced import Sizes
from stillbox.experiment.schema import Experiment

Platform = Literal["cpu", "gpu", "tpu"]

# Least share of the kept activations that a compiled step holds: compilers for accelerators compute
# some of them twice, that for CPUs hardly any.
_LEAST = {"cpu": 0.4, "gpu": 0.3, "tpu": 0.15}
# TPUs pad small channels to whole tiles.
_MOST = {"cpu": 2.75, "gpu": 1.3, "tpu": 1.6}
# XLA computes bfloat16 in float32 on a CPU, and keeps results in float32.
_BFLOAT16_ON_CPU = 2.0
# Of a process without its arrays: libraries, the compiler and its programs; two recipes took 1.2
# and 1.5 GiB on a CPU.
_PROCESS = 2**31
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
class Needs:
    """Memory of a run by use: of one device, but for `host`."""

    parameters: Bounds
    """Parameters, moving statistics and the gradient."""
    optimizer: Bounds
    """Accumulators and the moving average."""
    activations: Bounds
    """What is kept of the forward pass for the gradient."""
    batch: Bounds
    """Batches on the device."""
    matching: Bounds
    """Overlaps of anchors and boxes."""
    evaluation: Bounds
    """A batch of evaluation with its predictions; it takes the place of activations."""
    host: Bounds
    """Batches that are prepared ahead, on the host."""

    @property
    def device(self) -> Bounds:
        """All of it that is on a device at once."""
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
) -> Needs:
    """Returns the needs of a run, by arithmetic.

    Args:
        experiment: batch, boxes, images and evaluation.
        sizes: of its model.
        platform: of the devices.
        devices: that share a batch.
        processes: that share its preparation.
    """
    train, data, model = experiment.train, experiment.data, experiment.model
    height, width = model.network_size
    images = max(train.batch_size / devices, 1 / experiment.devices.spatial_partitions)
    image = _FLOAT * 3 * height * width
    # Box, class and weight.
    row = image + 24 * data.train.max_boxes
    shared = devices if experiment.devices.shard != "nothing" else 1
    accumulators = (sizes.optimizer + sizes.average) / shared
    kept = sizes.activations * images
    if platform == "cpu" and train.precision == "bfloat16":
        kept *= _BFLOAT16_ON_CPU
    overlaps = _FLOAT * images * sizes.anchors * data.train.max_boxes
    scored = max(experiment.evaluation.batch_size / devices, 1) if data.evaluation.paths else 0
    # Boxes and scores of every anchor, then the detections.
    predictions = _FLOAT * (sizes.anchors * (4 + model.num_classes) + 7 * model.max_detections)
    scoring = scored * (image + predictions)
    # Without a gradient no more is alive at once than enters the blocks, a quarter of all.
    alive = 0.25 if train.rematerialization == "none" else 1.0
    made = max(train.batch_size / processes, 1) * row
    return Needs(
        parameters=Bounds(low=sizes.parameters, high=2 * sizes.parameters),
        optimizer=Bounds(low=accumulators, high=accumulators),
        activations=Bounds(low=_LEAST[platform] * kept, high=_MOST[platform] * kept),
        batch=Bounds(low=images * row, high=(1 + _AHEAD) * images * row),
        matching=Bounds(low=0, high=2 * overlaps),
        evaluation=Bounds(
            low=scoring, high=4 * scoring + _MOST[platform] * scored * sizes.activations * alive
        ),
        host=Bounds(
            # One batch is made while another one is used.
            low=made * max(1, data.prefetch),
            high=made * (1 + data.prefetch) + _PROCESS,
        ),
    )

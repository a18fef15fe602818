"""The compiler's verdicts on an experiment, as text and as JSON, and the largest batch that fits.

The search for that batch needs few compilations.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from stillbox.checking.ahead_of_time.compiling import STEPS, Memory, Say, StepCheck, check_step
from stillbox.checking.ahead_of_time.targets import Target
from stillbox.experiment.schema import Experiment
from stillbox.findings import Finding
from stillbox.printing import count_text, size_text

# A compilation takes minutes: the result is at most a sixteenth below the largest batch.
_CLOSE = 16
_TRIALS = 10
_MOST = 2**14


@dataclass
class BatchSearch:
    """The trials of a search, in their order."""

    multiple: int
    """All batches are multiples of this."""
    trials: list[StepCheck] = field(default_factory=list)

    @property
    def best(self) -> StepCheck | None:
        """The largest batch that fits, if any."""
        fitting = [trial for trial in self.trials if trial.fits]
        return max(fitting, key=lambda trial: trial.images, default=None)

    @property
    def too_large(self) -> StepCheck | None:
        """The smallest batch that does not fit, if any."""
        others = [trial for trial in self.trials if not trial.fits]
        return min(others, key=lambda trial: trial.images, default=None)


def find_batch(experiment: Experiment, target: Target, say: Say = lambda line: None) -> BatchSearch:
    """Searches the largest `train.batch_size` that fits on a target; its own is tried first."""
    rows = len(target.devices) // max(experiment.devices.spatial_partitions, 1)
    multiple = math.lcm(rows, max(experiment.devices.replicas, 1))
    multiple *= experiment.train.accumulation_steps

    def attempt(size: int) -> StepCheck:
        train = replace(experiment.train, batch_size=size)
        return check_step(replace(experiment, train=train), target, "train", say)

    return search(attempt, multiple, experiment.train.batch_size, target.usable_bytes)


def search(
    attempt: Callable[[int], StepCheck], multiple: int, start: int, usable: float
) -> BatchSearch:
    """Searches the largest batch among the multiples of a number.

    The next batch is extrapolated from the memory of the last one, or is the middle of the
    remaining range if the extrapolation is outside it.

    Args:
        attempt: compiles the step for a batch size.
        multiple: all batches are multiples of this.
        start: the first batch, rounded to a multiple.
        usable: bytes of a device that are available to a program.
    """
    batch_search = BatchSearch(multiple)
    size: int | None = max(round(start / multiple), 1) * multiple
    while size is not None and len(batch_search.trials) < _TRIALS:
        trial = attempt(size)
        batch_search.trials.append(trial)
        if not trial.fits and not trial.needed:
            break  # for another reason than memory: no other batch would do
        size = _next_size(batch_search, usable)
    return batch_search


def _next_size(batch_search: BatchSearch, usable: float) -> int | None:
    """Returns the next batch to try; None where the best one is close enough."""
    multiple = batch_search.multiple
    low = batch_search.best.images if batch_search.best else 0
    close = max(multiple, low // _CLOSE // multiple * multiple)
    guess = _predict(batch_search.trials, usable) // multiple * multiple
    if batch_search.too_large is None:
        # The compiler recomputes what does not fit: memory grows more slowly than predicted.
        size = min(max(guess, low + 2 * close), _MOST // multiple * multiple)
        return size if size > low else None
    high = batch_search.too_large.images
    if high - low <= close:
        return None
    if low + close <= guess <= high - close:
        return guess
    return max((low + high) // 2 // multiple * multiple, low + multiple)


def _predict(trials: list[StepCheck], usable: float) -> int:
    """Returns the largest batch that fits if memory grows in proportion to it."""
    last = trials[-1]
    if last.memory is None:
        return int(last.images * usable / last.needed)
    memory = last.memory
    fixed = memory.parameters + memory.optimizer + memory.average + memory.code
    growing = max(memory.total - fixed, 1)
    return int(last.images * (usable - fixed) / growing)


_NAMES = {"train": "train step", "evaluate": "evaluation step", "predict": "prediction step"}
_PARTS = {part: part for part in ("parameters", "optimizer", "average", "batch", "results")} | {
    "average": "moving average",
    "temporaries": "activations and temporaries",
    "code": "program code",
}
_BOUNDS = {"products": "arithmetic", "memory": "its memory", "network": "the network"}
_ESTIMATE = "estimate from the chip's published peaks, not measured"


@dataclass(frozen=True)
class TargetCheck:
    """The verdicts of a target's compiler on an experiment."""

    target: Target
    steps: Sequence[StepCheck]
    search: BatchSearch | None = None
    """The search for the largest batch, if any."""

    @property
    def fits(self) -> bool:
        """Whether all steps run on the target, with the largest batch if that is searched."""
        is_found = self.search is None or self.search.best is not None
        return is_found and all(step.fits for step in self.steps)

    @property
    def findings(self) -> list[Finding]:
        """Why steps do not run on the target, an error for each of them."""
        return [
            replace(check.failure, what=f"{_name(check, self.target)}: {check.failure.what}")
            for check in self.steps
            if check.failure is not None
        ]

    def to_dict(self) -> dict[str, object]:
        """Returns plain values, for JSON."""
        chip = self.target.chip
        values: dict[str, object] = {
            "target": self.target.name,
            "devices": len(self.target.devices),
            "device": self.target.slot,
            "usable_bytes_per_device": int(self.target.usable_bytes),
            "figures_from": chip.source if chip else None,
            "fits": self.fits,
            "steps": [step.to_dict() for step in self.steps],
        }
        if self.search is not None:
            values["largest_batch"] = self.search.best.images if self.search.best else None
            values["trials"] = [trial.to_dict() for trial in self.search.trials]
        return values

    def render(self) -> RenderableType:
        """Returns what a terminal shows."""
        parts: list[RenderableType] = [Text(self.target.describe())]
        parts += [_step(step, self.target) for step in self.steps]
        if self.search is not None:
            parts.append(Text(describe_search(self.search)))
        return Group(*parts)


def check_target(
    experiment: Experiment, target: Target, *, find: bool = False, say: Say = lambda line: None
) -> TargetCheck:
    """Compiles an experiment's steps for a target; `say` prints the progress.

    With `find` it searches the largest batch as well, which the training step then has.
    """
    batch_search = find_batch(experiment, target, say) if find else None
    steps = [
        check_step(experiment, target, step, say) for step in STEPS[1 if batch_search else 0 :]
    ]
    if batch_search:
        steps.insert(0, batch_search.best or batch_search.trials[-1])
    return TargetCheck(target, steps, batch_search)


def _name(check: StepCheck, target: Target) -> str:
    size = f"{count_text(check.images, 'image')} on {count_text(check.devices, target.slot)}"
    return f"{_NAMES[check.step]}, {size}"


def _step(check: StepCheck, target: Target) -> RenderableType:
    word = ("compiled", "bold green") if check.fits else ("refused", "bold red")
    duration = f" ({check.seconds:.0f} s)" if check.fits else ""
    rows = [Text.assemble(word, f" {_name(check, target)}{duration}")]
    if check.memory is not None:
        rows += [Text(line) for line in _measures(check, check.memory, target)]
    return Group(*(Padding(row, (0, 0, 0, 2 + 2 * (place > 0))) for place, row in enumerate(rows)))


def _measures(check: StepCheck, memory: Memory, target: Target) -> list[str]:
    parts = ", ".join(
        f"{name} {size_text(getattr(memory, part))}"
        for part, name in _PARTS.items()
        if getattr(memory, part) or part in ("parameters", "batch", "temporaries")
    )
    lines = [
        f"memory of each {target.slot}: {size_text(memory.total)} of {size_text(memory.usable)}, "
        f"{size_text(memory.left)} left",
        parts,
        f"{check.flops_per_image / 1e9:,.1f} GFLOP an image, "
        f"{check.flops * check.devices / 1e12:,.2f} TFLOP a step",
    ]
    if check.collectives:
        moved = ", ".join(f"{kind} {size_text(n)}" for kind, n in sorted(check.collectives.items()))
        lines.append(f"between the {target.slot}s, from each in a step: {moved}")
    if check.roofline is not None and check.images_per_second is not None:
        roof = check.roofline
        lines.append(
            f"at most {check.images_per_second:,.0f} images/s, bound by {_BOUNDS[roof.bound]}: "
            f"arithmetic {roof.products * 1e3:,.2f} ms, memory {roof.memory * 1e3:,.2f} ms, "
            f"network {roof.network * 1e3:,.2f} ms ({_ESTIMATE})"
        )
    return lines


def describe_search(batch_search: BatchSearch) -> str:
    """Returns a sentence with the largest batch that fits, and how it was found."""
    trials = count_text(len(batch_search.trials), "compilation")
    if batch_search.best is None:
        smallest = min(trial.images for trial in batch_search.trials)
        return f"no batch fits: {smallest} does not ({trials})"
    best = batch_search.best
    room = f", {size_text(best.memory.left)} left on each device" if best.memory else ""
    above = batch_search.too_large
    bound = f"{above.images} does not fit" if above else "larger ones were not tried"
    return f"largest batch that fits: {best.images}{room}; {bound} ({trials})"

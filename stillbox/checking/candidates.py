"""The networks and inputs that a run could have, with a forecast of each, and the choice of one.

The forecast of a candidate is the product of three factors: how good its network is at the end of a
long run, how much of that it has learnt after the steps that there is time for, and how many boxes
of each class it shows large enough. All three were measured: docs/training.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

from stillbox.checking.dataset_stats import DatasetStats
from stillbox.checking.operations import forward_operations
from stillbox.experiment.resolve import read_config
from stillbox.experiment.schema import Model, Tiles
from stillbox.experiment.updating import NO_CHANGES, Changes
from stillbox.experiment.values import Value
from stillbox.printing import count_text, printable_line, sides_text

NANO, SMALL, SSD, PYRAMID, LARGE = (
    "nanodet_g_416",
    "gfl_mobile",
    "ssd_mobilenet_v1_bccd",
    "ssd_mobilenet_v1_fpn_640x640",
    "ssd_resnet50_v1_fpn_640x640",
)
RECIPES = (NANO, SMALL, SSD, PYRAMID, LARGE)


@dataclass(frozen=True)
class _Network:
    """What was measured of a recipe, relative to the small network with a classifier's weights."""

    quality: float = 1.0
    """AP after a long run: of the larger ones on COCO, of the others on BCCD and Raccoon."""
    speed: float = 1.0
    """Operations per second of a training step."""
    head_start: int = 0
    """Steps of the small network that reach what a detector's weights bring."""
    longest: int = 0
    """Side of the longest input that its boxes reach across; 0: no limit."""
    coarser: bool = False
    """Whether a longer input has one feature map more."""


_NETWORKS = {
    NANO: _Network(quality=1.08, speed=2.0, head_start=250, longest=640),
    SMALL: _Network(longest=512, coarser=True),
    SSD: _Network(quality=0.85),
    PYRAMID: _Network(quality=1.18),
    LARGE: _Network(quality=1.4),
}
# What is left of the quality with random weights.
_RANDOM = 0.8
# A ResNet-50 needs many images before it is better than a MobileNet.
_MANY_IMAGES = 5000
# The part of the AP after a long run that so many steps of eight images reach.
_LEARNT_STEPS = (30, 50, 100, 150, 200, 300, 600, 1200)
_LEARNT = (0.0, 0.35, 0.6, 0.72, 0.8, 0.93, 0.98, 1.0)
# A training step computes forward, and twice as much backward.
_PASSES = 3
BATCH = 8
"""Images of a step that steps are counted in."""
# The finest feature map of all of these recipes.
_FINEST = 8
# Roots of the areas of the small networks' inputs, in pixels; sides are multiples of their strides.
_INPUTS, _STRIDE = (320, 384, 512, 640), 32
_COARSER_LEVEL = 6
_TILED = 320
# Larger tiles cut more objects than they resolve; inputs of 640 pixels show as much.
_LARGEST_TILE = 0.5
# Objects larger than this part of a tile are seen in the whole image, if they are no exception.
_WHOLE_SHARE, _FEW = 0.6, 0.02
# Candidates that are so close to the best forecast count as equal.
_CLOSE = 0.03


@dataclass(frozen=True)
class Time:
    """The time of a run."""

    speed: float
    """Operations per second of a training step; a multiply-add is two."""
    seconds: float
    """For the steps of the run."""
    usual_steps: Callable[[int], int]
    """From the number of samples to the steps of eight that a run has if its time is not given."""

    def seconds_of(self, steps: int) -> float:
        """Returns the seconds of so many steps of the small network."""
        return steps * _PASSES * BATCH * _operations_of(SMALL) / self.speed

    def steps(self, operations: int, samples: int, speed: float) -> int:
        """Returns the steps of eight samples that there is time for.

        Args:
            operations: of the forward pass of one sample.
            samples: of an epoch.
            speed: of the network, relative to the small one.
        """
        most = self.seconds * self.speed * speed / (_PASSES * BATCH * operations)
        return int(min(most, self.usual_steps(samples)))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A network with an input."""

    recipe: str
    changes: Changes
    """Of the recipe: input, feature maps and tiles."""
    size: tuple[int, int]
    """Height and width of the network input, in pixels."""
    tile: int
    """Side of a tile in pixels of the image; 0: images are whole."""
    samples: int
    """Inputs for one image: its tiles, or 1."""
    operations: int
    """Of the forward pass of one image, in all of its tiles; a multiply-add is two."""
    steps: int
    """Steps of eight inputs that there is time for."""
    quality: float
    """How good the network is after a long run, relative to the small one."""
    head_start: int
    """Further steps that the weights at the start are worth."""
    resolved: Mapping[str, float]
    """The share of each class's boxes that have two cells of the finest feature map."""
    credit: float
    """How well the boxes of all classes are resolved, 0 to 1."""

    @property
    def forecast(self) -> float:
        """How good the model will be, relative to the small network after a long run."""
        steps = max(self.steps + self.head_start, 1)
        learnt = np.interp(np.log(steps), np.log(_LEARNT_STEPS), _LEARNT)
        return float(self.quality * learnt * self.credit)

    def describe(self) -> str:
        """Returns a line with the candidate and its forecast."""
        worst = min(self.resolved, key=self.resolved.__getitem__, default="box")
        share = f"{self.resolved.get(worst, 1):.0%} of {printable_line(worst)}"
        tiles = f"{self.samples} tiles of {self.tile} pixels" if self.tile else "the whole image"
        return (
            f"{self.recipe} {sides_text(self.size)}, {tiles}, {self.operations / 1e9:.1f} GFLOP "
            f"an image, {count_text(self.steps, 'step')}, two cells for {share}: forecast "
            f"{self.forecast:.2f}"
        )


def candidates(
    stats: DatasetStats, time: Time, *, has_weights: Callable[[str], bool]
) -> list[Candidate]:
    """Returns what a data set could be trained with.

    Args:
        has_weights: whether weights for a recipe are on this machine.
    """
    # Without weights for either, the small network is ahead of the SSD.
    others = [SSD] * (has_weights(SSD) and not has_weights(SMALL)) + [PYRAMID]
    others += [LARGE] * (stats.images >= _MANY_IMAGES)
    small = [NANO] * has_weights(NANO) + [SMALL]
    inputs = [
        (recipe, size, 0) for recipe in small for size in _sizes(stats) if _reaches(recipe, size)
    ]
    inputs += [(recipe, (_TILED, _TILED), tile) for recipe in small for tile in _tiles(stats)]
    inputs += [(recipe, _model(recipe).network_size, 0) for recipe in others]
    return [_candidate(*each, stats, time, has_weights) for each in inputs]


def recipes_alone(among: Sequence[Candidate]) -> list[Candidate]:
    """Returns the candidates that have the input of their recipe; one for each recipe."""
    firsts = {candidate.recipe: candidate for candidate in reversed(among)}
    return [replace(candidate, changes=NO_CHANGES) for candidate in reversed(firsts.values())]


def choose(among: Sequence[Candidate]) -> Candidate:
    """Returns the cheapest of the candidates with nearly the best forecast."""
    best = max(candidate.forecast for candidate in among)
    close = [each for each in among if each.forecast >= (1 - _CLOSE) * best]
    return min(close, key=lambda candidate: candidate.operations)


def reason(chosen: Candidate, among: Sequence[Candidate]) -> str:
    """Returns why a candidate was chosen."""
    best = max(candidate.forecast for candidate in among)
    if chosen.forecast == best:
        return "the best forecast"
    return f"the least operations within {_CLOSE:.0%} of the best forecast"


def _candidate(
    recipe: str,
    size: tuple[int, int],
    tile: int,
    stats: DatasetStats,
    time: Time,
    has_weights: Callable[[str], bool],
) -> Candidate:
    changes = _changes(recipe, size, tile, stats)
    samples = stats.of_samples(_tiled(tile, stats) if tile else None).images
    row = _operations(recipe, size)
    network = _NETWORKS[recipe]
    sides = stats.sizes.magnified(size[0] / tile) if tile else stats.sizes.stretched(*size)
    return Candidate(
        recipe=recipe,
        changes=changes,
        size=size,
        tile=tile,
        samples=samples // stats.images,
        operations=samples * row // stats.images,
        steps=time.steps(row, samples, network.speed),
        quality=network.quality * (1 if has_weights(recipe) else _RANDOM),
        head_start=network.head_start,
        resolved=sides.resolved(_FINEST),
        credit=sides.credit(_FINEST),
    )


def _changes(recipe: str, size: tuple[int, int], tile: int, stats: DatasetStats) -> Changes:
    if size == _model(recipe).network_size and not tile:
        return NO_CHANGES
    changes: dict[str, Value] = dict(
        zip(("model.resizer.height", "model.resizer.width"), size, strict=True)
    )
    if max(size) > _NETWORKS[recipe].longest > 0:
        levels = ("model.neck.max_level", "model.anchors.max_level")
        changes |= dict.fromkeys(levels, _COARSER_LEVEL)
    if tile:
        changes["data.tiles"] = asdict(_tiled(tile, stats))
    return changes


def _reaches(recipe: str, size: tuple[int, int]) -> bool:
    """Whether the boxes of a small network reach across an input."""
    network = _NETWORKS[recipe]
    return network.coarser or max(size) <= network.longest


def _tiled(side: int, stats: DatasetStats) -> Tiles:
    """Returns tiles, with the whole image if many objects are too large for a tile."""
    large = float(np.mean(stats.sizes.pixels > _WHOLE_SHARE * side))
    return Tiles(side=side, whole_image=large > _FEW)


def _sizes(stats: DatasetStats) -> Iterator[tuple[int, int]]:
    """Yields inputs with the shape of the images, if they have one."""
    aspect = stats.width / stats.height if stats.one_shape else 1.0
    for side in _INPUTS:
        height, width = side / aspect**0.5, side * aspect**0.5
        yield _multiple(height), _multiple(width)


def _multiple(side: float) -> int:
    return max(1, round(side / _STRIDE)) * _STRIDE


def _tiles(stats: DatasetStats) -> Iterator[int]:
    """Yields the side of tiles in which boxes of every class have two cells, if it is of use."""
    # A smaller tile would be enlarged and show no more than the image has.
    side = max(
        _TILED, int(_TILED * stats.sizes.least_pixels() / (2 * _FINEST)) // _STRIDE * _STRIDE
    )
    if side < _LARGEST_TILE * max(stats.height, stats.width):
        yield side


@lru_cache
def _model(recipe: str) -> Model:
    return read_config(recipe).experiment.model


@lru_cache
def _operations(recipe: str, size: tuple[int, int]) -> int:
    """Returns the operations of an input, which follow its pixels."""
    height, width = _model(recipe).network_size
    return round(_operations_of(recipe) * size[0] * size[1] / (height * width))


@lru_cache
def _operations_of(recipe: str) -> int:
    return forward_operations(_model(recipe))

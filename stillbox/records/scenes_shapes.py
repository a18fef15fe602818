"""The elements of demo scenes: shapes, colours, backgrounds and fillings.

Shapes are signed distances, negative inside, positive outside. They are rasterised in numpy: a
scene does not depend on the version of a drawing library. Every shape fits into the unit circle
around the origin; one unit is the object's radius. Images are float32 `[H, W, 3]`, 0..1.
"""

import colorsys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Distance = Callable[[Floats, Floats], Floats]
PixelWindow = tuple[slice, slice]
"""Rows and columns of a rectangle of the canvas."""


def disc(x: Floats, y: Floats) -> Floats:
    """The unit disc."""
    return np.hypot(x, y) - np.float32(1.0)


def ring(x: Floats, y: Floats) -> Floats:
    """The unit disc with a hole a little over half as wide."""
    return np.abs(np.hypot(x, y) - np.float32(0.77)) - np.float32(0.23)


def square(x: Floats, y: Floats) -> Floats:
    """A square of side 1.6."""
    return np.maximum(np.abs(x), np.abs(y)) - np.float32(0.8)


def triangle(x: Floats, y: Floats) -> Floats:
    """An equilateral triangle with its corners on the unit circle, one of them at the top."""
    # The three sides are lines at distance 1/2 from the centre, 120 degrees apart.
    slant = np.float32(np.sqrt(3.0) / 2.0)
    return np.maximum(y, slant * np.abs(x) - np.float32(0.5) * y) - np.float32(0.5)


def star(x: Floats, y: Floats) -> Floats:
    """A five-pointed star, inner radius .42."""
    # Fold the plane into one half of one point: every edge becomes the same line.
    tenth = np.pi / 5.0
    angle = np.abs(np.mod(np.arctan2(x, -y) + tenth, 2.0 * tenth) - tenth)
    radius = np.hypot(x, y)
    inner_x, inner_y = 0.42 * np.cos(tenth), 0.42 * np.sin(tenth)
    normal = np.array([inner_y, 1.0 - inner_x]) / np.hypot(inner_y, 1.0 - inner_x)
    along, across = radius * np.cos(angle), radius * np.sin(angle)
    return (along * normal[0] + across * normal[1] - normal[0]).astype(np.float32)


def cross(x: Floats, y: Floats) -> Floats:
    """A plus sign with arms .56 wide."""
    x, y = np.abs(x), np.abs(y)
    upright = np.maximum(x - np.float32(0.28), y - np.float32(0.96))
    return np.minimum(upright, np.maximum(x - np.float32(0.96), y - np.float32(0.28)))


SHAPES: dict[str, Distance] = {
    "disc": disc,
    "ring": ring,
    "square": square,
    "triangle": triangle,
    "star": star,
    "cross": cross,
}
"""The classes of the demo data, in the order of their label map ids (from 1)."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Centre (y, x), size and rotation of a shape. All lengths in pixels."""

    y: float
    x: float
    radius: float
    """Pixels for one unit of the shape."""
    stretch: float
    """Width over height, before rotation."""
    angle: float
    """Rotation, in radians."""


def window_around(
    lowest: tuple[float, float], highest: tuple[float, float], height: int, width: int
) -> PixelWindow:
    """Returns the pixels between two (row, column) points, and one more around for soft edges."""
    top, left = (max(0, int(np.floor(value)) - 1) for value in lowest)
    bottom = min(height, int(np.ceil(highest[0])) + 1)
    right = min(width, int(np.ceil(highest[1])) + 1)
    return slice(top, max(top, bottom)), slice(left, max(left, right))


def placement_window(placement: Placement, height: int, width: int) -> PixelWindow:
    """Returns the part of the canvas that a placed shape can touch."""
    reach = placement.radius * float(np.sqrt(max(placement.stretch, 1.0 / placement.stretch)))
    # The corners of the square lie outside the unit circle, at .8 * sqrt(2).
    reach *= 1.14
    lowest = (placement.y - reach, placement.x - reach)
    return window_around(lowest, (placement.y + reach, placement.x + reach), height, width)


def coverage(distance: Distance, placement: Placement, window: PixelWindow) -> Floats:
    """Returns the share of every pixel of the window that the placed shape covers, 0 to 1."""
    rows, columns = _centres(window, placement.y, placement.x)
    cos, sin = np.float32(np.cos(placement.angle)), np.float32(np.sin(placement.angle))
    wide = np.float32(placement.radius * np.sqrt(placement.stretch))
    high = np.float32(placement.radius / np.sqrt(placement.stretch))
    x = (columns * cos + rows * sin) / wide
    y = (rows * cos - columns * sin) / high
    # One pixel of soft edge: a pixel that the outline halves is half covered.
    return np.clip(np.float32(0.5) - distance(x, y) * min(wide, high), 0.0, 1.0)


def segment_coverage(
    start: tuple[float, float], end: tuple[float, float], thickness: float, window: PixelWindow
) -> Floats:
    """Returns the share of every pixel of the window that a line with round ends covers, 0 to 1."""
    rows, columns = _centres(window, *start)
    down, right = np.float32(end[0] - start[0]), np.float32(end[1] - start[1])
    along = np.clip((rows * down + columns * right) / (down**2 + right**2), 0.0, 1.0)
    away = np.hypot(rows - along * down, columns - along * right)
    return np.clip(np.float32(0.5 + thickness / 2.0) - away, 0.0, 1.0)


def _centres(window: PixelWindow, y: float, x: float) -> tuple[Floats, Floats]:
    """Returns `[height, 1]` and `[1, width]`: the pixels' centres relative to `(y, x)`."""
    rows, columns = (np.arange(side.start, side.stop, dtype=np.float32) for side in window)
    return rows[:, None] + np.float32(0.5 - y), columns[None, :] + np.float32(0.5 - x)


def random_color(rng: Generator, *, saturation: tuple[float, float]) -> Floats:
    """Returns `[3]`, a colour of any hue that is neither black nor white."""
    hue, value = rng.uniform(0.0, 1.0), rng.uniform(0.35, 0.95)
    return np.array(colorsys.hsv_to_rgb(hue, rng.uniform(*saturation), value), np.float32)


def contrasting_color(rng: Generator, background: Floats) -> Floats:
    """Returns `[3]`: of eight vivid colours the first far from `background`, or the farthest."""
    candidates = np.stack([random_color(rng, saturation=(0.45, 1.0)) for _ in range(8)])
    distances = np.linalg.norm(candidates - background, axis=1)
    far = np.flatnonzero(distances > 0.5)
    return candidates[far[0] if far.size else int(np.argmax(distances))]


def _positions(height: int, width: int, angle: float) -> Floats:
    """Returns `[H, W]`, every pixel's coordinate along the direction `angle`, in pixels."""
    rows = np.arange(height, dtype=np.float32)[:, None]
    columns = np.arange(width, dtype=np.float32)[None, :]
    return columns * np.float32(np.cos(angle)) + rows * np.float32(np.sin(angle))


def smooth_noise(rng: Generator, height: int, width: int, cell: float) -> Floats:
    """Returns `[H, W]` in -1..1: random values on a grid of `cell` pixels, interpolated."""
    down, across = int(height / cell) + 2, int(width / cell) + 2
    grid = rng.uniform(-1.0, 1.0, (down, across)).astype(np.float32)
    return _between(height, cell, down) @ grid @ _between(width, cell, across).T


def _between(length: int, cell: float, points: int) -> Floats:
    """Returns `[length, points]`: the weights of linear interpolation between grid points."""
    position = np.arange(length, dtype=np.float32) / np.float32(cell)
    away = np.abs(position[:, None] - np.arange(points, dtype=np.float32)[None, :])
    return np.maximum(np.float32(1.0) - away, np.float32(0.0))


def stripes(rng: Generator, height: int, width: int, period: float) -> Floats:
    """Returns `[H, W]` in -1..1: waves with sharpened flanks in a random direction."""
    phase = _positions(height, width, rng.uniform(0.0, np.pi)) * np.float32(2.0 * np.pi / period)
    return np.clip(np.sin(phase + np.float32(rng.uniform(0.0, 2.0 * np.pi))) * 2.0, -1.0, 1.0)


def checks(rng: Generator, height: int, width: int, period: float) -> Floats:
    """Returns `[H, W]` in -1..1: a chessboard, turned at random."""
    angle = rng.uniform(0.0, np.pi / 2.0)
    first = np.sin(_positions(height, width, angle) * np.float32(2.0 * np.pi / period))
    second = np.sin(_positions(height, width, angle + np.pi / 2) * np.float32(2 * np.pi / period))
    return np.clip(first * second * 4.0, -1.0, 1.0)


def background(rng: Generator, height: int, width: int) -> Floats:
    """Returns `[H, W, 3]`: a gradient between two dull colours under some texture."""
    from_color = random_color(rng, saturation=(0.0, 0.45))
    to_color = np.clip(from_color + rng.uniform(-0.25, 0.25, 3), 0.05, 0.95).astype(np.float32)
    along = _positions(height, width, rng.uniform(0.0, 2.0 * np.pi))
    along = (along - along.min()) / np.float32(np.ptp(along))
    image = from_color + along[..., None] * (to_color - from_color)
    kind = rng.integers(4)
    if kind == 1:
        pattern = stripes(rng, height, width, rng.uniform(10.0, 48.0)) * np.float32(0.07)
    elif kind == 2:
        pattern = checks(rng, height, width, rng.uniform(20.0, 64.0)) * np.float32(0.06)
    else:
        pattern = smooth_noise(rng, height, width, 4.0) * np.float32(0.06)
    pattern = pattern + smooth_noise(rng, height, width, rng.uniform(16.0, 48.0)) * np.float32(0.1)
    return image + pattern[..., None] * rng.uniform(0.7, 1.3, 3).astype(np.float32)


def filling(rng: Generator, height: int, width: int, color: Floats, size: float) -> Floats:
    """Returns `[H, W, 3]`: the texture of an object of `size` pixels."""
    kind = rng.integers(4)
    if kind == 0:
        pattern = stripes(rng, height, width, max(6.0, size * rng.uniform(0.2, 0.4)))
    elif kind == 1:
        pattern = checks(rng, height, width, max(8.0, size * rng.uniform(0.3, 0.5)))
    elif kind == 2:
        pattern = smooth_noise(rng, height, width, max(3.0, size * 0.12))
    else:
        # Light from one side.
        along = _positions(height, width, rng.uniform(0.0, 2.0 * np.pi))
        pattern = np.clip((along - along.mean()) / np.float32(max(size, 1.0)), -1.0, 1.0)
    strength = np.float32(rng.uniform(0.05, 0.18))
    return color + pattern[..., None] * strength

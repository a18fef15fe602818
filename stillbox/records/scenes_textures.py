"""Colours, backgrounds and fillings of the demo data. Images are float32 `[H, W, 3]`, 0..1."""

import colorsys

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Generator = np.random.Generator


def random_color(rng: Generator, *, saturation: tuple[float, float]) -> Floats:
    """Returns `[3]`, a colour of any hue that is neither black nor white."""
    hue, value = rng.uniform(0.0, 1.0), rng.uniform(0.35, 0.95)
    return np.array(colorsys.hsv_to_rgb(hue, rng.uniform(*saturation), value), np.float32)


def contrasting_color(rng: Generator, background: Floats) -> Floats:
    """Returns `[3]`, a vivid colour that stands out from `background` `[3]`.

    The first of eight colours that is far enough away, or else the farthest.
    """
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
    tint = rng.uniform(0.7, 1.3, 3).astype(np.float32)
    return image + pattern[..., None] * tint


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

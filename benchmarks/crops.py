"""Crops of feature maps, gathered and as products of matrices: milliseconds and memory.

python benchmarks/crops.py
python benchmarks/crops.py --precision bfloat16
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.boxes.crops import cell_samples, edge_samples, gathered, multiplied, pyramid_level
from stillbox.devices.process import keep_freed_memory

SIDES = {"one map": (40,), "pyramid": (160, 80, 40, 20, 10)}
CHANNELS = {"one map": 1024, "pyramid": 256}
POINTS = {
    "crop_and_resize 14x14": partial(edge_samples, size=14, outside="zero"),
    "roi_align 7x7, 2x2": lambda boxes, sides: cell_samples(boxes, sides, sides, size=7, samples=2),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--precision", default="float32")
    arguments.add_argument("--boxes", type=int, nargs="+", default=[64, 300])
    options = arguments.parse_args()
    keep_freed_memory()  # as every command does
    print("| maps | samples | boxes | computation | forward, ms, MB | gradient, ms, MB |")
    print("|---|---|---|---|---|---|")
    for where in SIDES:
        for name, place in POINTS.items():
            for count in options.boxes:
                for compute in (gathered, multiplied):
                    crops = partial(_crops, compute, place)
                    times = _measure(crops, *_inputs(where, count, options.precision))
                    print(f"| {where} | {name} | {count} | {compute.__name__} | {times} |")


def _crops(
    compute: Callable, place: Callable, maps: list[jax.Array], boxes: jax.Array
) -> jax.Array:
    sides = jnp.asarray([features.shape[:2] for features in maps])
    levels = pyramid_level(boxes, np.float32([640, 640]), len(maps))
    return compute(maps, levels, place(boxes, sides[levels]))


def _inputs(where: str, count: int, dtype: str) -> tuple[list[jax.Array], jax.Array]:
    """Returns maps of an input of 640 x 640 and boxes of up to half of its sides."""
    rng = np.random.default_rng(0)
    shapes = [(side, side, CHANNELS[where]) for side in SIDES[where]]
    maps = [jnp.asarray(rng.standard_normal(shape, np.float32), dtype) for shape in shapes]
    centers, half = rng.random((count, 2)), rng.random((count, 2)) ** 2 / 4
    boxes = np.clip(np.concatenate([centers - half, centers + half], axis=-1), 0, 1)
    return maps, jnp.asarray(boxes, jnp.float32)


def _measure(crops: Callable, maps: list[jax.Array], boxes: jax.Array) -> str:
    def gradient(maps: list[jax.Array], boxes: jax.Array, weights: jax.Array) -> list[jax.Array]:
        return jax.vjp(lambda maps: crops(maps, boxes), maps)[1](weights)[0]

    weights = jax.jit(crops)(maps, boxes)
    return f"{_best(crops, maps, boxes)} | {_best(gradient, maps, boxes, weights)}"


def _best(function: Callable, *arrays: object) -> str:
    compiled = jax.jit(function).lower(*arrays).compile()
    times = []
    for _ in range(6):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*arrays))
        times.append(time.perf_counter() - began)
    memory = compiled.memory_analysis().temp_size_in_bytes
    return f"{min(times) * 1e3:.0f}, {memory / 1e6:.0f}"


if __name__ == "__main__":
    main()

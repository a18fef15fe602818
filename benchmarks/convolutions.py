"""GFLOP/s of the algorithms of a 3x3 convolution on this CPU, by shape, pass and type.

    python benchmarks/convolutions.py [--shapes 4x40x256 8x75x64] [--precisions float32]

A shape is batch x side x channels, in and out alike. FLOPs are counted for the direct convolution,
whatever the algorithm. `direct` is XLA's convolution, and a product of patches for kernel gradients
and for bfloat16's input gradients of up to 15 x 15; `tiles 2` and `tiles 4` are Winograd's
algorithm. The peer is PyTorch, channels last, in an environment of its own in the cache folder.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from environments import TORCH, ask_peer, peer_python
from measuring import machine, show
from rich.table import Table

from stillbox.devices.process import keep_freed_memory, restart_with_large_pages
from stillbox.lowering import lowering
from stillbox.models.layers.lowering.convolution import conv_unstrided
from stillbox.models.layers.lowering.winograd import Tiles, choose_tiles

# The 3x3 convolutions of RetinaNet at 320 px, batch 4, and of SSD ResNet-34, batch 8.
SHAPES = ("4x80x64", "4x40x128", "4x40x256", "4x20x256", "4x10x512", "8x75x64", "8x38x128")
PASSES = ("forward", "input gradient", "kernel gradient")
ALGORITHMS = {"direct": Tiles(), "tiles 2": Tiles(2, 2, 2), "tiles 4": Tiles(4, 4, 4)}
_PADS = ((1, 1), (1, 1))
_LEAST_ROUNDS, _SECONDS = 5, 0.3


def main() -> None:
    """Prints the table."""
    restart_with_large_pages()  # as every command does
    keep_freed_memory()
    arguments = _parse()
    python = peer_python(*TORCH)
    title = f"3x3 convolutions, GFLOP/s; {machine()}, jax {jax.__version__}"
    table = Table("shape", "precision", "pass", title=title)
    for column in (*ALGORITHMS, "chosen", *(["PyTorch"] if python else [])):
        table.add_column(column, justify="right")
    for text in arguments.shapes:
        shape = tuple(map(int, text.split("x")))
        peers: dict[str, list[float]] = {}
        if python:
            peers = ask_peer(python, "convolutions_peer.py", shape=np.array(shape))
        for precision in arguments.precisions:
            for row, name in enumerate(PASSES):
                cells = _own_cells(shape, precision, row)
                peer = [f"{peers[precision][row]:.0f}"] if peers else []
                table.add_row(text, precision, name, *cells, *peer)
    show(table)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="batch x side x channels")
    both = ["float32", "bfloat16"]
    parser.add_argument("--precisions", nargs="+", choices=both, default=both)
    return parser.parse_args()


def _own_cells(shape: tuple[int, ...], precision: str, row: int) -> list[str]:
    """Returns GFLOP/s of each algorithm for a pass, and the name of the one that a run takes."""
    batch, side, channels = shape
    flops = 2 * 9 * batch * side**2 * channels**2
    cells = [
        f"{flops / _best_seconds(_passes(shape, precision, tiles)[row]) / 1e9:.0f}"
        for tiles in ALGORITHMS.values()
    ]
    with lowering(cpu_convolutions="fast"):
        chosen = choose_tiles((3, 3, channels, channels), (side, side), precision)[row]
    return [*cells, f"tiles {chosen}" if chosen else "direct"]


def _passes(
    shape: tuple[int, ...], precision: str, tiles: Tiles
) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]:
    """Returns functions that compute the three passes once."""
    batch, side, channels = shape
    rng = np.random.default_rng(0)
    x, gradient = (
        jnp.asarray(rng.normal(size=(batch, side, side, channels)), precision) for _ in range(2)
    )
    kernel = jnp.asarray(rng.normal(size=(3, 3, channels, channels)) * 0.02, precision)

    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return conv_unstrided(x, kernel, _PADS, 1, tiles)

    def gradient_of(argument: int) -> Callable[..., jax.Array]:
        def pull(x: jax.Array, kernel: jax.Array, above: jax.Array) -> jax.Array:
            gradients: tuple[jax.Array, ...] = jax.vjp(convolve, x, kernel)[1](above)
            return gradients[argument]

        return pull

    return (
        partial(jax.jit(convolve), x, kernel),
        partial(jax.jit(gradient_of(0)), x, kernel, gradient),
        partial(jax.jit(gradient_of(1)), x, kernel, gradient),
    )


def _best_seconds(run: Callable[[], Any]) -> float:
    jax.block_until_ready(run())
    return min(_rounds(run))


def _rounds(run: Callable[[], Any]) -> Iterator[float]:
    """Yields the seconds of each round until there are enough."""
    began, count = time.perf_counter(), 0
    while count < _LEAST_ROUNDS or time.perf_counter() - began < _SECONDS:
        start = time.perf_counter()
        jax.block_until_ready(run())
        yield time.perf_counter() - start
        count += 1


if __name__ == "__main__":
    main()

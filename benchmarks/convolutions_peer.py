"""GFLOP/s of PyTorch's 3x3 convolution in all three passes, for `convolutions.py`."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

ROUNDS, SECONDS = 5, 0.3


def main() -> None:
    """Prints the figures of forward, input gradient and kernel gradient, by precision."""
    batch, side, channels = np.load(sys.argv[1])["shape"].tolist()
    speeds = {}
    for precision in ("float32", "bfloat16"):
        maps, kernels = (batch, channels, side, side), (channels, channels, 3, 3)
        x, gradient, kernel = (
            torch.randn(shape).to(getattr(torch, precision)).to(memory_format=torch.channels_last)
            for shape in (maps, maps, kernels)
        )
        flops = 2 * 9 * batch * side**2 * channels**2
        passes = [lambda x=x, kernel=kernel: torch.nn.functional.conv2d(x, kernel, padding=1)]
        for wanted in ([True, False, False], [False, True, False]):
            arguments = (gradient, x, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
            passes.append(
                lambda arguments=arguments, wanted=wanted: torch.ops.aten.convolution_backward(
                    *arguments, wanted
                )
            )
        speeds[precision] = [flops / best_seconds(step) / 1e9 for step in passes]
    print(json.dumps(speeds))


def best_seconds(run: Callable[[], Any]) -> float:
    """Returns the seconds of the fastest round."""
    run()
    began, times = time.perf_counter(), []
    while len(times) < ROUNDS or time.perf_counter() - began < SECONDS:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()

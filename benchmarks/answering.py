"""The process of a peer: it says what it has, then steps whenever it is asked to.

Peers have Pythons of their own; this needs nothing but the standard library.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

_SIDES = (1024, 2048, 4096)
_REPETITIONS = 4


def serve(described: dict[str, Any], answers: dict[str, Callable[[], float]]) -> None:
    """Prints a line of JSON about itself, and one number for every line that it reads.

    Args:
        described: what `comparing.peer_process` wants to know.
        answers: what to run for a line: a step, which answers with its seconds, or a matrix
            product, which answers with GFLOP/s.
    """
    print(json.dumps(described), flush=True)
    for line in map(str.strip, sys.stdin):
        print(json.dumps(answers[line]()), flush=True)


def product_speed(prepare: Callable[[int], Callable[[], object]]) -> float:
    """Returns GFLOP/s of the best of a few large matrix products.

    Args:
        prepare: returns a function that multiplies two square matrices of the given side and
            waits for the result.
    """
    best = 0.0
    for side in _SIDES:
        multiply = prepare(side)
        for _ in range(_REPETITIONS):
            began = time.perf_counter()
            multiply()
            best = max(best, 2 * side**3 / (time.perf_counter() - began) / 1e9)
    return best

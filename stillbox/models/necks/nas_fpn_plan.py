"""What the description of NAS-FPN's cell leaves to be worked out."""

from typing import NamedTuple

from stillbox.experiment import schema


class Step(NamedTuple):
    """What one node does. Maps that enter the cell count from 0, nodes go on."""

    level: int
    """Of the map that it makes."""
    inputs: tuple[int, int]
    """Maps that it combines."""
    gate: int | None
    """Which of the two gates the other: 0 or 1; None: they are added."""
    joined: tuple[int, ...]
    """Maps that are added to them."""


def plan_cell(config: schema.NasFpn) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Works out which inputs gate and which maps no node would read.

    Returns:
        The nodes' steps, and the numbers of the maps that leave the cell, from fine to coarse.
    """
    levels = list(range(config.min_level, config.max_level + 1))
    steps, outputs, read = [], {}, set()
    for number, node in enumerate(config.cell, start=len(levels)):
        first, second = node.inputs
        read |= {first, second}
        joined: tuple[int, ...] = ()
        if node.output:
            outputs[node.level] = number
            alike = (m for m, level in enumerate(levels) if level == node.level)
            joined = tuple(m for m in alike if m not in read)
            read |= {*joined}
        gate = None
        if node.combine == "attention" and not config.sum_only:
            gate = 0 if levels[first] >= levels[second] else 1
        steps.append(Step(node.level, (first, second), gate, joined))
        levels.append(node.level)
    return tuple(steps), tuple(outputs[level] for level in sorted(outputs))

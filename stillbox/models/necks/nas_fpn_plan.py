"""Gates and joined maps of NAS-FPN's cell, derived from the configuration."""

from typing import NamedTuple

from stillbox.experiment import schema


class Step(NamedTuple):
    """Computation of one node. Input maps of the cell count from 0, nodes go on."""

    level: int
    """Of the resulting map."""
    inputs: tuple[int, int]
    """Maps that are combined."""
    gate: int | None
    """Which of the two gates the other: 0 or 1; None: they are added."""
    joined: tuple[int, ...]
    """Maps that are added to the combination."""


def plan_cell(config: schema.NasFpn) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Returns the nodes' steps, and the numbers of the output maps, from fine to coarse.

    An output node also adds all maps of its level that no node has read.
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

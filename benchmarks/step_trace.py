"""The parts of a train step from a trace of it.

The compiled step is traced as it runs, on all threads. Every operation of the program knows the
function that it comes from, because the interesting functions are given a name while the step is
traced by jax; what the compiler adds by itself, such as a change of layout, counts where its
neighbours do. Each moment of the step is divided evenly among the operations that run in it.
"""

import gzip
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
from measuring import TrainStep

from stillbox.models.detector import Detector
from stillbox.models.layers import conv
from stillbox.training import objective
from stillbox.training import step as step_module

CONVOLUTIONS, AROUND, TARGETS = "convolutions", "around", "targets"
LOSSES, UPDATE, IDLE = "losses", "update", "idle"
# The innermost name counts. What has none belongs to the update, or to the gradient of the network.
_NAMED = (
    (conv, "conv2d", CONVOLUTIONS),
    (conv, "depthwise_conv2d", CONVOLUTIONS),
    (Detector, "__call__", AROUND),
    (Detector, "regularization", UPDATE),
    (objective, "batch_targets", TARGETS),
    (step_module, "detection_loss", LOSSES),
)
_MARK = re.compile(r"part_(\w+?)\b")
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (?:\(.*?\)|\S+) ([\w\-]+)\((.*)")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
# They only contain other operations, which are in the trace themselves.
_CONTAINERS = ("call", "while", "conditional")
_NEIGHBOURS = 4


class Instruction(NamedTuple):
    """One line of a compiled program."""

    kind: str
    """Such as `convolution` or `fusion`."""
    origin: str
    """What jax says about where it comes from; may be empty."""
    operands: tuple[str, ...]
    """Names of what it reads, and of the computation that it calls."""


class Event(NamedTuple):
    """An operation that ran, in microseconds of the trace."""

    name: str
    """As in the program."""
    start: float
    """When it began."""
    end: float
    """When it was done."""


@contextmanager
def named_parts() -> Iterator[None]:
    """Gives the operations of the step the names of their parts while a program is traced."""
    with ExitStack() as stack:
        for owner, attribute, part in _NAMED:
            named = _named(getattr(owner, attribute), f"part_{part}")
            stack.enter_context(mock.patch.object(owner, attribute, named))
        yield


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(function)
    def inside(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        with jax.named_scope(name):
            return function(*arguments, **options)

    return inside


def trace_parts(step: TrainStep, rounds: int) -> dict[str, float]:
    """Returns the seconds of each part of a step; they add up to a step.

    Args:
        step: built within `named_parts`.
        rounds: steps to trace.
    """
    part_of = parts_of_program(step.program)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, create_perfetto_trace=True, profiler_options=options)
        seconds = sum(step.run() for _ in range(rounds))
        jax.profiler.stop_trace()
        (path,) = Path(folder).rglob("perfetto_trace.json.gz")
        events = list(_events(path, part_of))
    spent = divide_moments(events, part_of)
    spent[IDLE] = seconds - sum(spent.values())
    return {part: value / rounds for part, value in spent.items()}


def divide_moments(events: list[Event], part_of: dict[str, str]) -> dict[str, float]:
    """Returns the seconds of each part; operations that run at once share them."""
    edges = sorted(
        [(event.start, 1, event.name) for event in events]
        + [(event.end, -1, event.name) for event in events]
    )
    running: dict[str, int] = defaultdict(int)
    spent: dict[str, float] = defaultdict(float)
    last = 0.0
    for now, change, name in edges:
        count = sum(running.values())
        for part, several in running.items():
            if several:
                spent[part] += (now - last) / 1e6 * several / count
        running[part_of[name]] += change
        last = now
    return dict(spent)


def _events(path: Path, part_of: dict[str, str]) -> Iterator[Event]:
    with gzip.open(path) as file:
        for event in json.load(file)["traceEvents"]:
            if event.get("ph") == "X" and event["name"] in part_of:
                yield Event(event["name"], event["ts"], event["ts"] + event["dur"])


def parts_of_program(text: str) -> dict[str, str]:
    """Returns the part of each operation of a compiled program that can be in a trace.

    An operation that does not say where it comes from belongs to its caller's part, or to that of
    most operations inside it, or to that of its nearest neighbours: convolutions before all others,
    those that read it before those that it reads.
    """
    program, bodies = _parse(text)
    known = {name: part for name, one in program.items() if (part := _own_part(one))}
    callers = [(known[name], program[name].operands) for name in known if _contains(program[name])]
    for part, operands in callers:
        for inner in (inner for called in operands for inner in bodies.get(called, ())):
            known.setdefault(inner, part)
    near: dict[str, list[str]] = defaultdict(list)
    for name, instruction in program.items():
        for operand in instruction.operands:
            near[operand].append(name)
        inside = [one for called in instruction.operands for one in bodies.get(called, ())]
        votes = Counter(known[one] for one in inside if one in known)
        if votes and name not in known:
            known[name] = votes.most_common(1)[0][0]
    for name, instruction in program.items():
        near[name] += instruction.operands
    for _ in range(_NEIGHBOURS):
        found = {}
        for name in program.keys() - known.keys():
            parts = [known[one] for one in near[name] if one in known]
            if parts:
                found[name] = CONVOLUTIONS if CONVOLUTIONS in parts else parts[0]
        known |= found
    leaves = (name for name, one in program.items() if not _contains(one))
    return {name: known.get(name, UPDATE) for name in leaves}


def _contains(instruction: Instruction) -> bool:
    return instruction.kind in _CONTAINERS


def _own_part(instruction: Instruction) -> str | None:
    """Returns the part that an operation says it comes from."""
    if instruction.kind == "convolution":
        return CONVOLUTIONS
    if marks := _MARK.findall(instruction.origin):
        return str(marks[-1])
    # Inside a call origins are short, and the caller knows; constants belong to everybody.
    known = instruction.origin.startswith("jit(") and instruction.kind != "constant"
    if not known or _contains(instruction):
        return None
    return AROUND if "jvp" in instruction.origin else UPDATE


def _parse(text: str) -> tuple[dict[str, Instruction], dict[str, list[str]]]:
    """Returns the instructions by name, and which of them each computation has."""
    program: dict[str, Instruction] = {}
    bodies: dict[str, list[str]] = defaultdict(list)
    computation = ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            computation = found[1]
        elif found := _INSTRUCTION.match(line):
            name, kind, rest = found.groups()
            origin = re.search(r'op_name="([^"]*)"', rest)
            operands = tuple(re.findall(r"%([\w.\-]+)", rest))
            program[name] = Instruction(kind, origin[1] if origin else "", operands)
            bodies[computation].append(name)
    return program, bodies

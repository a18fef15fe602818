"""What sort of work an operation is, and where in the detector it belongs."""

import re
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from stillbox.profiling.hlo import Instruction, Program


class Kind(StrEnum):
    """The sorts of work, in the order in which they are shown."""

    CONVOLUTIONS = "convolutions"
    PRODUCTS = "matrix products"
    REDUCTIONS = "reductions"
    ELEMENTWISE = "norms and other elementwise"
    COPIES = "copies and transposes"
    TARGETS = "matching and targets"
    LOSSES = "losses and mining"
    OPTIMIZER = "penalty, update, checks"
    DETECTIONS = "decoding and NMS"
    COLLECTIVES = "collectives"
    INFEED = "transfers from and to the host"
    OTHER = "other programs"


BACKGROUND = (Kind.COLLECTIVES, Kind.INFEED)
"""What is meant to run beside the rest, and costs time only where nothing else runs."""

_COLLECTIVES = re.compile(
    r"(all-(reduce|gather|to-all)|reduce-scatter|collective-(permute|broadcast)|ragged-all-to-all)"
)
# Instructions that only move data, or need no time at all.
_COPIES = {"copy", "copy-start", "copy-done", "transpose", "reshape", "bitcast", "bitcast-convert"}
_COPIES |= {"concatenate", "slice", "dynamic-slice", "dynamic-update-slice", "gather", "reverse"}
_COPIES |= {"pad", "broadcast", "iota", "constant", "parameter", "tuple", "get-tuple-element"}
_REDUCTIONS = {"reduce", "reduce-window", "select-and-scatter"}
_TRANSFERS = {"infeed", "outfeed", "send", "recv", "send-done", "recv-done"}
# What the libraries of a GPU call their kernels; XLA's own are named after their instructions.
_KERNELS = (
    (re.compile(r"nccl", re.I), Kind.COLLECTIVES),
    (re.compile(r"^Memcpy(H2D|D2H)|^MemcpyHtoD|^MemcpyDtoH"), Kind.INFEED),
    (re.compile(r"^Mem(cpy|set)|transpose|nchwToNhwc|nhwcToNchw", re.I), Kind.COPIES),
    (re.compile(r"fprop|dgrad|wgrad|conv|winograd|implicit", re.I), Kind.CONVOLUTIONS),
    (re.compile(r"gemm|nvjet|cutlass|splitK", re.I), Kind.PRODUCTS),
)
_SCOPES = {
    "targets": Kind.TARGETS,
    "losses": Kind.LOSSES,
    "penalty": Kind.OPTIMIZER,
    "update": Kind.OPTIMIZER,
    "postprocess": Kind.DETECTIONS,
}
_WRAPPED = re.compile(r"^(?:transpose|jvp|vmap|checkpoint|rematted_computation)\((.*)\)$")
_PACKAGE = re.compile(r"(?:.*/site-packages/|.*/(?=stillbox/)|^|.*/)([^/].*:\d+)$")
# What jax itself puts into a path.
_NOISE = re.compile(r"^(jit\(.*|cond|while|body|branch_\d+_fun|scan|closed_call|custom_\w+|)$")


class Place(NamedTuple):
    """Where an operation comes from."""

    scopes: tuple[str, ...]
    """The names of the code around it, such as `backbone`, `conv_0`, `convolution`."""
    gradient: bool
    """Whether it belongs to the way back."""

    def __str__(self) -> str:
        """Shows it on one line."""
        return "/".join(self.scopes) + (" (gradient)" if self.gradient else "")


NOWHERE = Place((), False)


def place_of(origin: str) -> Place:
    """Reads what jax says about an operation, `jit(step)/transpose(jvp(backbone))/conv_0/add`."""
    scopes, gradient = [], False
    parts = _split(origin)
    # The last part is the operation itself, and what stands alone was cut off from its caller.
    for part in parts[:-1] if parts[:1] and parts[0].startswith("jit(") else ():
        gradient = gradient or part.startswith("transpose(")
        while found := _WRAPPED.match(part):
            part = found[1]
        if not _NOISE.match(part):
            scopes.append(part)
    return Place(tuple(scopes), gradient)


def _split(origin: str) -> list[str]:
    """Splits at slashes that stand in no brackets."""
    parts, depth, last = [], 0, 0
    for at, sign in enumerate(origin):
        depth += (sign == "(") - (sign == ")")
        if sign == "/" and depth == 0:
            parts.append(origin[last:at])
            last = at + 1
    return [*parts, origin[last:]]


class Classifier:
    """Says of the operations of one program what they are.

    Args:
        program: whose operations they are.
        lowered: whether all that a convolution is made of counts as convolution. On a CPU this
            project makes it of products and sums; elsewhere a change of layout before a convolution
            is what one wants to see.
    """

    def __init__(self, program: Program, *, lowered: bool) -> None:
        self._program, self._lowered = program, lowered
        self._places: dict[str, Place] = {}

    def place(self, name: str) -> Place:
        """Returns where an instruction comes from.

        One that does not say so comes from where most of what is inside it does, or its caller, or
        what reads it, or what it reads.
        """
        if name not in self._places:
            self._places[name] = NOWHERE  # while it is looked for: callers may come round again
            self._places[name] = self._find(name)
        return self._places[name]

    def kind(self, name: str) -> Kind:
        """Returns what an instruction does, by its own name or that of a kernel of a library."""
        one = self._program.instructions.get(name)
        if one is None:
            return kind_of_kernel(name)
        inside = {inner.opcode for inner in self._program.inside(name)} | {one.opcode}
        scopes = self.place(name).scopes
        if any(_COLLECTIVES.match(kind) for kind in inside):
            return Kind.COLLECTIVES
        if one.opcode in _TRANSFERS:
            return Kind.INFEED
        convolves = "convolution" in inside or "conv" in one.target.lower()
        product = "dot" in inside or _is_product(one)
        inside_one = "convolution" in scopes
        if convolves or (inside_one and (self._lowered or product or one.opcode == "custom-call")):
            return Kind.CONVOLUTIONS
        for scope in reversed(scopes):  # the innermost knows best
            if scope in _SCOPES:
                return _SCOPES[scope]
        if "channel_sum" in scopes or inside & _REDUCTIONS:
            return Kind.REDUCTIONS
        if product:
            return Kind.PRODUCTS
        parts = inside - {"fusion"}
        return Kind.COPIES if parts and parts <= _COPIES else Kind.ELEMENTWISE

    def source(self, name: str) -> str:
        """Returns file and line that an instruction comes from, the file inside its package."""
        one = self._program.instructions.get(name)
        found = _PACKAGE.search(one.source) if one else None
        return found[1] if found else ""

    def _find(self, name: str) -> Place:
        one = self._program.instructions.get(name)
        if one is None:
            return NOWHERE
        if (own := place_of(one.op_name)).scopes:
            return own
        votes = Counter(
            place
            for inner in self._program.inside(name)
            if (place := place_of(inner.op_name)).scopes
        )
        if votes:
            return votes.most_common(1)[0][0]
        if caller := self._program.callers.get(name):
            return self.place(caller)
        # The compiler's own: a part of what reads it, or of what it reads.
        near = (*self._program.readers(name), *one.operands)
        known = (self._program.instructions[other].op_name for other in near if other)
        return next((place for text in known if (place := place_of(text)).scopes), NOWHERE)


def kind_of_kernel(name: str) -> Kind:
    """Returns what a kernel does that belongs to no instruction, by what libraries call theirs."""
    for pattern, kind in _KERNELS:
        if pattern.search(name):
            return kind
    return Kind.ELEMENTWISE


def _is_product(one: Instruction) -> bool:
    target = one.target.lower()
    return "gemm" in target or "matmul" in target or "cublas" in target


def classifiers(programs: Mapping[str, Program], platform: str) -> dict[str, Classifier]:
    """Returns a classifier for each program of a trace."""
    lowered = platform == "cpu"
    return {name: Classifier(one, lowered=lowered) for name, one in programs.items()}

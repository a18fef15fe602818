"""The kind of work of an operation, and the part of the detector that it belongs to."""

import re
from collections import Counter
from enum import StrEnum
from typing import NamedTuple

from stillbox.profiling.hlo import Program


class Kind(StrEnum):
    """The kinds of work."""

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
"""Kinds that should run beside the others, and cost time only where nothing else runs."""

_COLLECTIVES = re.compile(
    r"(all-(reduce|gather|to-all)|reduce-scatter|collective-(permute|broadcast)|ragged-all-to-all)"
)
# Opcodes that only move data, or take no time.
_COPIES = {"copy", "copy-start", "copy-done", "transpose", "reshape", "bitcast", "bitcast-convert"}
_COPIES |= {"concatenate", "slice", "dynamic-slice", "dynamic-update-slice", "gather", "reverse"}
_COPIES |= {"pad", "broadcast", "iota", "constant", "parameter", "tuple", "get-tuple-element"}
_REDUCTIONS = {"reduce", "reduce-window", "select-and-scatter"}
_TRANSFERS = {"infeed", "outfeed", "send", "recv", "send-done", "recv-done"}
# Kernels of a GPU's libraries by name; XLA's own are named after their instructions.
_KERNELS = (
    (re.compile(r"nccl", re.I), Kind.COLLECTIVES),
    (re.compile(r"^Memcpy(H2D|D2H)|^MemcpyHtoD|^MemcpyDtoH"), Kind.INFEED),
    (re.compile(r"^Mem(cpy|set)|transpose|nchwToNhwc|nhwcToNchw", re.I), Kind.COPIES),
    (re.compile(r"fprop|dgrad|wgrad|conv|winograd|implicit", re.I), Kind.CONVOLUTIONS),
    (re.compile(r"gemm|nvjet|cutlass|splitK", re.I), Kind.PRODUCTS),
)
_PRODUCT_CALL = re.compile(r"gemm|matmul|cublas", re.I)
_SCOPES = {
    "targets": Kind.TARGETS,
    "losses": Kind.LOSSES,
    "penalty": Kind.OPTIMIZER,
    "update": Kind.OPTIMIZER,
    "postprocess": Kind.DETECTIONS,
}
_WRAPPED = re.compile(r"^(?:transpose|jvp|vmap|checkpoint|rematted_computation)\((.*)\)$")
_PACKAGE = re.compile(r"(?:.*/site-packages/|.*/(?=stillbox/)|^|.*/)([^/].*:\d+)$")
# Parts of a path that jax itself adds.
_NOISE = re.compile(
    r"^(jit\(.*|cond|while|body|branch_\d+_fun|scan|closed_call|eval_jaxpr|custom_\w+|)$"
)


class Place(NamedTuple):
    """Where in the detector an operation comes from."""

    scopes: tuple[str, ...]
    """Names of the modules around it, such as `backbone`, `conv_0`, `convolution`."""
    gradient: bool
    """Whether it is part of the backward pass."""

    def __str__(self) -> str:
        return "/".join(self.scopes) + (" (gradient)" if self.gradient else "")


NOWHERE = Place((), False)


def place_of(op_name: str) -> Place:
    """Reads jax's path of an operation, `jit(step)/transpose(jvp(backbone))/conv_0/add`."""
    scopes: list[str] = []
    gradient, parts = False, _split(op_name)
    # The last part is the operation itself; a path without its start is cut off from its caller.
    for part in parts[:-1] if op_name.startswith("jit(") else ():
        gradient = gradient or part.startswith("transpose(")
        bare = part
        while found := _WRAPPED.match(bare):
            bare = found[1]
        if bare != part and scopes[:1] == [bare]:
            scopes.clear()  # a gradient inside a gradient repeats the path to it
        if not _NOISE.match(bare):
            scopes.append(bare)
    return Place(tuple(scopes), gradient)


def _split(op_name: str) -> list[str]:
    """Splits at slashes outside of brackets."""
    parts, depth = [""], 0
    for sign in op_name:
        depth += (sign == "(") - (sign == ")")
        if sign == "/" and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


class Classifier:
    """Classifies the operations of a program.

    Args:
        lowered: whether all parts of a convolution count as convolution. On a CPU stillbox makes it
            of products and sums; elsewhere a change of layout is shown as such.
    """

    def __init__(self, program: Program, *, lowered: bool) -> None:
        self._program, self._lowered = program, lowered
        self._places: dict[str, Place] = {}

    def place(self, name: str) -> Place:
        """Returns where an instruction comes from.

        Without a path of its own it is where most of the instructions inside it are, or its caller,
        or an instruction that reads it, or one that it reads.
        """
        if name not in self._places:
            self._places[name] = NOWHERE  # ends a cycle of callers
            self._places[name] = self._find(name)
        return self._places[name]

    def kind(self, name: str) -> Kind:
        """Returns the kind of an instruction, or of a library's kernel."""
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
        product = "dot" in inside or bool(_PRODUCT_CALL.search(one.target))
        inside_one = "convolution" in scopes
        if convolves or (inside_one and (self._lowered or product or one.opcode == "custom-call")):
            return Kind.CONVOLUTIONS
        for scope in reversed(scopes):  # the innermost decides
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
        inside = (place_of(inner.op_name) for inner in self._program.inside(name))
        if votes := Counter(place for place in inside if place.scopes):
            return votes.most_common(1)[0][0]
        if caller := self._program.callers.get(name):
            return self.place(caller)
        # Added by the compiler: part of an instruction that reads it, or of one that it reads.
        near = (*self._program.readers(name), *one.operands)
        places = (place_of(self._program.instructions[other].op_name) for other in near if other)
        return next((place for place in places if place.scopes), NOWHERE)


def kind_of_kernel(name: str) -> Kind:
    """Returns the kind of a kernel that belongs to no instruction, by its name."""
    return next((kind for pattern, kind in _KERNELS if pattern.search(name)), Kind.ELEMENTWISE)

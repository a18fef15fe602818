"""A TensorFlow graph under construction: nodes, functions, and arithmetic with tensors.

Operators and their parameters: `tensorflow/core/ops/*_ops.cc`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Union

import numpy as np

from stillbox.exporting.saved_model import messages
from stillbox.exporting.saved_model.messages import Array, Attribute, DType, FunctionName, Shape

_BAD_IN_NAMES = re.compile(r"^[^A-Za-z0-9.]|[^A-Za-z0-9_./-]")


class _Operator(NamedTuple):
    """The properties of the nodes of an operator beside their inputs."""

    types: str
    """Names of the attributes with the types of the inputs, in their order; `-`: none."""
    output: str = "output"
    """The output's name, by which functions refer to it."""
    result: DType | int = 0
    """The output's type, or the number of the input that has it."""


_ARITHMETIC = _Operator("T T", "z")
_COMPARISON = _Operator("T T", "z", DType.BOOL)
_RESIZING = _Operator("T -", "resized_images", DType.FLOAT)
_OPERATORS: Mapping[str, _Operator] = {
    **dict.fromkeys(("Abs", "Ceil", "Round"), _Operator("T", "y")),
    **dict.fromkeys(("AddV2", "Sub", "Mul", "RealDiv", "Maximum", "Minimum"), _ARITHMETIC),
    "RightShift": _ARITHMETIC,
    **dict.fromkeys(("Equal", "Less", "Greater", "LessEqual"), _COMPARISON),
    "LogicalAnd": _Operator("- -", "z"),
    **dict.fromkeys(("Max", "Min", "Sum"), _Operator("T Tidx")),
    "All": _Operator("- Tidx"),
    "Range": _Operator("Tidx Tidx Tidx"),
    "Fill": _Operator("index_type T", result=1),
    "SelectV2": _Operator("- T T", result=1),
    "Shape": _Operator("T", result=DType.INT32),
    "Reshape": _Operator("T Tshape"),
    "ExpandDims": _Operator("T Tdim"),
    "EnsureShape": _Operator("T"),
    "BroadcastTo": _Operator("T Tidx"),
    "GatherV2": _Operator("Tparams Tindices Taxis"),
    "Pad": _Operator("T Tpaddings"),
    **dict.fromkeys(("ResizeBilinear", "ResizeBicubic", "ResizeArea"), _RESIZING),
    "ResizeNearestNeighbor": _Operator("T -", "resized_images"),
    "Substr": _Operator("- T T"),
    "DecodeJpeg": _Operator("-", "image", DType.UINT8),
    "DecodeImage": _Operator("-", "image", DType.UINT8),
    "Identity": _Operator("T"),
}

Number = float | int | np.ndarray
Operand = Union["Tensor", Number, bytes]
"""A tensor, or a constant; Python's numbers become float32 and int32."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """An output of a node, or an argument of a function, with numpy's arithmetic."""

    graph: "Graph"
    node: str
    dtype: DType
    output: str
    """Name in the operator's definition; empty: an argument."""
    index: int = 0

    @property
    def name(self) -> str:
        """The name by which its graph, or its function, refers to it."""
        if self.graph.is_function:
            return f"{self.node}:{self.output}:{self.index}" if self.output else self.node
        return f"{self.node}:{self.index}"

    def cast(self, dtype: DType) -> "Tensor":
        """Returns the values in another type; fractions lose their digits after the point."""
        if dtype is self.dtype:
            return self
        return self.graph.node("Cast", [self], [dtype], output="y", SrcT=self.dtype, DstT=dtype)[0]

    def at(self, index: Operand, axis: int = 0) -> "Tensor":
        """Returns the values at positions of an axis."""
        return self.graph.op("GatherV2", self, index, axis, batch_dims=0)

    def __getitem__(self, index: int) -> "Tensor":
        return self.at(index)

    def _with(self, kind: str, other: "Tensor | Number") -> "Tensor":
        if not isinstance(other, Tensor):
            other = self.graph.constant(np.asarray(other, self.dtype.numpy))
        return self.graph.op(kind, self, other)

    def __add__(self, other: "Tensor | Number") -> "Tensor":
        return self._with("AddV2", other)

    def __sub__(self, other: "Tensor | Number") -> "Tensor":
        return self._with("Sub", other)

    def __mul__(self, other: "Tensor | Number") -> "Tensor":
        return self._with("Mul", other)

    def __truediv__(self, other: "Tensor | Number") -> "Tensor":
        return self._with("RealDiv", other)

    def __rshift__(self, other: "Tensor | Number") -> "Tensor":
        return self._with("RightShift", other)

    def __gt__(self, other: "Tensor | float") -> "Tensor":
        return self._with("Greater", other)

    def __lt__(self, other: "Tensor | float") -> "Tensor":
        return self._with("Less", other)

    def __and__(self, other: "Tensor") -> "Tensor":
        return self.graph.op("LogicalAnd", self, other)


class Function(NamedTuple):
    """A function of the graph's library."""

    name: FunctionName
    results: Sequence[DType]


class Graph:
    """Collects the nodes of a graph or of a function."""

    def __init__(self, parent: "Graph | None" = None) -> None:
        self.is_function = parent is not None
        self._nodes: list[bytes] = []
        self._names: dict[str, int] = {}
        self._constants: dict[Array, Tensor] = {}
        self._functions: list[bytes] = [] if parent is None else parent._functions

    def op(
        self,
        kind: str,
        *inputs: Operand,
        name: str = "",
        after: Sequence[str] = (),
        **attributes: Attribute,
    ) -> Tensor:
        """Appends a node of an operator with one output.

        Args:
            name: of the node; another if it is taken.
            after: nodes that run before.
        """
        operator = _OPERATORS[kind]
        tensors = [self._tensor(operand) for operand in inputs]
        for attribute, tensor in zip(operator.types.split(), tensors, strict=True):
            if attribute != "-":
                attributes[attribute] = tensor.dtype
        result = operator.result
        dtype = result if isinstance(result, DType) else tensors[result].dtype
        return self.node(
            kind, tensors, [dtype], output=operator.output, name=name, after=after, **attributes
        )[0]

    def node(
        self,
        kind: str,
        inputs: Sequence[Tensor],
        results: Sequence[DType],
        *,
        output: str = "output",
        name: str = "",
        after: Sequence[str] = (),
        **attributes: Attribute,
    ) -> list[Tensor]:
        """Appends a node of any operator, with all of its attributes but those with a default.

        Args:
            results: types of the outputs.
            output: name of the output, or list of outputs.
        """
        name = self.add(kind, inputs, name=name, after=after, **attributes)
        return [Tensor(self, name, dtype, output, index) for index, dtype in enumerate(results)]

    def add(
        self,
        kind: str,
        inputs: Sequence[Tensor] = (),
        *,
        name: str = "",
        after: Sequence[str] = (),
        **attributes: Attribute,
    ) -> str:
        """Appends a node without outputs, or with outputs of no interest; returns its name."""
        name = self._new_name(name or kind)
        names = [node.name for node in inputs] + [f"^{node}" for node in after]
        self._nodes.append(messages.node(name, kind, names, attributes))
        return name

    def constant(self, values: np.ndarray | bytes | list[bytes]) -> Tensor:
        """Returns a constant: numbers, a text, or an axis of texts. Equal ones are one node."""
        array = Array.of(values)
        if array not in self._constants:
            self._constants[array] = self.node(
                "Const", [], [array.dtype], dtype=array.dtype, value=array
            )[0]
        return self._constants[array]

    def function(
        self, name: str, arguments: Sequence[DType], body: Callable[..., Sequence[Tensor]]
    ) -> Function:
        """Adds a function to the library.

        Args:
            name: describes it; a number follows.
            arguments: their types.
            body: called with the arguments in the graph of the function; returns the results.
        """
        inner = Graph(self)
        parameters = [
            Tensor(inner, inner._new_name("argument"), dtype, output="") for dtype in arguments
        ]
        results = body(*parameters)
        name = f"{name}_{len(self._functions)}"
        returned = {
            f"result_{index}": (result.dtype, result.name) for index, result in enumerate(results)
        }
        self._functions.append(
            messages.function(
                name,
                {parameter.node: parameter.dtype for parameter in parameters},
                inner._nodes,
                returned,
            )
        )
        return Function(FunctionName(name), [result.dtype for result in results])

    def refuse_unless(self, condition: Tensor, message: str) -> str:
        """Appends a node that fails with a message; returns its name."""
        text = self.constant(message.encode())
        return self.add("Assert", [condition, text], T=[DType.STRING])

    def repeat(
        self,
        more: Callable[..., Tensor],
        step: Callable[..., Sequence[Tensor]],
        start: Sequence[Tensor],
    ) -> list[Tensor]:
        """Appends a loop: `state = step(*state)` as long as `more(*state)`; returns the state."""
        types = [tensor.dtype for tensor in start]
        functions = {
            "cond": self.function("more", types, lambda *state: [more(*state)]).name,
            "body": self.function("step", types, step).name,
        }
        return self.node(
            "StatelessWhile", start, types, T=types, _lower_using_switch_merge=True, **functions
        )

    def choose(
        self,
        condition: Tensor,
        then: Callable[[Tensor], Tensor],
        otherwise: Callable[[Tensor], Tensor],
        argument: Tensor,
    ) -> Tensor:
        """Appends a choice between two functions of one tensor."""
        types = [argument.dtype]
        branches = [
            self.function(name, types, lambda given, branch=branch: [branch(given)])
            for name, branch in (("then", then), ("otherwise", otherwise))
        ]
        results = list(branches[0].results)
        return self.node(
            "StatelessIf",
            [condition, argument],
            results,
            Tcond=condition.dtype,
            Tin=types,
            Tout=results,
            then_branch=branches[0].name,
            else_branch=branches[1].name,
            _lower_using_switch_merge=True,
        )[0]

    def map(self, function: Function, rows: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Appends the calls of a function with each row of a tensor, several at a time.

        Args:
            shapes: of the function's results.
        """
        results = list(function.results)
        return self.node(
            "MapDefun",
            [rows],
            results,
            f=function.name,
            Targuments=[rows.dtype],
            output_types=results,
            output_shapes=list(shapes),
        )

    def message(self) -> bytes:
        """Returns the `GraphDef`."""
        return messages.graph(self._nodes, self._functions)

    def _tensor(self, operand: Operand) -> Tensor:
        if isinstance(operand, Tensor):
            return operand
        if isinstance(operand, bytes):
            return self.constant(operand)
        array = np.asarray(operand)
        narrow = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}
        return self.constant(array.astype(narrow.get(array.dtype, array.dtype)))

    def _new_name(self, wanted: str) -> str:
        wanted = _BAD_IN_NAMES.sub("_", wanted)
        name, number = wanted, self._names.get(wanted, 0)
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names[wanted] = number
        self._names.setdefault(name, 0)
        return name

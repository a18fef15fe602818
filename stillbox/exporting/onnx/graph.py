"""An ONNX graph under construction: nodes in order, and each constant once."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

OPSET = 18
"""Version of the operators."""
IR_VERSION = 8
"""Version of the file, that of these operators."""

FLOAT, UINT8, INT32, INT64, BOOL = 1, 2, 6, 7, 9
"""Of `onnx.TensorProto`."""

Info = tuple[int, tuple[int | str, ...]]
"""Type and shape of an input or output."""

Operand = str | np.ndarray | float | int
"""The name of a tensor, or a constant; Python's numbers become float32 and int64."""


class Graph:
    """Collects nodes and constants.

    The graph of a `branch` of an `If` node shares the names and constants of its parent.
    """

    def __init__(self, parent: "Graph | None" = None) -> None:
        self._nodes: list[Any] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = (
            {} if parent is None else parent._constants
        )
        self._root: Graph = self if parent is None else parent._root
        self._made = 0

    def branch(self) -> Self:
        """Returns the empty graph of a branch of this one."""
        return type(self)(self)

    def later(self) -> Self:
        """Returns a graph whose nodes, added later, take this place in this one."""
        place = type(self)(self)
        self._nodes.append(place)
        return place

    def op(self, kind: str, *inputs: Operand, name: str | None = None, **attributes: Any) -> str:  # noqa: ANN401
        """Appends a node of the operator `kind` with one output, and returns the output's name.

        An empty name among the inputs leaves an optional one out.
        """
        return self.ops(kind, *inputs, names=[name], **attributes)[0]

    def ops(
        self,
        kind: str,
        *inputs: Operand,
        names: Sequence[str | None],
        **attributes: Any,  # noqa: ANN401
    ) -> list[str]:
        """Appends a node with several outputs; see `op`."""
        from onnx import helper

        outputs = [name or self.new_name(kind) for name in names]
        node = helper.make_node(
            kind, [self._name_of(one) for one in inputs], outputs, outputs[0], **attributes
        )
        self._nodes.append(node)
        return outputs

    def constant(self, array: NDArray[Any]) -> str:
        """Returns the name of a constant; equal arrays have one."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (array.dtype.str, array.shape, array.tobytes())
        return self._constants.setdefault(key, f"constant_{len(self._constants)}")

    def model(self, inputs: dict[str, Info], outputs: dict[str, Info], description: str) -> Any:  # noqa: ANN401
        """Returns the checked model; a length with a name is free."""
        import onnx
        from onnx import helper

        graph = helper.make_graph(
            list(self._all_nodes()),
            "detector",
            [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
            [helper.make_tensor_value_info(name, *info) for name, info in outputs.items()],
            self._initializers(),
            description,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="stillbox",
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def either(
        self, condition: str, branch: "Graph", results: Sequence[str], otherwise: Sequence[str]
    ) -> list[str]:
        """Appends an `If` node and returns the names of its outputs.

        Args:
            condition: a bool scalar.
            branch: run if it is true.
            results: outputs of the branch.
            otherwise: tensors of this graph, the outputs if it is false.
        """
        other = self.branch()
        same = [other.op("Identity", name) for name in otherwise]
        bodies = {"then_branch": branch._body(results), "else_branch": other._body(same)}
        return self.ops("If", condition, names=[None] * len(results), **bodies)

    def _body(self, results: Sequence[str]) -> Any:  # noqa: ANN401
        from onnx import ValueInfoProto, helper

        outputs = [ValueInfoProto(name=name) for name in results]
        return helper.make_graph(list(self._all_nodes()), self.new_name("branch"), [], outputs)

    def _all_nodes(self) -> Iterator[Any]:
        for node in self._nodes:
            if isinstance(node, Graph):
                yield from node._all_nodes()
            else:
                yield node

    def _initializers(self) -> list[Any]:
        from onnx import numpy_helper

        return [
            numpy_helper.from_array(np.frombuffer(content, dtype).reshape(shape), name)
            for (dtype, shape, content), name in self._constants.items()
        ]

    def _name_of(self, operand: Operand) -> str:
        if isinstance(operand, str):
            return operand
        dtype = np.float32 if isinstance(operand, float) else None
        return self.constant(np.asarray(operand, dtype))

    def new_name(self, kind: str) -> str:
        """Returns a name that no tensor has yet."""
        root = self._root
        root._made += 1
        return f"{kind.lower()}_{root._made}"

"""Writes values into an ONNX graph, each once, in the order of axes that is read."""

from collections import defaultdict
from typing import Any

import numpy as np

from stillbox.exporting.onnx.graph import Graph
from stillbox.exporting.onnx.values import (
    Clipped,
    Convolved,
    Known,
    Order,
    Padded,
    Repeated,
    Tensor,
    Value,
    fixed,
    identity,
)


class NetworkWriter:
    """Turns values into tensors of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._written: dict[int, tuple[Value, Tensor]] = {}
        self._convolutions: dict[tuple[int, Order], list[tuple[Convolved, str, Graph]]] = (
            defaultdict(list)
        )

    def tensor(self, value: Value) -> Tensor:
        """Returns a value as a tensor of the graph in any order; it is written once."""
        if isinstance(value, Tensor):
            return value
        if id(value) not in self._written:
            # The value is kept too, so that no other value can take its id.
            self._written[id(value)] = value, self._materialize(value)
        return self._written[id(value)][1]

    def name(self, value: Value, order: Order) -> str:
        """Returns the name of a value with its axes in `order`."""
        tensor = self.tensor(value)
        if tensor.order == order:
            return tensor.name
        moves = [tensor.order.index(axis) for axis in order]
        return self.graph.op("Transpose", tensor.name, perm=moves)

    def full(
        self, value: Value, shape: tuple[Any, ...], like: Value, order: Order | None = None
    ) -> str:
        """Returns the name of a value of `shape`, also of a constant with thin axes.

        Args:
            value: an array of the program.
            shape: lengths of its axes; that of the first may be free.
            like: a value that has the same first axis then.
            order: of the axes; None: the program's.
        """
        order = identity(len(shape)) if order is None else order
        if not isinstance(value, Known) or value.array.shape == shape:
            return self.name(value, order)
        array = np.broadcast_to(value.array, fixed(shape))
        if isinstance(shape[0], int):
            return self.name(Known(array), order)
        batch = self.name(like, identity(len(self.tensor(like).order)))
        rest = np.array(shape[1:], np.int64)
        lengths = self.graph.op("Concat", self.graph.op("Shape", batch, end=1), rest, axis=0)
        whole = self.graph.op("Expand", array, lengths)
        return self.name(Tensor(whole, identity(len(shape))), order)

    def thin(self, value: Repeated) -> Tensor:
        """Returns a repeated array with its new axes, of length 1 where it repeats."""
        rank = len(value.shape)
        source = value.source
        inner = self.thin(source) if isinstance(source, Repeated) else self.tensor(source)
        name = self.name(inner, identity(len(inner.order)))
        new = [axis for axis in range(rank) if axis not in value.axes]
        if new:
            name = self.graph.op("Unsqueeze", name, np.array(new))
        return Tensor(name, identity(rank))

    def _materialize(self, value: Value) -> Tensor:
        if isinstance(value, Padded):
            return self._pad(value)
        if isinstance(value, Clipped):
            return self._clip(value)
        if isinstance(value, Convolved):
            return self._convolve(value)
        if isinstance(value, Repeated):
            thin = self.thin(value)
            if not value.longer:
                return thin
            name = self.graph.op("Expand", thin.name, np.array(fixed(value.shape)))
            return Tensor(name, thin.order)
        assert isinstance(value, Known)
        return Tensor(self.graph.constant(value.array), identity(value.array.ndim))

    def _pad(self, value: Padded) -> Tensor:
        tensor = self.tensor(value.source)
        pads = [value.pads[axis][end] for end in (0, 1) for axis in tensor.order]
        name = self.graph.op("Pad", tensor.name, np.array(pads), float(value.value))
        return Tensor(name, tensor.order)

    def _clip(self, value: Clipped) -> Tensor:
        tensor = self.tensor(value.source)
        if (value.low, value.high) == (0.0, np.inf):
            return Tensor(self.graph.op("Relu", tensor.name), tensor.order)
        ends = [float(end) if np.isfinite(end) else "" for end in (value.low, value.high)]
        return Tensor(self.graph.op("Clip", tensor.name, *ends), tensor.order)

    def _convolve(self, value: Convolved) -> Tensor:
        # The nodes are written at the end, when shared kernels are known.
        place = self.graph.later()
        name = self.graph.new_name("Conv")
        key = id(value.kernel.array), value.kernel_order
        self._convolutions[key].append((value, name, place))
        return Tensor(name, value.order)

    def finish(self) -> None:
        """Writes the convolutions; factors multiply the kernel unless several layers share it."""
        for uses in self._convolutions.values():
            for value, name, place in uses:
                kernel = value.kernel.array.transpose(value.kernel_order)
                if len(uses) == 1:
                    scaled = kernel * value.factor[:, None, None, None]
                    weights = [scaled.astype(np.float32), value.offset.astype(np.float32)]
                    place.op("Conv", value.source.name, *weights, name=name, **value.attributes)
                    continue
                product = place.op("Conv", value.source.name, kernel, **value.attributes)
                factor, offset = (
                    column.astype(np.float32)[:, None, None]
                    for column in (value.factor, value.offset)
                )
                if (factor != 1).any():
                    product = place.op("Mul", product, factor)
                place.op("Add", product, offset, name=name)

"""The convolutions of a model, and the parameters that each uses, by tracing its program."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stillbox.experiment import schema
from stillbox.jax_internals import Literal
from stillbox.models.build import abstract_detector
from stillbox.models.detector import detect_function
from stillbox.models.jaxpr import (
    Equation,
    Jaxpr,
    TracedProgram,
    Variable,
    called_program,
    trace,
    used_equations,
)
from stillbox.models.layers import NormLayer
from stillbox.models.paths import named_modules

_KERNELS = ("kernel", "depthwise_kernel")


class NormUse(NamedTuple):
    """The batch norm that follows a convolution."""

    path: str
    config: schema.BatchNorm


class ModelLayer(NamedTuple):
    """One use of a kernel in a model; feature maps may share a kernel."""

    path: str
    """The kernel's."""
    kernel_shape: tuple[int, ...]
    shape: tuple[int, ...]
    """As `graph.Layer.shape`."""
    before: int
    """As `graph.Layer.before`."""
    bias: str | None
    """Path of the bias."""
    norm: NormUse | None
    depth: int = 0
    """As `graph.Layer.depth`."""

    @property
    def scores(self) -> bool:
        """Whether the result becomes scores."""
        return "class" in self.path


class _Flow(NamedTuple):
    """What reaches an array with no layer between: results of layers by bit, and parameters."""

    layers: int = 0
    parameters: tuple[str, ...] = ()
    depth: int = 0
    """Operations since the last layer."""


@lru_cache(maxsize=4)
def trace_layers(model: schema.Model) -> tuple[ModelLayer, ...]:
    """Returns the convolutions of a model; a layer stands after those before it.

    Raises:
        UserError: the model cannot be built.
    """
    detector = abstract_detector(model, "float32")
    shapes = {**detector.params, **detector.stats}
    images = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)
    sizes = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    detect = detect_function(detector.graph)
    traced = trace(detect, detector.params, detector.stats, images, sizes)
    modules = named_modules(detector.module())
    norms = {
        ".".join(path): module.config for path, module in modules if isinstance(module, NormLayer)
    }
    # The leaves of dictionaries are in the order of their keys.
    paths = [*sorted(detector.params), *sorted(detector.stats)]
    walk = _Walk({path: tuple(shape.shape) for path, shape in shapes.items()}, norms)
    return walk.layers(traced, paths)


class _Walk:
    """Follows arrays through a program, with the programs that it calls."""

    def __init__(
        self, shapes: dict[str, tuple[int, ...]], norms: dict[str, schema.BatchNorm]
    ) -> None:
        self._shapes = shapes
        self._norms = norms
        self._kernels: list[tuple[str, _Flow, bool]] = []
        # The parameters that follow each layer, in order.
        self._following: list[dict[str, None]] = []

    def layers(self, traced: TracedProgram, paths: Sequence[str]) -> tuple[ModelLayer, ...]:
        flows = [_Flow(parameters=(path,)) for path in paths]
        rest = len(traced.jaxpr.invars) - len(paths)
        self._run(traced.jaxpr, flows + [_Flow()] * rest)
        return tuple(map(self._layer, range(len(self._kernels))))

    def _run(self, jaxpr: Jaxpr, inputs: Iterable[_Flow]) -> list[_Flow]:
        flows: dict[Variable, _Flow] = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(variable: Variable) -> _Flow:
            return _Flow() if isinstance(variable, Literal) else flows.get(variable, _Flow())

        for equation in used_equations(jaxpr):
            given = list(map(read, equation.invars))
            inner = called_program(equation)
            if inner is None:
                results = [self._apply(equation, given)] * len(equation.outvars)
            else:
                results = self._run(inner.jaxpr, given)
            flows.update(zip(equation.outvars, results, strict=True))
        return list(map(read, jaxpr.outvars))

    def _apply(self, equation: Equation, given: Sequence[_Flow]) -> _Flow:
        if equation.primitive.name == "conv_general_dilated":
            x, kernel = given
            paths = [path for path in kernel.parameters if path.rpartition(".")[2] in _KERNELS]
            if len(paths) == 1:
                groups = equation.params["feature_group_count"] > 1
                self._kernels.append((paths[0], x, groups))
                self._following.append({})
                return _Flow(1 << len(self._kernels) - 1)
        layers = 0
        for flow in given:
            layers |= flow.layers
        parameters = dict.fromkeys(path for flow in given for path in flow.parameters)
        if layers.bit_count() == 1:
            self._following[layers.bit_length() - 1].update(parameters)
        # What several layers share is of none.
        depth = 1 + max((flow.depth for flow in given), default=0)
        return _Flow(layers, tuple(parameters) if layers.bit_count() < 2 else (), depth)

    def _layer(self, index: int) -> ModelLayer:
        path, source, groups = self._kernels[index]
        shape = self._shapes[path]
        owner = path.rpartition(".")[0]
        following = self._following[index]
        bias = f"{owner}.bias" if f"{owner}.bias" in following else None
        owners = (name.rpartition(".")[0] for name in following)
        norm = next((name for name in owners if name in self._norms), None)
        use = NormUse(norm, self._norms[norm]) if norm is not None else None
        *taps, inputs, outputs = shape
        # One with several results for each channel is computed as a dense convolution.
        depthwise = groups or path.endswith("depthwise_kernel")
        sizes = (*taps, inputs * outputs) if depthwise else shape
        return ModelLayer(path, shape, sizes, source.layers, bias, use, source.depth)

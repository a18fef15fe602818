"""The order in which Keras numbers the layers of a functional network.

Checkpoints of such a network call its layers with weights `layer_with_weights-0`, `-1`, ... Keras
sorts layers by their depth, the longest way to an output, the deepest first; those of one depth in
the order in which a search from the outputs finds them. Source: `keras/src/engine/functional.py`,
`_map_graph_network` (Keras 2.15).
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class KerasLayer:
    """A layer that is called once."""

    inputs: tuple["KerasLayer", ...] = ()
    name: str = ""
    """Empty for a layer without weights."""


def chain(start: KerasLayer, *names: str) -> KerasLayer:
    """Returns the last of layers that are called one after the other."""
    for name in names:
        start = KerasLayer((start,), name)
    return start


def number_layers(outputs: Sequence[KerasLayer]) -> dict[str, int]:
    """Numbers the layers that have a name.

    Args:
        outputs: of the network, in the order of their own names.
    """
    found, sorted_layers = _search(outputs)
    depths = dict.fromkeys(found, 0)
    for layer in reversed(sorted_layers):
        for source in layer.inputs:
            depths[source] = max(depths[source], depths[layer] + 1)
    named = [layer for layer in found if layer.name]
    named.sort(key=lambda layer: -depths[layer])
    return {layer.name: number for number, layer in enumerate(named)}


def _search(outputs: Sequence[KerasLayer]) -> tuple[list[KerasLayer], list[KerasLayer]]:
    """Returns all layers as a search in depth finds them, and with every layer behind its inputs.

    Networks are deeper than Python's stack.
    """
    found: dict[KerasLayer, None] = {}
    done: dict[KerasLayer, None] = {}
    for output in outputs:
        stack = [(output, iter(output.inputs))] if output not in found else []
        found.setdefault(output)
        while stack:
            layer, sources = stack[-1]
            source = next((own for own in sources if own not in found), None)
            if source is None:
                done.setdefault(layer)
                stack.pop()
            else:
                found[source] = None
                stack.append((source, iter(source.inputs)))
    return list(found), list(done)

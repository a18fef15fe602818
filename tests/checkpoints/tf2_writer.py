"""Writes TF2's object-based checkpoints, so that tests need no TensorFlow."""

from tests.checkpoints.tf1_writer import field, write_checkpoint

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def object_graph(keys):
    """A graph in which each path leads to the variable of a key; a key is one object."""
    nodes, variables = [{}], {}
    for path, key in keys.items():
        *parents, last = path.split("/")
        node = 0
        for name in parents:
            if name not in nodes[node]:
                nodes[node][name] = len(nodes)
                nodes.append({})
            node = nodes[node][name]
        if key not in variables:
            nodes.append(key)
            variables[key] = len(nodes) - 1
        nodes[node][last] = variables[key]
    return b"".join(field(1, _node(node)) for node in nodes)


def _node(content):
    if isinstance(content, str):
        return field(2, field(1, b"VARIABLE_VALUE") + field(3, (content + SUFFIX).encode()))
    references = (field(1, number) + field(2, name.encode()) for name, number in content.items())
    return b"".join(field(1, reference) for reference in references)


def write_object_checkpoint(prefix, arrays, aliases=None):
    """Writes arrays by the path that is their key; `aliases` are further paths to keys."""
    graph = object_graph({path: path for path in arrays} | (aliases or {}))
    keyed = {path + SUFFIX: array for path, array in arrays.items()}
    write_checkpoint(prefix, keyed | {GRAPH: graph})

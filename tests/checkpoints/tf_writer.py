"""Writes TF1 checkpoints (V2) and TF2's object-based ones, so that tests need no TensorFlow.

Independent of the reader on purpose: nothing but the checksum is shared with it.
"""

import struct
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from stillbox.records.tfrecord import masked_crc32c

DTYPES = {
    np.dtype(np.float32): 1,
    np.dtype(np.float64): 2,
    np.dtype(np.int32): 3,
    np.dtype(np.uint8): 4,
    np.dtype(np.int16): 5,
    np.dtype(np.int8): 6,
    np.dtype(np.int64): 9,
    np.dtype(np.bool_): 10,
    np.dtype(jnp.bfloat16): 14,
    np.dtype(np.uint16): 17,
    np.dtype(np.float16): 19,
    np.dtype(np.uint32): 22,
    np.dtype(np.uint64): 23,
}
_RESTART_INTERVAL = 16


def varint(value):
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value) if value else b""


def bundle_header(shards, *, endianness=0):
    return field(1, shards) + field(2, endianness) + field(3, field(1, 1))


def bundle_entry(array, shard, offset, *, dtype=None, extra=b""):
    shape = b"".join(field(2, field(1, length)) for length in array.shape)
    checksum = struct.pack("<BI", 6 << 3 | 5, masked_crc32c(array.tobytes()))
    return (
        field(1, dtype or DTYPES[array.dtype])
        + field(2, shape)
        + field(3, shard)
        + field(4, offset)
        + field(5, array.nbytes)
        + checksum
        + extra
    )


def _block(entries):
    data, restarts, previous = bytearray(), [], b""
    for index, (key, value) in enumerate(entries):
        shared = 0
        if index % _RESTART_INTERVAL == 0:
            restarts.append(len(data))
        else:
            pairs = zip(key, previous, strict=False)
            shared = next((i for i, (a, b) in enumerate(pairs) if a != b), len(previous))
        rest = key[shared:]
        data += varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value
        previous = key
    restarts = restarts or [0]
    return bytes(data) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(entries, *, block_entries=50, compression=0):
    """A table of (key, value) pairs, some to a block."""
    out = bytearray()

    def append(block):
        handle = varint(len(out)) + varint(len(block))
        kind = bytes([compression])
        out.extend(block + kind + struct.pack("<I", masked_crc32c(block + kind)))
        return handle

    entries = sorted(entries)
    groups = [entries[i : i + block_entries] for i in range(0, len(entries), block_entries)]
    index = [(group[-1][0], append(_block(group))) for group in groups]
    footer = append(_block([])) + append(_block(index))
    return bytes(out) + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def text_entry(text, offset):
    """The entry of a scalar text in shard 0, and its bytes: length, checksum of it, text."""
    length = struct.pack("<I", len(text))
    rest = struct.pack("<I", masked_crc32c(length)) + text
    checksum = struct.pack("<BI", 6 << 3 | 5, masked_crc32c(length + rest))
    content = varint(len(text)) + rest
    place = field(4, offset) + field(5, len(content))
    return field(1, 7) + field(2, b"") + place + checksum, content


def write_checkpoint(prefix, arrays, *, shards=1, block_entries=50):
    """Writes `prefix.index` and its data files, variables dealt out to the shards in turn.

    A value may be a text, which goes into the first shard.
    """
    contents = [bytearray() for _ in range(shards)]
    entries = [(b"", bundle_header(shards))]
    for number, (name, array) in enumerate(sorted(arrays.items())):
        shard = number % shards
        if isinstance(array, bytes):
            entry, content = text_entry(array, len(contents[0]))
            entries.append((name.encode(), entry))
            contents[0] += content
            continue
        entries.append((name.encode(), bundle_entry(array, shard, len(contents[shard]))))
        contents[shard] += array.tobytes()
    for shard, content in enumerate(contents):
        Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    Path(f"{prefix}.index").write_bytes(table(entries, block_entries=block_entries))


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

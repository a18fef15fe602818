"""Compiled programs from XLA's text, for tests."""

import re

Field = tuple[int, "int | str | bytes"]


def message(*fields: Field) -> bytes:
    """Returns a protobuf message of these fields: number, then a number, a text or a message."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(content)) + content
    return out


def varint(value: int) -> bytes:
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


_TYPES = {"pred": 1, "s8": 2, "s32": 4, "u8": 6, "u32": 8, "f32": 11, "bf16": 16}
_COMPUTATION = re.compile(r"(ENTRY )?%([\w.]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%([\w.]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(?:, (.*))?$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*):?((?:T[^S}]*)?)(?:S\((\d)\))?\})?")
_NAME = re.compile(r"%([\w.]+)")


def module(text: str) -> bytes:
    """Returns a serialised `HloModuleProto` with the attributes that `stillbox` reads."""
    computations: dict[str, list[tuple[str, ...]]] = {}
    entry = ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            name = head[2]
            computations[name] = []
            entry = name if head[1] else entry
        elif match := _INSTRUCTION.match(line):
            computations[name].append(match.groups(""))
    numbers = {name: 1000 + number for number, name in enumerate(computations)}
    known = [parts[0] for body in computations.values() for parts in body]
    made = []
    for name, body in computations.items():
        instructions = ((2, _instruction(parts, known, numbers)) for parts in body)
        made.append((3, message((1, name), *instructions, (5, numbers[name]))))
    return message((1, "jit_step"), *made, (6, numbers[entry]))


def _instruction(parts: tuple[str, ...], known: list[str], numbers: dict[str, int]) -> bytes:
    name, shape, opcode, inside, attributes = parts

    def attribute(pattern: str) -> str:
        match = re.search(pattern, attributes)
        return match[1] if match else ""

    bodies = [attribute(rf"{key}=%([\w.]+)") for key in ("body", "condition", "calls", "to_apply")]
    contracted = attribute(r"lhs_contracting_dims=\{([\d,]*)\}")
    kernel = attribute(r"dim_labels=\w+_(\w+)->")
    return message(
        (1, name),
        (2, opcode),
        (3, shape_proto(shape)),
        (7, message((2, attribute(r'op_name="([^"]*)"')))),
        (9, int(inside) if opcode == "parameter" else 0),
        (16, message((4, kernel.index("o") if kernel else 0))),
        (28, attribute(r'custom_call_target="([^"]*)"')),
        (30, message(*((1, int(axis)) for axis in contracted.split(",") if axis))),
        (35, known.index(name)),
        *((36, known.index(operand)) for operand in _NAME.findall(inside)),
        *((38, numbers[body]) for body in bodies if body),
        (43, attribute(r"backend_config=(.*)$")),
    )


def shape_proto(text: str) -> bytes:
    """Returns the `ShapeProto` of an array or, in brackets, of a tuple of arrays."""
    arrays = [_array(match) for match in _ARRAY.finditer(text)]
    return message((2, 13), *((4, array) for array in arrays)) if text[0] == "(" else arrays[0]


def _array(match: re.Match[str]) -> bytes:
    kind, sides, order, tiles, space = match.groups("")
    layout = message(
        *((1, int(axis)) for axis in order.split(",") if axis),
        *(
            (6, message(*((1, int(n)) for n in tile.split(","))))
            for tile in re.findall(r"\(([\d,]+)\)", tiles)
        ),
        (8, int(space or 0)),
    )
    sides = [(3, int(side)) for side in sides.split(",") if side]
    return message((2, _TYPES[kind]), *sides, (5, layout))

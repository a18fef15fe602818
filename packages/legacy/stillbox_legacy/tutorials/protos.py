"""`object_detection.protos`: messages of protobuf, made at run time from stillbox's tables.

Fields, types and defaults come from the table of `pipeline.config` and of label maps; files and
numbers are in `protos.txt`. All messages are in a pool of their own, so that they do not meet the
messages of an installed `object_detection`.
"""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from stillbox.experiment.pipeline_config.section import load_schema
from stillbox.records.label_map import SCHEMA
from stillbox.textformat.messages import FieldType, MessageType

_PACKAGE = "object_detection.protos"
_OPAQUE = "opaque"
_FIRST_OWN = 1000
_SCALARS = {
    name: f"TYPE_{name.upper()}"
    for name in ("bool", "int32", "uint32", "float", "double", "string")
}


class _Layout(NamedTuple):
    files: Mapping[str, tuple[str, ...]]
    """Names of messages and enums by file."""
    numbers: Mapping[str, Mapping[str, int]]
    """Numbers of fields by message."""


def _read_layout() -> _Layout:
    text = (Path(__file__).parent / "protos.txt").read_text(encoding="utf-8")
    files: dict[str, tuple[str, ...]] = {}
    numbers: dict[str, dict[str, int]] = {}
    file = name = ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("#") or not words:
            continue
        if words[0] == "file":
            file = words[1]
            files[file] = ()
            continue
        if words[0].endswith(":"):
            name = words.pop(0)[:-1]
            files[file] += (name,)
        pairs = (word.split("=") for word in words)
        numbers.setdefault(name, {}).update({field: int(number) for field, number in pairs})
    return _Layout(files, numbers)


_LAYOUT = _read_layout()
MODULES = tuple(_LAYOUT.files)
"""Names of the modules, without `_pb2`."""


@functools.cache
def load_module(name: str) -> ModuleType:
    """Returns the module of a file, such as `pipeline` for `pipeline_pb2`.

    It has the classes of messages, the enums, and the values of these.

    Raises:
        ModuleNotFoundError: there is no such file.
    """
    if name not in _LAYOUT.files:
        raise ModuleNotFoundError(f"No module named '{_PACKAGE}.{name}_pb2'")
    pool = _pool()
    factory = importlib.import_module("google.protobuf.message_factory")
    wrapper = importlib.import_module("google.protobuf.internal.enum_type_wrapper")
    module = ModuleType(f"{_PACKAGE}.{name}_pb2", f"`{name}.proto` of the Object Detection API.")
    for member in _LAYOUT.files[name]:
        if "." in member:
            continue  # in the class of its message
        if member in _enums():
            enum = pool.FindEnumTypeByName(f"{_PACKAGE}.{member}")
            setattr(module, member, wrapper.EnumTypeWrapper(enum))
            vars(module).update({value.name: value.number for value in enum.values})
        elif member in _messages():
            message = pool.FindMessageTypeByName(f"{_PACKAGE}.{member}")
            setattr(module, member, factory.GetMessageClass(message))
            module.__dict__["DESCRIPTOR"] = message.file
    return module


@functools.cache
def _messages() -> Mapping[str, MessageType]:
    return {**load_schema().messages, **SCHEMA.messages}


@functools.cache
def _enums() -> Mapping[str, Mapping[str, int]]:
    return {**load_schema().enums, **SCHEMA.enums}


@functools.cache
def _pool() -> Any:  # noqa: ANN401
    """Returns the `DescriptorPool` of all messages."""
    descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
    file = descriptors.FileDescriptorProto(
        name="stillbox/object_detection.proto", package=_PACKAGE, syntax="proto2"
    )
    types: dict[str, Any] = {}
    for name, message in sorted({**_messages(), _OPAQUE: MessageType("Opaque", {})}.items()):
        outer, _, last = (name if name != _OPAQUE else "Opaque").rpartition(".")
        made = types[outer].nested_type.add() if outer else file.message_type.add()
        made.name = last
        types[name] = made
        _add_fields(made, name, message)
    for name, values in _enums().items():
        outer, _, last = name.rpartition(".")
        enum = types[outer].enum_type.add() if outer else file.enum_type.add()
        enum.name = last
        for word, number in values.items():
            enum.value.add(name=word, number=number)
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _add_fields(made: Any, name: str, message: MessageType) -> None:  # noqa: ANN401
    numbers = _LAYOUT.numbers.get(name, {})
    oneofs: dict[str, int] = {}
    for index, field in enumerate(message.fields.values()):
        added = made.field.add(name=field.name, number=numbers.get(field.name, _FIRST_OWN + index))
        added.label = added.LABEL_REPEATED if field.repeated else added.LABEL_OPTIONAL
        if field.oneof:
            if field.oneof not in oneofs:
                oneofs[field.oneof] = len(oneofs)
                made.oneof_decl.add(name=field.oneof)
            added.oneof_index = oneofs[field.oneof]
        _set_type(added, field)


def _set_type(added: Any, field: FieldType) -> None:  # noqa: ANN401
    if field.type in _SCALARS:
        added.type = getattr(added, _SCALARS[field.type])
    elif field.is_message:
        added.type = added.TYPE_MESSAGE
        added.type_name = f".{_PACKAGE}.{'Opaque' if field.type == _OPAQUE else field.type}"
    else:
        added.type = added.TYPE_ENUM
        added.type_name = f".{_PACKAGE}.{field.type}"
    if field.default is not None and not field.repeated:
        boolean = isinstance(field.default, bool)
        added.default_value = str(field.default).lower() if boolean else str(field.default)

"""Protobuf text format without protobuf: text -> syntax tree -> typed messages, with positions."""

from stillbox.experiment.textproto.messages import Decoder, Entry, Message, default_value
from stillbox.experiment.textproto.parser import Block, Field, Scalar, parse
from stillbox.experiment.textproto.types import FieldType, MessageType, Schema, load_schema

__all__ = [
    "Block",
    "Decoder",
    "Entry",
    "Field",
    "FieldType",
    "Message",
    "MessageType",
    "Scalar",
    "Schema",
    "default_value",
    "load_schema",
    "parse",
]

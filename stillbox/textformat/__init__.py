"""Protobuf text format without protobuf: text -> syntax tree -> typed messages, with positions."""

"""ONNX: a graph of its own operators, written from the traced program."""

"""Weights of exported graphs, found by the place of their convolutions in the dataflow.

Converters rename, fold and merge variables. The convolutions stay, and so does what flows from one
into another. `graph.py` finds them in a file, `traced.py` in a model's program, `matching.py` pairs
the two, and `folding.py` turns kernels and offsets into the model's parameters.
"""

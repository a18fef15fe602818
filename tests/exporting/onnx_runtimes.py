"""Runs an ONNX model in either runtime."""

from functools import partial

import pytest

from stillbox.errors import UserError
from stillbox.exporting.onnx.format import openvino_core

pytest.importorskip("onnx")
RUNTIMES = ("onnxruntime", "openvino")


def loaded(model, runtime):
    """Returns inputs by name -> list of outputs; skips where the runtime is absent."""
    content = model.SerializeToString()
    if runtime == "onnxruntime":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        return partial(session.run, None)
    try:
        core = openvino_core()
    except UserError as error:
        pytest.skip(str(error))
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(content), "CPU", settings)
    return lambda feed: list(compiled(feed).values())

"""Shared parts of the tests of exports: outputs, a program run by JAX, tasks of a benchmark."""

import os
import signal
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.exporting.onnx.format import openvino_core
from stillbox.exporting.program import ExportProgram
from stillbox.inputs.resize import resize_image

OUTPUTS = {
    "detection_api": [
        *("detection_anchor_indices", "detection_boxes", "detection_classes"),
        *("detection_multiclass_scores", "detection_scores", "num_detections"),
        *("raw_detection_boxes", "raw_detection_scores"),
    ],
    "tpu": [
        *("num_detections", "detection_boxes", "detection_classes", "detection_scores"),
        "image_info",
    ],
}
"""Names in their order."""


def expected(model, settings, images):
    """The outputs of the program itself for images `[B, h, w, 3]` of one size."""
    program = ExportProgram(model, settings)
    resized, sizes = zip(
        *(resize_image(image, program.description.resizer) for image in images), strict=True
    )
    original = np.tile(np.int32(images.shape[1:3]), (len(images), 1))
    outputs = jax.jit(program.outputs)(
        program.weights, np.stack(resized), np.int32(sizes), original
    )
    return {name: np.asarray(array) for name, array in outputs.items()}


def assert_verified(export, images, boxes=1e-3):
    """Asserts that an export was compared on these and on blank images, within some pixels."""
    checked = export.verification
    assert checked.images == len(images) + 2
    assert checked.detections > 10
    assert checked.max_box_difference < boxes
    assert checked.max_score_difference < 1e-5


@dataclass(frozen=True)
class Killed:
    """Prints, and is killed by a signal."""

    number: int = signal.SIGKILL

    def perform(self, progress):
        progress(1, 2)
        print("so far all is well", flush=True)
        os.kill(os.getpid(), self.number)


@dataclass(frozen=True)
class Raising:
    """Raises an exception that no runtime raises."""

    def perform(self, progress):
        raise LookupError("nothing\nhere")


@dataclass(frozen=True)
class Refusing:
    """Refuses its input."""

    def perform(self, progress):
        raise UserError("it is wrong", where="here", fix="mend it")


@dataclass(frozen=True)
class Counting:
    """Returns the processors that it may use."""

    def perform(self, progress):
        return len(os.sched_getaffinity(0))


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

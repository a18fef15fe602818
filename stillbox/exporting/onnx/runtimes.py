"""Runs an ONNX artefact in onnxruntime or OpenVINO."""

import functools
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stillbox.devices.processors import own_processors
from stillbox.errors import UserError
from stillbox.exporting.formats import Run, refusal
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.onnx.format import FILE
from stillbox.extras import import_extra


def load_onnxruntime(folder: Path, manifest: Manifest) -> Run:
    """Loads an artefact into onnxruntime.

    Raises:
        UserError: onnxruntime is not installed, or refuses the file. The result raises it for an
            input of another type or shape.
    """
    onnxruntime = import_extra("onnxruntime", "onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = own_processors()
    options.log_severity_level = 4  # errors come as exceptions
    with _refusal("onnxruntime", folder, manifest):
        session = onnxruntime.InferenceSession(
            folder / FILE, options, providers=["CPUExecutionProvider"]
        )
    names = [one.name for one in session.get_outputs()]

    def run(images: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
        arrays = session.run(names, {manifest.settings.input: images})
        return dict(zip(names, arrays, strict=True))

    return _checked(run, folder)


def load_openvino(folder: Path, manifest: Manifest) -> Run:
    """Loads an artefact into OpenVINO; its order of detections with equal scores is another.

    Raises:
        UserError: OpenVINO is not installed, or refuses the file. The result raises it for an
            input of another type or shape.
    """
    core = openvino_core()
    settings = {
        # On some processors the default is bfloat16.
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": own_processors(),
    }
    with _refusal("openvino", folder, manifest):
        model = core.read_model(folder / FILE)
        compiled = core.compile_model(model, "CPU", settings)
    # A tensor has several names if copies were optimised away; its node has the output's name.
    names = [one.get_friendly_name().removesuffix("/sink_port_0") for one in model.get_results()]
    # A request serves one thread at a time.
    own = threading.local()

    def run(images: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        results = own.request.infer({manifest.settings.input: images})
        arrays = [np.array(array) for array in results.values()]
        return dict(zip(names, arrays, strict=True))

    return _checked(run, folder)


def openvino_core() -> Any:  # noqa: ANN401
    """Returns the one `openvino.Core` of this process.

    The CPU plugin of each core replaces the thread's alternate signal stack, and unmaps its own
    when the core is destroyed. With two cores, of which the first is destroyed first, the thread
    keeps an unmapped stack, and the next signal ends the process with a segmentation fault.

    Raises:
        UserError: OpenVINO is not installed.
    """
    return _shared_core(_import_openvino())


@functools.cache
def _shared_core(openvino: ModuleType) -> Any:  # noqa: ANN401
    return openvino.Core()


def _import_openvino() -> Any:  # noqa: ANN401
    """Imports OpenVINO without its telemetry.

    The telemetry sends a report and forks this process, which JAX's threads do not survive.
    """
    name = "openvino_telemetry"
    hide = name not in sys.modules
    if hide:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        return import_extra("openvino", "openvino")
    finally:
        if hide:
            del sys.modules[name]


def _refusal(runtime: str, folder: Path, manifest: Manifest) -> Any:  # noqa: ANN401
    fix = f"it needs {runtime} {manifest.needs.get(runtime, '')}"
    return refusal(f"{runtime} {version(runtime)}", folder / FILE, fix, Exception)


def _checked(run: Run, folder: Path) -> Run:
    def checked_run(images: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
        try:
            return run(images)
        except Exception as error:  # the runtimes' classes differ
            raise UserError(
                f"the model does not take {images.dtype} {list(images.shape)}: {error}",
                where=str(folder / FILE),
                fix="export.json gives type and shape; an image must fit the resizer's canvas",
            ) from error

    return checked_run

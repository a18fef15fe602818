"""OpenVINO as the runtime of an ONNX artefact."""

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
from stillbox.exporting.formats import Run
from stillbox.exporting.manifest import Manifest


def load_openvino(file: Path, manifest: Manifest) -> Run:
    """Loads an ONNX file into OpenVINO.

    Detections of equal score may come in another order than in onnxruntime.

    Args:
        file: from images to detections.
        manifest: of the artefact.

    Raises:
        UserError: OpenVINO is not installed, or refuses the file.
    """
    core = openvino_core()
    settings = {
        # On some processors OpenVINO takes bfloat16 unless told otherwise.
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": own_processors(),
    }
    try:
        model = core.read_model(file)
        compiled = core.compile_model(model, "CPU", settings)
    except RuntimeError as error:
        raise UserError(
            f"OpenVINO {version('openvino')} refuses the model: {error}",
            where=str(file),
            fix=f"it needs OpenVINO {manifest.needs['openvino']}",
        ) from error
    # A tensor has as many names as copies that were optimised away; its node has the output's.
    names = [one.get_friendly_name().removesuffix("/sink_port_0") for one in model.get_results()]
    # A request serves one thread at a time.
    own = threading.local()

    def run(images: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        results = own.request.infer({manifest.settings.input: images})
        arrays = [np.array(array) for array in results.values()]
        return dict(zip(names, arrays, strict=True))

    return run


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


def _import_openvino() -> ModuleType:
    """Imports OpenVINO without its telemetry.

    The telemetry sends a report and forks this process, which JAX's threads do not survive.
    """
    name = "openvino_telemetry"
    hide = name not in sys.modules
    if hide:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import openvino
    except ImportError as error:
        fix = "pip install 'stillbox[openvino]'"
        raise UserError("openvino is not installed", fix=fix) from error
    finally:
        if hide:
            del sys.modules[name]
    return openvino

"""The writer of each format, and the loaders of the runtimes that run it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from stillbox.errors import UserError
from stillbox.exporting.manifest import Manifest, Written
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import Format

Run = Callable[[Any], dict[str, np.ndarray]]
"""From the value of the one input to the outputs by name. Images are `[B, h, w, 3]`; encoded
images and tf.Examples are `[B]` objects of bytes."""

Writer = Callable[[ExportProgram, Path, Sequence[np.ndarray]], Written]
"""Writes an artefact into an empty folder. The images `[h, w, 3]` uint8 calibrate a quantised
model. Raises UserError if an extra is not installed or the format cannot hold the model."""

Loader = Callable[[Path, Manifest], Run]
"""Loads the artefact in a folder. Raises UserError if the runtime is not installed or refuses
the artefact."""

_WRITERS = {
    "saved_model": "stillbox.exporting.saved_model.format:write",
    "stablehlo": "stillbox.exporting.stablehlo:write",
    "tflite": "stillbox.exporting.tflite.format:write",
    "onnx": "stillbox.exporting.onnx.format:write",
}
_LOADERS = {
    "saved_model": {"tensorflow": "stillbox.exporting.saved_model.format:load"},
    "stablehlo": {"jax": "stillbox.exporting.stablehlo:load"},
    "tflite": {"litert": "stillbox.exporting.tflite.format:load"},
    "onnx": {
        "onnxruntime": "stillbox.exporting.onnx.runtimes:load_onnxruntime",
        "openvino": "stillbox.exporting.onnx.runtimes:load_openvino",
    },
}
"""By format and runtime; the first runtime is the default."""


def find_writer(form: Format) -> Writer:
    """Returns the writer of a format; its module is imported now."""
    writer: Writer = resolve_name(_WRITERS[form])
    return writer


def find_loader(form: Format, runtime: str = "") -> Loader:
    """Returns the loader of a runtime; its module is imported now.

    Args:
        runtime: empty: the format's default.

    Raises:
        UserError: the runtime does not run the format.
    """
    runtimes = _LOADERS[form]
    if runtime and runtime not in runtimes:
        raise UserError(
            f"{runtime} does not run {form}", where="--runtime", fix="use " + " or ".join(runtimes)
        )
    loader: Loader = resolve_name(runtimes[runtime or next(iter(runtimes))])
    return loader


@contextmanager
def refusal(runtime: str, file: Path, fix: str, *errors: type[Exception]) -> Iterator[None]:
    """Turns a runtime's errors on loading a file into a `UserError`."""
    try:
        yield
    except errors as error:
        raise UserError(
            f"{runtime} refuses the model: {error}", where=str(file), fix=fix
        ) from error

"""From a function of JAX to a flatbuffer of TFLite, by the package `litert-converter`.

Its interface for StableHLO is private, and was read in version 0.5.0: no other module imports the
package, and `pyproject.toml` admits versions that the tests have seen.
"""

import platform
import re
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec

import jax

from stillbox.errors import UserError
from stillbox.extras import import_extra

SIGNATURE = "serving_default"
"""The one signature of a converted model."""
# Of its wheels.
_PLATFORMS = ("Linux", "x86_64"), ("Darwin", "arm64")
_REFUSED = re.compile(r"failed to legalize operation '([\w.]+)'")


def converter_version() -> str:
    """Returns the installed version."""
    return metadata.version("litert-converter")


def convert(
    function: Callable[[jax.Array], Sequence[jax.Array]], argument: jax.ShapeDtypeStruct, name: str
) -> bytes:
    """Returns a function of one array as a TFLite model, its constants included.

    The outputs of its signature are `output_0` and so on. Tensors are named by the scopes of the
    function.

    Raises:
        UserError: the converter is not installed, or TensorFlow Lite cannot hold the function.
    """
    _require_converter()
    lowered = jax.jit(function).trace(argument).lower(lowering_platforms=("cpu",))
    outputs = [f"output_{index}" for index in range(len(lowered.out_info))]
    program = lowered.compiler_ir("stablehlo").operation
    # The quantiser finds layers by names, which are debug information in MLIR.
    text = program.get_asm(large_elements_limit=None, enable_debug_info=True)
    try:
        return _flatbuffer(text, name, outputs)
    except Exception as error:  # the converter has no error class
        raise UserError(
            f"TensorFlow Lite cannot hold this model: {_reason(error)}",
            where="--format tflite",
            fix="use another format, such as --format onnx",
        ) from error


def _require_converter() -> None:
    system, machine = platform.system(), platform.machine()
    if find_spec("litert_converter") is None and (system, machine) not in _PLATFORMS:
        raise UserError(
            f"there is no litert-converter for {system} on {machine}",
            where="--format tflite",
            fix="export under Linux on x86-64 or macOS on arm64; the file runs here",
        )
    import_extra("litert_converter", "tflite")


def _flatbuffer(program: str, name: str, outputs: Sequence[str]) -> bytes:
    """Returns a program in the text form of StableHLO as a flatbuffer."""
    from litert_converter.mlir import ir, passmanager
    from litert_converter.mlir._mlir_libs import converter_api_ext as converter

    context = ir.Context()
    converter.prepare_mlir_context(context)
    with context, ir.Location.unknown():
        module = ir.Module.parse(program)
        converter.set_signature(module.operation, SIGNATURE, [name], outputs)
        passes = passmanager.PassManager()
        converter.run_convert_to_tfl_passes(module, passes, converter.ConvertToTFLConfig())
        return bytes(converter.export_flatbuffer_to_bytes(module.operation))


def _reason(error: Exception) -> str:
    """Returns one line of a message that can quote the program."""
    if refused := _REFUSED.search(str(error)):
        return f"it needs {refused[1]}, which has no built-in operation"
    lines = [line for line in str(error).splitlines() if "error" in line.lower()]
    return (lines or str(error).splitlines() or [type(error).__name__])[0].strip()[:200]

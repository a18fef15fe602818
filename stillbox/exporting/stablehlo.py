"""StableHLO by `jax.export`: the program for CPUs, GPUs and TPUs, which JAX alone loads."""

import datetime
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from stillbox.exporting.backend import Run, refusal
from stillbox.exporting.manifest import EXPIRES, MAX_PROGRAM_BYTES, Manifest, Written
from stillbox.exporting.pixels import resize_images
from stillbox.exporting.program import ExportProgram, Outputs
from stillbox.untrusted import read_untrusted

FILE = "model.stablehlo"
# The promise of jax.export: https://docs.jax.dev/en/latest/export/export.html
_PROMISED_DAYS = 180


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes the program with its weights into one file."""
    del calibration  # nothing is quantised
    function = jax.jit(_image_function(program))
    platforms = program.settings.platforms
    exported = export.export(function, platforms=platforms)(_input_shape(program))
    (folder / FILE).write_bytes(exported.serialize())
    expires = datetime.date.today() + datetime.timedelta(days=_PROMISED_DAYS)
    version = exported.calling_convention_version
    return Written(
        files={FILE: "jax.export: program and weights; load with jax.export.deserialize"},
        needs={
            "jax": f">={jax.__version__}, calling convention {version}",
            EXPIRES: f"{expires}: later releases of jax may refuse it; export again",
        },
        written_with={"jax": jax.__version__},
    )


def _image_function(program: ExportProgram) -> Callable[[jax.Array], Outputs]:
    """Returns images `[B, h, w, C]` -> outputs by name, with the weights as constants."""
    weights = program.weights

    def function(images: jax.Array) -> Outputs:
        batch, *size = images.shape[:3]
        original = jnp.stack([jnp.asarray(side, jnp.int32) for side in size])
        resizer = program.description.resizer
        if program.settings.input_type == "raw_image_tensor":
            resized, true_size = images, original
        else:
            if resizer.method == "bilinear_antialias" and program.image_kind.bits == 8:
                images = jnp.rint(images).astype(jnp.uint8)  # as the images of training
            resized, true_size = resize_images(images, resizer)
        rows = jnp.broadcast_to(jnp.stack([true_size, original]), (batch, 2, 2))
        return program.outputs(weights, resized, rows[:, 0], rows[:, 1])

    return function


def _input_shape(program: ExportProgram) -> jax.ShapeDtypeStruct:
    """Returns shape and type of the images, with symbols for free lengths."""
    batch = str(program.settings.batch_size or "b")
    height, width = map(str, program.image_size or ("h", "w"))
    shape = export.symbolic_shape(
        f"{batch}, {height}, {width}, {program.image_kind.channels}",
        constraints=[f"{name} >= 1" for name in (batch, height, width) if name.isalpha()],
    )
    return jax.ShapeDtypeStruct(shape, jnp.dtype(program.settings.input_dtype))


def load(folder: Path, manifest: Manifest) -> Run:
    """Loads the file into this process.

    Raises:
        UserError: this jax refuses the file.
    """
    fix = f"it needs jax {manifest.needs.get('jax', '')}; or export again"
    errors = (ValueError, RuntimeError, KeyError, struct.error)
    content = read_untrusted(folder / FILE, most=MAX_PROGRAM_BYTES)
    with refusal(f"jax {jax.__version__}", folder / FILE, fix, *errors):
        exported = export.deserialize(bytearray(content))
    call = jax.jit(exported.call)

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        return {name: np.asarray(array) for name, array in call(images).items()}

    return run

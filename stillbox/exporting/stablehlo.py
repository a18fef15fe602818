"""StableHLO by `jax.export`: the program for CPUs, GPUs and TPUs, loaded by JAX alone."""

import datetime
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from stillbox.errors import UserError
from stillbox.exporting.formats import Run, Written
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.pixels import resize_images
from stillbox.exporting.program import ExportProgram, Outputs

FILE = "model.stablehlo"
# What jax.export promises: https://docs.jax.dev/en/latest/export/export.html
_PROMISED_DAYS = 180


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes the program with its weights into one file."""
    del calibration  # nothing is quantised
    exported = export.export(jax.jit(image_function(program)), platforms=_platforms(program))(
        input_shape(program)
    )
    (folder / FILE).write_bytes(exported.serialize())
    expires = datetime.date.today() + datetime.timedelta(days=_PROMISED_DAYS)
    version = exported.calling_convention_version
    return Written(
        files={FILE: "jax.export: program and weights; load with jax.export.deserialize"},
        needs={
            "jax": f">={jax.__version__}, calling convention {version}",
            "expires": f"{expires}: later releases of jax may refuse it; export again",
        },
        written_with={"jax": jax.__version__},
    )


def image_function(program: ExportProgram) -> Any:  # noqa: ANN401
    """Returns images `[B, h, w, 3]` -> outputs by name, with the weights as constants."""
    weights = program.weights

    def function(images: jax.Array) -> Outputs:
        batch, *size = images.shape[:3]
        original = jnp.stack([jnp.asarray(side, jnp.int32) for side in size])
        resizer = program.description.resizer
        if program.settings.input_type == "raw_image_tensor":
            resized, shown = images, original
        else:
            if getattr(resizer, "method", "") == "bilinear_antialias":
                images = jnp.rint(images).astype(jnp.uint8)  # as the images of training
            resized, shown = resize_images(images, resizer)
        rows = jnp.broadcast_to(jnp.stack([shown, original]), (batch, 2, 2))
        return program.outputs(weights, resized, rows[:, 0], rows[:, 1])

    return function


def input_shape(program: ExportProgram) -> jax.ShapeDtypeStruct:
    """Returns shape and type of the images, with symbols for what is free."""
    settings = program.settings
    raw = settings.input_type == "raw_image_tensor"
    size = program.input_size if raw else settings.image_size
    batch = str(settings.batch_size) if settings.batch_size else "b"
    height, width = ("h", "w") if size is None else map(str, size)
    shape = export.symbolic_shape(
        f"{batch}, {height}, {width}, 3",
        constraints=[f"{name} >= 1" for name in (batch, height, width) if name.isalpha()],
    )
    dtype = jnp.uint8 if settings.input_type == "image_tensor" else jnp.float32
    return jax.ShapeDtypeStruct(shape, dtype)


def load(folder: Path, manifest: Manifest, runtime: str = "") -> Run:
    """Loads the file into this process.

    Raises:
        UserError: another runtime is asked for, or this jax refuses the file.
    """
    if runtime not in ("", "jax"):
        raise UserError(f"{runtime} does not run StableHLO", fix="leave --runtime out")
    try:
        exported = export.deserialize(bytearray((folder / FILE).read_bytes()))
    except (ValueError, RuntimeError, KeyError, struct.error) as error:
        raise UserError(
            f"jax {jax.__version__} refuses the program: {error}",
            where=str(folder / FILE),
            fix=f"it needs jax {manifest.needs['jax']}; or export again",
        ) from error
    call = jax.jit(exported.call)

    def run(images: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
        return {name: np.asarray(array) for name, array in call(images).items()}

    return run


def _platforms(program: ExportProgram) -> tuple[str, ...]:
    known = {"cpu", "cuda", "rocm", "tpu"}
    for platform in program.settings.platforms:
        if platform not in known:
            raise UserError(
                f"there is no platform {platform!r}",
                where="--platforms",
                fix="valid here: " + ", ".join(sorted(known)),
            )
    return program.settings.platforms

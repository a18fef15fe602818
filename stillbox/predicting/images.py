"""Reads the pixels of an image: of a path, a file's bytes, an array, or a PIL image."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from stillbox.errors import UserError
from stillbox.inputs.decode import ImageError, decode_image
from stillbox.predicting.backend import Pixels
from stillbox.records.image_files import MAX_IMAGE_BYTES
from stillbox.untrusted import read_untrusted

_SHOWN = 5

ImageLike = str | PathLike[str] | bytes | np.ndarray | Image.Image
"""A path, an image file's bytes, a uint8 array `[H, W, 3]`, `[H, W, 4]`, `[H, W, 1]` or `[H, W]`,
or a PIL image."""


def is_one_image(images: Any) -> bool:  # noqa: ANN401
    """Returns whether this is one image; an array of four dimensions is a sequence."""
    if isinstance(images, np.ndarray):
        return images.ndim < 4
    return isinstance(images, str | PathLike | bytes | Image.Image)


def read_image(image: ImageLike) -> tuple[Pixels, str]:
    """Returns the pixels `[H, W, 3]`, RGB and upright, and the file's path or an empty text.

    Raises:
        UserError: there is no such file, it is no image, or an array has another shape or type.
    """
    if isinstance(image, Image.Image):
        return np.array(ImageOps.exif_transpose(image).convert("RGB")), ""
    if isinstance(image, np.ndarray):
        return _from_array(image), ""
    if isinstance(image, bytes):
        return _decoded(image, "image"), ""
    if not isinstance(image, str | PathLike):
        raise UserError(
            f"a {type(image).__name__} is no image",
            fix="give a path, bytes, a uint8 array [H, W, 3] or a PIL image",
        )
    path = Path(image)
    refuse_missing([path])
    return _decoded(_content(path), str(path)), str(path)


def _content(path: Path) -> bytes:
    return read_untrusted(path, most=MAX_IMAGE_BYTES, where=str(path), fix="give an image file")


def refuse_missing(paths: Sequence[Path]) -> None:
    """Refuses a list of image files if some do not exist.

    Raises:
        UserError: names the first of them.
    """
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise UserError(
            "there is no such image file",
            where=", ".join(missing[:_SHOWN]) + more,
            fix="check the spelling; files, folders and patterns as FOLDER/*.jpg are taken",
        )


def _decoded(content: bytes, where: str) -> Pixels:
    try:
        return decode_image(content, apply_exif=True)
    except ImageError as error:
        raise UserError(
            f"cannot be decoded: {error}", where=where, fix="leave it out, or save it again"
        ) from error


def _from_array(array: np.ndarray) -> Pixels:
    if array.dtype != np.uint8:
        raise UserError(
            f"an image of type {array.dtype} is not supported",
            fix="give uint8 in 0..255; for floats in 0..1, (image * 255).astype('uint8')",
        )
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise UserError(
            f"an array of shape {list(array.shape)} is no image",
            fix="give [H, W, 3], RGB; [H, W] and [H, W, 1] are grayscale, [H, W, 4] is RGBA",
        )
    if array.shape[2] == 1:
        return np.repeat(array, 3, axis=2)
    return np.ascontiguousarray(array[..., :3])

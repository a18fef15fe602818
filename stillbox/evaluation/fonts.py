"""Fonts for pictures: Pillow's own, or one of the machine's that has the glyphs of a text."""

import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import cast

import matplotlib
from PIL import ImageFont

# Covers Greek, Cyrillic, Hebrew, Arabic and more; matplotlib brings it along.
_BROUGHT = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"


def load_font(size: int, text: str = "") -> ImageFont.FreeTypeFont:
    """Returns a font for a text; Pillow's own, which does not depend on the machine, if it can."""
    return _opened(font_file(text) or "", size)


@lru_cache(maxsize=64)
def _opened(path: str, size: int) -> ImageFont.FreeTypeFont:
    # Opening one takes longer than drawing a label.
    if path:
        return ImageFont.truetype(path, size)
    return cast(ImageFont.FreeTypeFont, ImageFont.load_default(size))


def has_glyphs(text: str) -> bool:
    """Returns whether a font of this machine has all glyphs of a text."""
    return font_file(text) is not None


@lru_cache(maxsize=4096)
def text_width(text: str, size: int) -> float:
    """Returns the width of a text in pixels: measured if it is ASCII, otherwise estimated."""
    if text.isascii():
        return load_font(size).getlength(text)
    return size * sum(map(_em, text))


def clipped(text: str, size: int, width: float) -> str:
    """Returns the text, cut to `width` pixels with dots at its end."""
    if text_width(text, size) <= width:
        return text
    length = len(text)
    while length > 1 and text_width(text[:length] + "...", size) > width:
        length -= 1
    return text[:length] + "..."


def _em(character: str) -> float:
    """Returns the width of a character as a part of the size of the letters."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0.0
    return 1.05 if unicodedata.east_asian_width(character) in "WF" else 0.62


@lru_cache(maxsize=4096)
def font_file(text: str) -> str | None:
    """Returns the file of a font with all glyphs; empty: Pillow's own; None: there is none."""
    if text.isascii():
        return ""
    wanted = {ord(one) for one in text if not one.isspace() and unicodedata.category(one) != "Cf"}
    paths = (str(_BROUGHT), *_system_fonts())
    return next((path for path in paths if wanted <= _characters(path)), None)


@lru_cache(maxsize=1)
def _system_fonts() -> tuple[str, ...]:
    # matplotlib keeps this list in a file: the search takes seconds on its first use.
    from matplotlib.font_manager import fontManager

    # Of matplotlib's own, the others show boxes or symbols in place of letters.
    own = matplotlib.get_data_path()
    upright = [
        font
        for font in fontManager.ttflist
        if font.style == "normal"
        and not font.fname.startswith(own)
        # These have a box for every character.
        and "last resort" not in font.name.lower()
    ]
    upright.sort(key=lambda font: (abs(int(font.weight) - 400), font.name, font.fname))
    return tuple(dict.fromkeys(font.fname for font in upright))


@lru_cache(maxsize=1024)
def _characters(path: str) -> frozenset[int]:
    """Returns the code points of a font; none if it cannot be used, as those of bitmaps."""
    from matplotlib.ft2font import FT2Font

    try:
        ImageFont.truetype(path, 20)
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError, ValueError):
        return frozenset()

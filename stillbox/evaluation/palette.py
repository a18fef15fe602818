"""Colours of classes and curves."""

Color = tuple[int, int, int]

PALETTE: tuple[Color, ...] = (
    (230, 57, 70),
    (0, 144, 217),
    (255, 183, 3),
    (42, 157, 93),
    (155, 93, 229),
    (251, 111, 36),
    (0, 187, 187),
    (241, 91, 181),
    (124, 181, 24),
    (63, 81, 181),
    (188, 108, 37),
    (149, 213, 178),
    (180, 20, 90),
    (144, 190, 255),
    (106, 76, 50),
    (255, 138, 128),
)
"""RGB; neighbours differ much in hue. Class ids wrap around."""


def class_color(class_id: int) -> Color:
    """Returns the RGB colour of a class id."""
    return PALETTE[(class_id - 1) % len(PALETTE)]


def text_color(background: Color) -> Color:
    """Returns black or white, whichever is easier to read on `background`."""
    # Relative luminance without its gamma: enough to choose between two.
    red, green, blue = background
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else (255, 255, 255)


def css(color: Color) -> str:
    """Returns the colour as HTML and matplotlib write it, `#rrggbb`."""
    return "#{:02x}{:02x}{:02x}".format(*color)

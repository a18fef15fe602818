"""Recipes: complete experiments as YAML, found by name.

The comment at the top of each recipe describes it: `# Name:  text`, over several lines.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from stillbox.errors import UserError, nearest

_FOLDER = Path(__file__).parent


def recipe_names() -> tuple[str, ...]:
    """Returns the names of all recipes, in alphabetical order."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def recipe_path(name: str, *, where: str | None = None) -> Path:
    """Returns the file of a recipe.

    Raises:
        UserError: there is no recipe of that name; says which is nearest.
    """
    if name not in recipe_names():
        raise UserError(
            f"there is no recipe {name!r}", where=where, fix=nearest(name, recipe_names())
        )
    return _FOLDER / f"{name}.yaml"


_ENTRY = re.compile(r"# (?P<name>[A-Z][a-z]+): +(?P<text>\S.*)")
_GOES_ON = re.compile(r"# {9,}(?P<text>\S.*)")
_SIZE = re.compile(
    r"(?P<parameters>[\d.]+) M parameters; about (?P<memory>[\d.]+) GiB of device memory for its "
    r"batch of (?P<batch>\d+) \(estimate\)\."
)
_AP = re.compile(r"\bAP (?P<low>[\d.]*\d)(?: to (?P<high>[\d.]*\d))?")
_UNKNOWN = "not stated"
COCO = "COCO"


@dataclass(frozen=True, kw_only=True)
class RecipeHeader:
    """Facts about a recipe, measured, published or estimated as its file says."""

    name: str
    about: str
    """One sentence."""
    expected: str
    """Scores with their origin."""
    ap: str
    """Of the scores, the first AP in percent: `20.5` or `32.5 to 35`."""
    data: str
    """What it is the AP on, as `COCO`; APs on other data do not compare with it."""
    parameters: float
    """In millions."""
    memory: float
    """Estimated GiB of device memory for the recipe's batch, over all devices."""
    batch: int
    hardware: str
    """Of the published or measured run; empty if it is not stated."""
    speed: str
    """Measured here; empty if it was not."""


def read_header(name: str) -> RecipeHeader:
    """Reads the header of a recipe.

    Raises:
        ValueError: it lacks an entry.
    """
    lines = recipe_path(name).read_text(encoding="utf-8").splitlines()
    entries, last = dict[str, str](), ""
    for line in lines:
        if not line.startswith("#"):
            break
        if entry := _ENTRY.fullmatch(line):
            last = entry["name"]
            entries[last] = entry["text"]
        elif more := _GOES_ON.fullmatch(line):
            entries[last] = f"{entries.get(last, '')} {more['text']}"
    expected, size = entries.get("Expected", ""), _SIZE.fullmatch(entries.get("Size", ""))
    ap = _AP.search(expected)
    if size is None or ap is None or "Hardware" not in entries:
        raise ValueError(f"the header of the recipe {name} has no Expected, Size or Hardware")
    hardware = entries["Hardware"].rstrip(".")
    return RecipeHeader(
        name=name,
        about=lines[0].removeprefix("# "),
        expected=expected,
        ap=" to ".join(_percent(number) for number in ap.groups() if number),
        data=entries.get("Data", COCO).rstrip("."),
        parameters=float(size["parameters"]),
        memory=float(size["memory"]),
        batch=int(size["batch"]),
        hardware="" if hardware == _UNKNOWN else hardware,
        speed=entries.get("Speed", "").rstrip("."),
    )


def _percent(number: str) -> str:
    # Scores of runs here are fractions, published ones are in percent.
    return f"{100 * float(number):.1f}" if number.startswith(".") else number


def read_headers() -> list[RecipeHeader]:
    """Returns the headers of all recipes, by name."""
    return [read_header(name) for name in recipe_names()]

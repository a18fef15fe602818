"""Recipes: complete experiments as YAML, found by name."""

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

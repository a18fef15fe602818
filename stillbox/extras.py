"""Imports packages of extras."""

import importlib
from typing import Any

from stillbox.errors import UserError


def import_extra(module: str, extra: str) -> Any:  # noqa: ANN401
    """Returns a module of an extra.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.replace("_", "-")
        raise UserError(
            f"{package} is not installed", fix=f"pip install 'stillbox[{extra}]'"
        ) from error

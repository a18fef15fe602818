"""Imports packages of extras."""

import importlib

from stillbox.errors import UserError


def need(module: str, extra: str) -> None:
    """Imports a module of an extra.

    Raises:
        UserError: it is not installed.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        package = module.replace("_", "-")
        raise UserError(
            f"{package} is not installed", fix=f"pip install 'stillbox[{extra}]'"
        ) from error

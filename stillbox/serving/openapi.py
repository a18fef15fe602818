"""The server's OpenAPI document: `openapi.json` with the model's name, its version and the key.

The file has every route, its input and every status of its responses.
"""

import json
from pathlib import Path
from typing import Any

from stillbox import __version__
from stillbox.serving.middleware import PUBLIC_PATHS
from stillbox.serving.settings import ServeSettings

Document = dict[str, Any]

FILE = Path(__file__).with_name("openapi.json")


def describe(settings: ServeSettings) -> Document:
    """Returns the document of a server."""
    document: Document = json.loads(FILE.read_text(encoding="utf-8"))
    document["info"] = {"title": f"stillbox serve {settings.name}", "version": __version__}
    parameters = document["components"]["parameters"]
    parameters["name"]["example"] = settings.name
    parameters["version"]["example"] = str(settings.version)
    document["paths"] |= _with_version(document["paths"])
    if settings.api_key:
        _require_key(document["paths"])
    else:
        del document["components"]["securitySchemes"]
    return document


def _with_version(paths: Document) -> Document:
    """Returns the paths that name the model, each with its version behind the name."""
    version = {"$ref": "#/components/parameters/version"}
    return {
        path.replace("{name}", "{name}/versions/{version}"): {
            method: operation | {"parameters": [*operation["parameters"], version]}
            for method, operation in methods.items()
        }
        for path, methods in paths.items()
        if "{name}" in path
    }


def _require_key(paths: Document) -> None:
    """Adds the key, and status 401, to every route that needs it."""
    missing = {"$ref": "#/components/responses/unauthorized"}
    for path, methods in paths.items():
        for operation in methods.values() if path not in PUBLIC_PATHS else ():
            operation["security"] = [{"bearer": []}, {"header": []}]
            operation["responses"] = operation["responses"] | {"401": missing}

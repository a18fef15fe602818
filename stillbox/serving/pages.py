"""The page at `/` and its files; it uses only `POST /detect`."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox.printing import html_text
from stillbox.serving.settings import ServeSettings

_FOLDER = Path(__file__).parent / "page"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


def page_routes(settings: ServeSettings) -> list[Route]:
    """Returns a route for each file; `index.html` gets values of the settings."""
    index = (_FOLDER / "index.html").read_text()
    values = {name: getattr(settings, name) for name in ("name", "min_score", "max_body", "iou")}
    values["classes_per_object"] = settings.classes_per_object or "one"
    for name, value in values.items():
        index = index.replace(f"{{{name.upper()}}}", html_text(str(value)))
    files = sorted(_FOLDER.iterdir())
    return [_route("/", index.encode(), ".html")] + [
        _route(f"/page/{file.name}", file.read_bytes(), file.suffix)
        for file in files
        if file.suffix in _MEDIA_TYPES and file.name != "index.html"
    ]


def _route(path: str, content: bytes, suffix: str) -> Route:
    async def send(request: Request) -> Response:
        headers = {"Cache-Control": "no-cache"}
        return Response(content, media_type=_MEDIA_TYPES[suffix], headers=headers)

    return Route(path, send, methods=["GET"])

"""The page at `/`, and the files that it is made of."""

import html
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox.serving.settings import ServeSettings

_FOLDER = Path(__file__).parent / "page"
_KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


class Page:
    """The page's routes. It uses nothing but `POST /detect`.

    Args:
        settings: what it tells people.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self._files = {
            f"/page/{path.name}": (path.read_bytes(), _KINDS[path.suffix])
            for path in sorted(_FOLDER.iterdir())
            if path.suffix in _KINDS
        }
        told = {
            "NAME": settings.name,
            "MIN_SCORE": str(settings.min_score),
            "MAX_BODY": str(settings.max_body),
        }
        content, kind = self._files.pop("/page/index.html")
        text = content.decode()
        for key, value in told.items():
            text = text.replace(f"{{{key}}}", html.escape(value))
        self._files["/"] = (text.encode(), kind)

    @property
    def paths(self) -> frozenset[str]:
        """Where its files are."""
        return frozenset(self._files)

    def routes(self) -> list[Route]:
        """Returns a route for each file."""
        return [Route(path, self.file, methods=["GET"]) for path in self._files]

    async def file(self, request: Request) -> Response:
        """Answers with a file."""
        content, kind = self._files[request.url.path]
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

"""Who may ask: an API key, and headers that keep a browser from doing what the page does not."""

import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillbox.serving.answers import Json

OPEN = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/openapi.json"})
"""Paths that need no key, beside the page's."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer."""


class RequireKey:
    """Middleware that answers 401 to whoever does not show the key.

    Args:
        app: what it stands before.
        key: what to show, as `Authorization: Bearer KEY` or `X-API-Key: KEY`.
        open_paths: paths that need none.
    """

    def __init__(self, app: ASGIApp, key: str, open_paths: frozenset[str]) -> None:
        self._app, self._key, self._open = app, key.encode("ascii"), open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] != "http" or scope["path"] in self._open or self._fits(scope):
            await self._app(scope, receive, send)
            return
        refused = Json(
            {"error": "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY"},
            401,
            {"WWW-Authenticate": "Bearer"},
        )
        await refused(scope, receive, send)

    def _fits(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        shown = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # latin-1 is what headers are read as.
        return hmac.compare_digest(shown.encode("latin-1"), self._key)


class AddHeaders:
    """Middleware that adds `HEADERS` to every answer.

    Args:
        app: what it stands before.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)

"""The API key, and response headers that restrict what a browser does with the page."""

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillbox.serving.responses import AsciiJson

PUBLIC_PATHS = frozenset(
    {"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/openapi.json"}
)
"""Paths that need no key, beside the page's."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequireKey:
    """Middleware that responds 401 to requests without the key.

    Args:
        app: the next application.
        key: expected as `Authorization: Bearer KEY` or `X-API-Key: KEY`.
        public: paths that need none.
    """

    def __init__(self, app: ASGIApp, key: str, public: Collection[str]) -> None:
        self._app, self._key, self._public = app, key.encode("ascii"), public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards a request, or refuses it."""
        if scope["type"] != "http" or scope["path"] in self._public or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        refused = AsciiJson(
            {"error": "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY"},
            401,
            {"WWW-Authenticate": "Bearer"},
        )
        await refused(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Headers are decoded as latin-1.
        return hmac.compare_digest(given.encode("latin-1"), self._key)


class AddHeaders:
    """Middleware that adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards a request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)

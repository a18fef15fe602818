"""JSON responses and errors of one shape: `{"error": text}`."""

import json
import reprlib
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stillbox.errors import UserError


class AsciiJson(Response):
    """A JSON response in ASCII: text that it repeats may hold surrogates, which UTF-8 cannot."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:  # noqa: ANN401
        """Returns the bytes of the body."""
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def http_error(status: int, text: str, headers: Mapping[str, str] | None = None) -> HTTPException:
    """Returns an exception that becomes an error response."""
    return HTTPException(status, text, dict(headers) if headers else None)


def shown(value: Any) -> str:  # noqa: ANN401
    """Returns a value of a request for a message: a request can have megabytes in one name."""
    return reprlib.repr(value)


def bad_request(text: str) -> HTTPException:
    """Returns the exception for an invalid request."""
    return http_error(400, text)


def handle_http_error(request: Request, error: Exception) -> Response:
    """Responds as TensorFlow Serving and the Open Inference Protocol both do."""
    assert isinstance(error, HTTPException)
    return AsciiJson({"error": error.detail}, error.status_code, error.headers)


def handle_user_error(request: Request, error: Exception) -> Response:
    """Responds to input that the model does not take."""
    assert isinstance(error, UserError)
    return AsciiJson({"error": error.what + (f"; {error.fix}" if error.fix else "")}, 400)


def handle_failure(request: Request, error: Exception) -> Response:
    """Responds to a fault of the server; its details are in the log only."""
    return AsciiJson({"error": "the server failed"}, 500)

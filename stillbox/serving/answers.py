"""What a server answers with: JSON that can always be written, and errors of one shape."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stillbox.errors import UserError


class Json(Response):
    """A JSON answer.

    In ASCII: what a client sent and an answer repeats may hold halves of characters, which UTF-8
    cannot write.
    """

    media_type = "application/json"

    def render(self, content: Any) -> bytes:  # noqa: ANN401
        """Returns the bytes of the body."""
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> HTTPException:
    """Returns an exception that becomes an error answer."""
    return HTTPException(status, text, dict(headers) if headers else None)


def bad_request(text: str) -> HTTPException:
    """Returns the exception for a request that makes no sense."""
    return refusal(400, text)


def answer_refusal(request: Request, error: Exception) -> Response:
    """Answers as TensorFlow Serving and the Open Inference Protocol both do: `{"error": text}`."""
    assert isinstance(error, HTTPException)
    return Json({"error": error.detail}, error.status_code, error.headers)


def answer_user_error(request: Request, error: Exception) -> Response:
    """Answers a request that gave the model something it cannot take."""
    assert isinstance(error, UserError)
    return Json({"error": error.what + (f"; {error.fix}" if error.fix else "")}, 400)


def answer_failure(request: Request, error: Exception) -> Response:
    """Answers for a fault of the server; what it is stands in its log and not in the answer."""
    return Json({"error": "the server failed"}, 500)

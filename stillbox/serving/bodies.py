"""Bodies of requests and responses: limits, files in forms, JSON, and errors `{"error": text}`.

A form is `multipart/form-data` (RFC 7578).
"""

import asyncio
import json
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from python_multipart.multipart import parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillbox import numerals
from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.references import worded


class AsciiJson(Response):
    """A JSON response in ASCII: text of a request may contain surrogates, which UTF-8 cannot
    encode."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Returns the bytes of the body."""
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def http_error(status: int, text: str, headers: Mapping[str, str] | None = None) -> HTTPException:
    """Returns an exception that becomes an error response."""
    return HTTPException(status, text, dict(headers) if headers else None)


def shown(value: object) -> str:
    """Returns a value of a request, shortened for a message."""
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
    return AsciiJson({"error": worded("; ".join(filter(None, (error.what, error.fix))))}, 400)


def handle_failure(request: Request, error: Exception) -> Response:
    """Responds to an internal error; only the log has its details."""
    return AsciiJson({"error": "the server failed"}, 500)


class Admission:
    """Counts the images in flight, from the last byte of a body to its response.

    Args:
        limit: the most at a time; more than that only if there are no others.
        seconds_for: estimates the time for a number of images.
        places: their name in errors.
    """

    def __init__(
        self, limit: int, seconds_for: Callable[[int], float], places: str = "places"
    ) -> None:
        self._limit, self._seconds_for, self._places = limit, seconds_for, places
        self.in_flight = 0

    def check(self, images: int) -> None:
        """Refuses images that would exceed the limit.

        Raises:
            HTTPException: 503 with Retry-After.
        """
        if self.in_flight and self.in_flight + images > self._limit:
            wait = max(math.ceil(self._seconds_for(self.in_flight)), 1)
            problem = f"all {self._limit} {self._places} are taken; try again"
            raise http_error(503, problem, {"Retry-After": str(wait)})

    @contextmanager
    def admit(self, images: int) -> Iterator[None]:
        """Counts images while the block runs, after `check`."""
        self.check(images)
        self.in_flight += images
        try:
            yield
        finally:
            self.in_flight -= images


class Arrivals:
    """Receives bodies, which share a budget of memory while they arrive.

    Slow clients do not block others: if the bodies exceed the budget of `most` bytes, the oldest is
    dropped. No body is larger than the budget.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0
        """Bytes of all bodies that are arriving."""
        # Oldest first, each with its bytes so far.
        self._sizes: dict[asyncio.Timeout, int] = {}

    async def read(self, request: Request, seconds: float) -> bytes:
        """Returns the body of a request."""
        body = bytearray()  # many small parts take much more memory
        deadline = asyncio.timeout(seconds)
        self._sizes[deadline] = 0
        try:
            async with deadline:
                async for part in request.stream():
                    body += part
                    self._count(deadline, len(part))
        except TimeoutError:
            if deadline in self._sizes:
                raise http_error(408, f"the body did not arrive in {seconds:g} s") from None
            problem = "later bodies needed the memory of this one; try again, and send it faster"
            raise http_error(503, problem, {"Retry-After": "1"}) from None
        except ClientDisconnect:
            raise bad_request("the body did not arrive") from None
        finally:
            self._drop(deadline)
        return bytes(body)

    def _count(self, deadline: asyncio.Timeout, size: int) -> None:
        if deadline not in self._sizes:
            return
        self._sizes[deadline] += size
        self.held += size
        while self.held > self._most:
            first = next(iter(self._sizes))
            self._drop(first)
            if not first.expired():
                first.reschedule(asyncio.get_running_loop().time())

    def _drop(self, deadline: asyncio.Timeout) -> None:
        self.held -= self._sizes.pop(deadline, 0)


class LimitBody:
    """Middleware that ends a body after `most` bytes, whatever its header."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards a request and counts the bytes of its body."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most:
                raise too_large(self._most)
            return message

        await self._app(scope, counted, send)


def check_count(images: int, most: int) -> None:
    """Checks the number of a request's images.

    Raises:
        HTTPException: 400, there are too many, or none.
    """
    if not 0 < images <= most:
        raise bad_request(f"a request has 1 to {count_text(most, 'image')}; this one has {images}")


def content_length(request: Request) -> int:
    """Returns the length of a body by its header; 0 if that has none, or no such number."""
    return numerals.count(request.headers.get("content-length", "")) or 0


def too_large(most: int) -> Exception:
    """Returns the exception for a body beyond the limit."""
    return http_error(413, f"the body of a request has at most {most} bytes")


_MOST_PARTS, _MOST_HEADER = 9, 4096
_LONGEST_BOUNDARY = 70


def read_file(content_type: str, body: bytes) -> tuple[str, bytes]:
    """Returns name and content of the one file of a form, which may have other fields.

    `content_type` is the header with the boundary of the parts.

    Raises:
        HTTPException: 400, the form is invalid, or has no file or several.
    """
    boundary = parse_options_header(content_type[:_MOST_HEADER])[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= _LONGEST_BOUNDARY:
        raise bad_request("the form has no boundary, or a long one")
    between = b"\r\n--" + boundary
    # The first boundary may be at the beginning; what follows the last is no part.
    parts = (b"\r\n" + body).split(between, _MOST_PARTS + 1)
    if len(parts) > _MOST_PARTS + 1 or not parts[-1].startswith(b"--"):
        raise bad_request(f"a form has 1 to {_MOST_PARTS - 1} parts and ends with its boundary")
    files = [file for part in parts[1:-1] if (file := _read_part(part)) is not None]
    if len(files) != 1:
        raise bad_request("a form has one file, as from curl --form image=@FILE")
    return files[0]


def _read_part(part: bytes) -> tuple[str, bytes] | None:
    """Returns name and content if a part is a file."""
    header, end, _ = part[:_MOST_HEADER].partition(b"\r\n\r\n")
    if not end:
        raise bad_request(f"a part of the form has no header of up to {_MOST_HEADER} bytes")
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            options = parse_options_header(value.strip())[1]
            if b"filename" not in options:
                return None
            start = len(header) + len(end)
            return options[b"filename"].decode("utf-8", "replace"), part[start:]
    return None

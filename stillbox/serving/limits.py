"""Limits of a request's body and of the images in flight."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillbox.printing import count_text
from stillbox.serving.responses import bad_request, http_error


class Admission:
    """Counts the images in flight, from the first byte of a body to its response.

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

    @contextmanager
    def admit(self, images: int) -> Iterator[None]:
        """Counts images in, and out at the end.

        Raises:
            HTTPException: 503 with Retry-After if they would exceed the limit.
        """
        if self.in_flight and self.in_flight + images > self._limit:
            wait = max(math.ceil(self._seconds_for(self.in_flight)), 1)
            what = f"all {self._limit} {self._places} are taken; try again"
            raise http_error(503, what, {"Retry-After": str(wait)})
        self.in_flight += images
        try:
            yield
        finally:
            self.in_flight -= images


class LimitBody:
    """Middleware that ends a body after `most` bytes, whatever its header says."""

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


def too_large(most: int) -> Exception:
    """Returns the exception for a body beyond the limit."""
    return http_error(413, f"the body of a request has at most {most} bytes")

"""What a request may cost: bytes, images, time."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillbox.serving.answers import refusal


class Places:
    """The images that may be inside at a time, from the first byte of a body to its answer.

    Args:
        count: how many there are.
        seconds_for: about how long so many images take.
    """

    def __init__(self, count: int, seconds_for: Callable[[int], float]) -> None:
        self._count, self._seconds_for = count, seconds_for
        self.taken = 0

    @contextmanager
    def take(self, images: int) -> Iterator[None]:
        """Holds places for so many images.

        Raises:
            HTTPException: 503 with Retry-After where there are not as many.
        """
        if self.taken + images > self._count:
            wait = max(math.ceil(self._seconds_for(self.taken)), 1)
            raise refusal(
                503, f"all {self._count} places are taken; try again", {"Retry-After": str(wait)}
            )
        self.taken += images
        try:
            yield
        finally:
            self.taken -= images


class LimitBody:
    """Middleware that ends a body at its limit, whatever its header says.

    Args:
        app: what it stands before.
        most: bytes.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on and counts the bytes of its body."""
        came = 0

        async def counted() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._most:
                raise too_large(self._most)
            return message

        await self._app(scope, counted, send)


def too_large(most: int) -> Exception:
    """Returns the exception for a body beyond the limit."""
    return refusal(413, f"the body of a request has at most {most} bytes")

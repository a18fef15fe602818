"""What every protocol uses: from the images of a request to what was found in them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
from starlette.requests import ClientDisconnect, Request

from stillbox.devices.processors import own_processors
from stillbox.predicting.backend import Found, Pixels, Prepared
from stillbox.predicting.predictor import Predictor
from stillbox.serving.answers import bad_request, refusal
from stillbox.serving.batching import Batcher, Closed
from stillbox.serving.images import Given, read_given
from stillbox.serving.limits import Places, too_large
from stillbox.serving.metrics import Metrics
from stillbox.serving.settings import ServeSettings, usable_sizes

P = ParamSpec("P")
T = TypeVar("T")


class Answered(NamedTuple):
    """One image, and what was found in it."""

    found: Found
    """Boxes in pixels of the image."""
    size: tuple[int, int]
    """Height and width of the image, in pixels."""


class Engine:
    """A model that runs for many requests at a time.

    Images are decoded and resized in a pool of threads, one for each processor; another one runs
    the model.

    Args:
        predictor: knows the model.
        settings: batches and limits.

    Raises:
        UserError: the settings make no sense, or the model does not take such batches.
    """

    def __init__(self, predictor: Predictor, settings: ServeSettings) -> None:
        self.predictor, self.settings = predictor, settings.checked()
        sizes = usable_sizes(settings.batch_sizes, predictor.backend.batch_sizes)
        self.metrics = Metrics(sizes)
        self.batcher = Batcher(
            predictor.backend,
            sizes,
            settings.max_delay_ms / 1000,
            observe=self.metrics.observe_run,
            more=lambda: self.places.taken > self.batcher.waiting,
        )
        self.places = Places(settings.queue, self.batcher.seconds_for)
        self.metrics.waiting.set_function(lambda: self.batcher.waiting)
        self.metrics.inside.set_function(lambda: self.places.taken)
        self._pool = ThreadPoolExecutor(own_processors(), "images")
        self.ready = False

    def start(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Compiles every batch size, unless that was done before."""
        if not self.ready:
            self.batcher.start(say)
            self.ready = True

    def stop(self) -> None:
        """Finishes what was taken, and takes nothing more."""
        self.ready = False
        self.batcher.close()
        self._pool.shutdown(cancel_futures=True)

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """Yields the body of a request that holds an image, and a place for it meanwhile.

        Raises:
            HTTPException: 503 where there is no place, 413 and 408 where the body is too large or
                too slow, 504 where the answer is.
        """
        seconds = self.settings.timeout
        if _said_length(request) > self.settings.max_body:
            raise too_large(self.settings.max_body)
        with self.places.take(1):
            try:
                async with asyncio.timeout(seconds):
                    body = await request.body()
            except TimeoutError:
                raise refusal(408, f"the body did not arrive in {seconds:g} s") from None
            except ClientDisconnect:
                raise bad_request("the body did not arrive") from None
            try:
                async with asyncio.timeout(seconds):
                    yield body
            except TimeoutError:
                raise refusal(504, f"there was no answer in {seconds:g} s") from None

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function in the pool of threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    async def detect(self, images: Sequence[Given]) -> list[Answered]:
        """Detects in the images of a request, as they are stored: EXIF tags turn nothing.

        Raises:
            HTTPException: 400 and 413 for images that cannot be taken, 503 where there is no place
                for as many.
        """
        most = self.settings.max_images
        if not 0 < len(images) <= most:
            raise bad_request(f"a request has 1 to {most} images; this one has {len(images)}")
        with self.places.take(len(images) - 1):
            return await asyncio.gather(*(self._detect_one(image) for image in images))

    async def read(self, image: Given) -> Pixels:
        """Decodes an image for people: upright."""
        return await self.work(read_given, image, self.settings.max_pixels, upright=True)

    async def detect_pixels(self, pixels: Pixels) -> Found:
        """Detects in one decoded image."""
        return await self._run(await self.work(self.predictor.backend.prepare, pixels))

    async def _detect_one(self, image: Given) -> Answered:
        prepared = await self.work(self._prepare, image)
        return Answered(await self._run(prepared), prepared.size)

    def _prepare(self, image: Given) -> Prepared:
        # Decoded pixels live no longer than this: as many as there are threads at a time.
        pixels = read_given(image, self.settings.max_pixels, upright=False)
        return self.predictor.backend.prepare(np.ascontiguousarray(pixels))

    async def _run(self, prepared: Prepared) -> Found:
        try:
            return await asyncio.wrap_future(self.batcher.submit(prepared))
        except Closed:
            raise refusal(503, "the server is stopping", {"Retry-After": "1"}) from None


def _said_length(request: Request) -> int:
    said = request.headers.get("content-length", "")
    return int(said) if said.isdecimal() and len(said) < 20 else 0

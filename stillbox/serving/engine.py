"""Runs the model for all protocols, from the images of a request to their detections."""

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
from stillbox.serving.batching import Batcher, ClosedError
from stillbox.serving.images import ImageInput, decode_input
from stillbox.serving.limits import Admission, too_large
from stillbox.serving.metrics import Metrics
from stillbox.serving.responses import AsciiJson, bad_request, http_error
from stillbox.serving.settings import ServeSettings, choose_batch_sizes

P = ParamSpec("P")
T = TypeVar("T")


class ImageResult(NamedTuple):
    """The detections of one image."""

    found: Found
    """Boxes in pixels of the image."""
    size: tuple[int, int]
    """Height and width of the image, in pixels."""


class Engine:
    """A model that runs for many requests at a time.

    A pool of threads, one for each processor, decodes and resizes images; another thread runs the
    model.

    Raises:
        UserError: the settings are invalid, or the model does not take such batches.
    """

    def __init__(self, predictor: Predictor, settings: ServeSettings) -> None:
        self.predictor, self.settings = predictor, settings.checked()
        sizes = choose_batch_sizes(settings.batch_sizes, predictor.backend.batch_sizes)
        self.metrics = Metrics(sizes)
        self.batcher = Batcher(
            predictor.backend,
            sizes,
            settings.max_delay_ms / 1000,
            observe=self.metrics.observe_run,
            expects_more=lambda: self.admission.in_flight > self.batcher.waiting,
        )
        self.admission = Admission(settings.queue, self.batcher.seconds_for)
        self.metrics.waiting.set_function(lambda: self.batcher.waiting)
        self.metrics.in_flight.set_function(lambda: self.admission.in_flight)
        self._pool = ThreadPoolExecutor(own_processors(), "images")
        self.ready = False

    def start(self, report: Callable[[str], None] = lambda text: None) -> None:
        """Compiles every batch size, unless that was done before."""
        if not self.ready:
            self.batcher.start(report)
            self.ready = True

    def stop(self) -> None:
        """Finishes the images that were submitted, and takes no more."""
        self.ready = False
        self.batcher.close()
        self._pool.shutdown(cancel_futures=True)

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """Yields the body of a request with an image, which counts as in flight meanwhile.

        Raises:
            HTTPException: 503 if too many images are in flight, 413 and 408 if the body is too
                large or too slow, 504 if the response is too slow.
        """
        seconds = self.settings.timeout
        if _content_length(request) > self.settings.max_body:
            raise too_large(self.settings.max_body)
        with self.admission.admit(1):
            try:
                async with asyncio.timeout(seconds):
                    body = await request.body()
            except TimeoutError:
                raise http_error(408, f"the body did not arrive in {seconds:g} s") from None
            except ClientDisconnect:
                raise bad_request("the body did not arrive") from None
            try:
                async with asyncio.timeout(seconds):
                    yield body
            except TimeoutError:
                raise http_error(504, f"there was no answer in {seconds:g} s") from None

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function in the pool of threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    async def detect(self, images: Sequence[ImageInput]) -> list[ImageResult]:
        """Detects in the images of a request as stored, without their EXIF orientation.

        Raises:
            HTTPException: 400 and 413 for invalid images, 503 if too many are in flight.
        """
        most = self.settings.max_images
        if not 0 < len(images) <= most:
            raise bad_request(f"a request has 1 to {most} images; this one has {len(images)}")
        # `body` has admitted one.
        with self.admission.admit(len(images) - 1):
            return await asyncio.gather(*(self._detect_one(image) for image in images))

    async def decode(self, image: ImageInput) -> Pixels:
        """Decodes an image with its EXIF orientation."""
        return await self.work(decode_input, image, self.settings.max_pixels, upright=True)

    async def detect_pixels(self, pixels: Pixels) -> Found:
        """Detects in one decoded image."""
        return await self._run(await self.work(self.predictor.backend.prepare, pixels))

    async def _detect_one(self, image: ImageInput) -> ImageResult:
        prepared = await self.work(self._prepare, image)
        return ImageResult(await self._run(prepared), prepared.size)

    def _prepare(self, image: ImageInput) -> Prepared:
        # One function decodes and resizes: no more decoded images exist than threads.
        pixels = decode_input(image, self.settings.max_pixels, upright=False)
        return self.predictor.backend.prepare(np.ascontiguousarray(pixels))

    async def _run(self, prepared: Prepared) -> Found:
        try:
            found = await asyncio.wrap_future(self.batcher.submit(prepared))
        except ClosedError:
            raise http_error(503, "the server is stopping", {"Retry-After": "1"}) from None
        if not found.finite:
            raise http_error(500, "the model's predictions for the image are not finite")
        return found


def engine_of(request: Request) -> Engine:
    """Returns the engine of the application that handles a request."""
    engine: Engine = request.app.state.engine
    return engine


async def respond_ready(request: Request) -> AsciiJson:
    """Responds whether the server takes requests: 200 or 503."""
    ready = engine_of(request).ready
    return AsciiJson({"ready": ready}, 200 if ready else 503)


def _content_length(request: Request) -> int:
    text = request.headers.get("content-length", "")
    return int(text) if text.isdecimal() and len(text) < 20 else 0

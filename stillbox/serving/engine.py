"""Runs the model for all protocols, from the images of a request to their detections.

Threads and memory for the work of requests are bounded; large work does not delay small work.
"""

import asyncio
import base64
import binascii
import heapq
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from functools import partial
from itertools import count
from math import prod
from typing import NamedTuple, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from stillbox.devices.process import own_processors
from stillbox.errors import UserError
from stillbox.evaluation.pictures import LEAST_SIDE
from stillbox.evaluation.results import RawDetections
from stillbox.image_kind import ImageKind
from stillbox.predicting.backend import Pixels, Prepared
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import ClassesPerObject, Selection
from stillbox.records.tile_grid import TileWindow
from stillbox.serving import bodies
from stillbox.serving.batching import Batcher, ClosedError
from stillbox.serving.bodies import bad_request
from stillbox.serving.decoding import ImageInput, PixelText, decode_input, image_size
from stillbox.serving.foreign_bodies import refuse_compressed
from stillbox.serving.middleware import Metrics
from stillbox.serving.settings import ServeSettings, choose_batch_sizes

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Share:
    """A part of the memory of `Workers`, and the use of one thread at a time."""

    def __init__(self, workers: "Workers", size: int) -> None:
        self._workers, self._size = workers, size
        self._running = self._left = False

    async def run(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """Runs a function in a thread, as soon as one is free."""
        await self._workers.threads.acquire()
        loop = asyncio.get_running_loop()
        self._running = True
        work = self._workers.pool.submit(function, *args)
        # The memory is kept after the request ends, because its thread still runs.
        work.add_done_callback(lambda _: loop.call_soon_threadsafe(self._end))
        return await asyncio.wrap_future(work)

    def shrink(self, size: int) -> None:
        """Gives back the memory beyond a size."""
        if size < self._size:
            self._workers.give_back(self._size - size)
            self._size = size

    def leave(self) -> None:
        """Gives everything back as soon as nothing runs."""
        self._left = True
        if not self._running:
            self.shrink(0)

    def _end(self) -> None:
        self._running = False
        self._workers.threads.release()
        if self._left:
            self.shrink(0)


class Workers:
    """A pool of at most `threads` threads with a budget of `memory` bytes."""

    def __init__(self, name: str, threads: int, memory: int) -> None:
        self.pool = ThreadPoolExecutor(threads, name)
        # The pool's own queue would keep the images of requests that have ended.
        self.threads = asyncio.Semaphore(threads)
        self._memory = self._free = memory
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = count()

    @asynccontextmanager
    async def share(self, size: int) -> AsyncIterator[Share]:
        """Waits for `size` bytes of the memory, at most all of it; small requests come first."""
        size = min(size, self._memory)
        await self._take(size)
        share = Share(self, size)
        try:
            yield share
        finally:
            share.leave()

    def give_back(self, size: int) -> None:
        """Returns memory to the budget."""
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            size, _, granted = heapq.heappop(self._waiting)
            if not granted.cancelled():
                self._free -= size
                granted.set_result(None)

    async def _take(self, size: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size, next(self._number), granted))
        self.give_back(0)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self.give_back(size)
            raise


# Peak memory in bytes, measured: per byte of a body that is read, per byte of a file of which the
# header is read, per pixel that is decoded, per pixel that is decoded and drawn.
_READ, _OPENED, _DECODED, _DRAWN = 16, 8, 12, 16


class _Views(NamedTuple):
    """The windows of an image, prepared for the model."""

    size: tuple[int, int]
    """Height and width of the image, in pixels."""
    windows: Sequence[TileWindow]
    prepared: list[Prepared]


class ImageDetections(NamedTuple):
    """The detections of one image."""

    detections: RawDetections
    """Boxes in pixels of the image."""
    size: tuple[int, int]
    """Height and width of the image, in pixels."""


class Engine:
    """A model that runs for many requests at a time.

    Two pools of threads read bodies and decode and resize images: one for work that needs little
    memory, one for the rest. Other threads run the model.

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
            expects_more=self._expects_more,
            at_once=settings.runs_at_once,
            most_at_once=own_processors(),
        )
        self.admission = bodies.Admission(settings.queue, self.batcher.seconds_for)
        # The other half of the places is for small images alone.
        half, places = max(settings.queue // 2, 1), "places for large images"
        self.large_admission = bodies.Admission(half, self.batcher.seconds_for, places)
        self.arrivals = bodies.Arrivals(max(settings.max_memory // 4, settings.max_body))
        self.metrics.waiting.set_function(lambda: self.batcher.waiting)
        self.metrics.in_flight.set_function(lambda: self.admission.in_flight)
        threads, part = own_processors(), settings.max_memory // 4
        self._small = Workers("small images", threads, part)
        self._large = Workers("large images", threads, settings.max_memory - part)
        self._started = False

    def _expects_more(self) -> bool:
        """Whether there are images in flight that still have to be read or decoded."""
        return self.admission.in_flight > self.batcher.waiting + self.batcher.running

    @property
    def most_detections(self) -> int:
        """Most detections in an image; -1 with tiles, of which an image may have any number."""
        return self.predictor.backend.max_detections if self.predictor.tiling is None else -1

    @property
    def image_kind(self) -> ImageKind:
        """Channels and bits of the images."""
        return self.predictor.backend.image_kind

    @property
    def ready(self) -> bool:
        """Whether the model runs."""
        return self._started and self.batcher.alive

    def start(self, report: Callable[[str], None] = lambda text: None) -> None:
        """Compiles every batch size, unless that was done before."""
        if not self._started:
            self.batcher.start(report)
            self._started = True

    def stop(self) -> None:
        """Finishes the images that were submitted, and takes no more."""
        self._started = False
        self.batcher.close()
        for workers in (self._small, self._large):
            workers.pool.shutdown()

    async def respond(
        self, request: Request, work: Callable[[bytes], Coroutine[object, None, T]]
    ) -> T:
        """Returns the result of `work` on the body of a request, which is in flight meanwhile.

        A body that is arriving is not in flight. If the client disconnects or the time is over,
        `work` is cancelled.

        Raises:
            HTTPException: 415 if the body is compressed, 503 if too many images are in flight, 413
                and 408 if the body is too large or too slow, 503 if later ones need its memory, 504
                if the response is too slow.
        """
        seconds = self.settings.timeout
        refuse_compressed(request.headers)
        if bodies.content_length(request) > self.settings.max_body:
            raise bodies.too_large(self.settings.max_body)
        # Refuses before the body arrives.
        self.admission.check(1)
        received = [await self.arrivals.read(request, seconds)]
        with self.admission.admit(1):
            try:
                async with _while_connected(request), asyncio.timeout(seconds):
                    # No other reference to the body exists, so `work` can free it.
                    return await work(received.pop())
            except TimeoutError:
                raise bodies.http_error(504, f"there was no answer in {seconds:g} s") from None

    async def read(self, function: Callable[[bytes], T], body: bytes) -> T:
        """Returns the result of a function on a body; it runs in a thread."""
        with self._admit_large([_READ * len(body)]):
            async with self.share(_READ * len(body)) as share:
                return await share.run(function, body)

    async def detect(self, images: Sequence[ImageInput]) -> list[ImageDetections]:
        """Detects in the images of a request as stored, without their EXIF orientation."""
        bodies.check_count(len(images), self.settings.images_of_request)
        # `respond` has admitted one.
        with self.admission.admit(len(images) - 1):
            sizes = await _all([self._measure(image) for image in images])
            pairs = list(zip(images, sizes, strict=True))
            with self._admit_large([_memory(image, prod(size), _DECODED) for image, size in pairs]):
                return await _all(
                    [self._detect_one(image, size, upright=False) for image, size in pairs]
                )

    async def detect_upright(self, file: bytes, min_score: float) -> ImageDetections:
        """Detects in one image file with its EXIF orientation."""
        size = await self._measure(file)
        with self._admit_large([_memory(file, prod(size), _DECODED)]):
            return await self._detect_one(file, size, upright=True, min_score=min_score)

    async def draw(
        self, file: bytes, draw: Callable[[Pixels, RawDetections], T], min_score: float
    ) -> T:
        """Like `detect_upright`, but returns the result of `draw`, which runs in a thread."""
        size = await self._measure(file)
        memory = _memory(file, max(prod(size), LEAST_SIDE**2), _DRAWN)
        with self._admit_large([memory]):
            async with self.share(memory, self._kept(size)) as share:
                decode = partial(decode_input, file, self.image_kind, upright=True)
                pixels = await share.run(decode)
                views = await share.run(self._view, pixels)
                detections = await self._run(views, share, min_score)
                return await share.run(draw, pixels, detections)

    def share(self, memory: int, kept: int = 0) -> AbstractAsyncContextManager[Share]:
        """Waits for memory and a thread, see `Workers`; `kept` are the bytes that work of any size
        needs."""
        return (self._large if self._is_large(memory) else self._small).share(memory + kept)

    def _is_large(self, memory: int) -> bool:
        return memory > self.settings.max_memory // 16

    def _admit_large(self, memories: Sequence[int]) -> AbstractContextManager[None]:
        """Admits the large ones among the images of a request, or its large body."""
        large = sum(map(self._is_large, memories))
        return self.large_admission.admit(large) if large else nullcontext()

    async def _measure(self, image: ImageInput) -> tuple[int, int]:
        """Returns height and width of an image, in pixels."""
        if isinstance(image, bytes):
            async with self.share(_OPENED * len(image)) as share:
                return await share.run(image_size, image, self.settings.max_pixels)
        return image_size(image, self.settings.max_pixels)

    def _kept(self, size: tuple[int, int]) -> int:
        """Returns the memory that the prepared windows of an image take."""
        return self.batcher.prepared_bytes * len(self.predictor.windows(*size))

    async def _detect_one(
        self, image: ImageInput, size: tuple[int, int], *, upright: bool, min_score: float = 0.0
    ) -> ImageDetections:
        memory = _memory(image, prod(size), _DECODED)
        async with self.share(memory, self._kept(size)) as share:
            # One function decodes and resizes, so that the whole image is freed after it.
            views = await share.run(self._prepare, image, upright)
            share.shrink(sum(prepared.pixels.nbytes for prepared in views.prepared))
            return ImageDetections(await self._run(views, share, min_score), views.size)

    def _prepare(self, image: ImageInput, upright: bool) -> _Views:
        return self._view(decode_input(image, self.image_kind, upright=upright))

    def _view(self, pixels: Pixels) -> _Views:
        size = pixels.shape[0], pixels.shape[1]
        windows = self.predictor.windows(*size)
        return _Views(size, windows, list(self.predictor.prepare(pixels, windows)))

    async def _run(self, views: _Views, share: Share, min_score: float) -> RawDetections:
        results = await _all([self._run_one(prepared) for prepared in views.prepared])
        if self.predictor.tiling is None:
            return results[0]
        return await share.run(self.predictor.merged, results, views.windows, min_score)

    async def _run_one(self, prepared: Prepared) -> RawDetections:
        try:
            detections = await asyncio.wrap_future(self.batcher.submit(prepared))
        except ClosedError:
            raise bodies.http_error(503, "the model has stopped", {"Retry-After": "1"}) from None
        except UserError as error:
            # `prepare` has refused what the model does not take: the fault is not the client's.
            raise RuntimeError("the model failed") from error
        if not detections.finite:
            raise bodies.http_error(500, "the model's predictions for the image are not finite")
        return detections


def _memory(image: ImageInput, pixels: int, each: int) -> int:
    """Returns the memory that an image takes; a large file of few pixels is work, too."""
    return max(each * pixels, _OPENED * len(image) if isinstance(image, bytes) else 0)


async def _all(works: Sequence[Coroutine[object, None, T]]) -> list[T]:
    """Runs works together; if one fails, the others are cancelled and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


@asynccontextmanager
async def _while_connected(request: Request) -> AsyncIterator[None]:
    """Cancels its content once the client has gone: 499, as nginx counts such requests."""
    task = asyncio.current_task()
    assert task is not None

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not watching.done():
            raise
        task.uncancel()
        raise bodies.http_error(499, "the client has gone") from None
    finally:
        watching.cancel()


def engine_of(request: Request) -> Engine:
    """Returns the engine of the application that handles a request."""
    engine: Engine = request.app.state.engine
    return engine


async def respond_ready(request: Request) -> bodies.AsciiJson:
    """Responds whether the server takes requests: 200 or 503."""
    ready = engine_of(request).ready
    return bodies.AsciiJson({"ready": ready}, 200 if ready else 503)


INPUT = "input_tensor"
"""The input's name in exports of the Object Detection API."""

INPUTS = (INPUT, "inputs", "input", "image_tensor", "image_bytes", "encoded_image_string_tensor")
"""Names of the input in other exports, which requests may use too."""

OUTPUTS = ("detection_boxes", "detection_classes", "detection_scores", "num_detections")

Outputs = dict[str, NDArray[np.float32]]


def names_model(request: Request) -> bool:
    """Whether a request's path has the name of the model, and its version if any."""
    settings, path = engine_of(request).settings, request.path_params
    version = str(settings.version)
    return bool(path["name"] == settings.name and path.get("version", version) == version)


async def infer(
    request: Request,
    read: Callable[[bytes, int], tuple[list[ImageInput], T]],
    classes_per_object: Callable[[T], ClassesPerObject | None] = lambda options: None,
) -> tuple[Outputs, T]:
    """Runs the model on the images of a request.

    Args:
        read: returns images and options of a body with at most a number of images; runs in a
            thread.
        classes_per_object: returns the choice of the options; None: as the settings of the server
            say, and `all` if the settings say nothing.
    """
    engine = engine_of(request)
    most = engine.settings.images_of_request

    async def respond(body: bytes) -> tuple[list[ImageDetections], T]:
        images, options = await engine.read(lambda body: read(body, most), body)
        del body
        return await engine.detect(images), options

    results, options = await engine.respond(request, respond)
    wanted = classes_per_object(options) or engine.settings.classes_per_object or "all"
    selection = Selection(classes_per_object=wanted, iou=engine.settings.iou)
    selected = [
        image._replace(detections=selection.one_class(image.detections)) for image in results
    ]
    return padded_outputs(selected, engine.most_detections), options


def output_shapes(most: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each output for one image with at most `most` detections."""
    shapes = {"detection_boxes": (most, 4), "num_detections": ()}
    return {name: shapes.get(name, (most,)) for name in OUTPUTS}


def decode_base64(text: object, where: str) -> bytes:
    """Returns the bytes of a base64 string, of the standard or the URL-safe alphabet.

    Raises:
        HTTPException: 400, it is no string or not in base64; `where` is the image's name there.
    """
    if not isinstance(text, str):
        raise bad_request(f"{where}: base64 must be a string")
    try:
        standard = text.encode("ascii").translate(bytes.maketrans(b"-_", b"+/"))
        return base64.b64decode(standard + b"=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise bad_request(f"{where}: not base64: {error}") from None


def image_pixels(value: list[object] | PixelText, where: str, channels: int) -> NDArray[np.uint8]:
    """Returns the pixels of one image.

    Raises:
        HTTPException: 400, the lists are no array `[h, w, channels]`.
    """
    pixels = (value if isinstance(value, PixelText) else PixelText.of(value)).pixels(where)
    if pixels.ndim != 3 or pixels.shape[2] != channels:
        raise bad_request(f"{where}: shape {list(pixels.shape)}, wanted [h, w, {channels}]")
    return pixels


def padded_outputs(results: Sequence[ImageDetections], most: int) -> Outputs:
    """Returns the outputs of the Object Detection API's signature, float32, of B images.

    With K = `most`: `detection_boxes` `[B, K, 4]`, normalised to the image; `detection_classes`
    `[B, K]`, label map ids, 1 after the last detection; `detection_scores` `[B, K]`;
    `num_detections` `[B]`. A K of -1 is the most that an image of these has.
    """
    if most < 0:
        most = max((len(detections.scores) for detections, _ in results), default=0)
    shapes = output_shapes(most)
    outputs = {name: np.zeros((len(results), *shapes[name]), np.float32) for name in OUTPUTS}
    outputs["detection_classes"][:] = 1
    for row, (detections, size) in enumerate(results):
        count = min(len(detections.scores), most)
        boxes = detections.boxes[:count] / np.tile(np.array(size, np.float64), 2)
        outputs["detection_boxes"][row, :count] = boxes
        outputs["detection_scores"][row, :count] = detections.scores[:count]
        outputs["detection_classes"][row, :count] = detections.class_ids[:count]
        outputs["num_detections"][row] = count
    return outputs

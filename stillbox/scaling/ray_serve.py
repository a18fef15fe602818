"""A predictor as a deployment of Ray Serve."""

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from stillbox.devices.setup import prepare_process
from stillbox.errors import UserError
from stillbox.evaluation.results import NotFiniteError, RawDetections
from stillbox.evaluation.tiling import Tiling
from stillbox.extras import import_extra
from stillbox.predicting.backend import Pixels, Prepared
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import USUAL, Selection
from stillbox.records.tile_grid import TileWindow

if TYPE_CHECKING:
    from ray.serve import Application


def deployment(
    predictor: Predictor,
    *,
    selection: Selection = USUAL,
    batch_sizes: Sequence[int] = (1, 4),
    wait: float = 0.01,
    **options: object,
) -> "Application":
    """Returns an application for `ray.serve.run`.

    The response to a POST of an image file is `Detections.to_dict` as JSON, as is the result of
    `handle.remote` with the file's bytes. If it is no image, the response is 400 with `error`; if
    the model's predictions are not finite, it is 500. The handle raises `UserError`.

    Args:
        predictor: sent to every replica, which compiles a program for each batch size at its start.
        batch_sizes: a batch of images, or tiles of images, is padded to the smallest of these that
            holds it.
        wait: most seconds that an image waits for others.
        options: of `ray.serve.deployment`, such as `num_replicas="auto"`, `autoscaling_config`,
            `ray_actor_options={"num_gpus": 1}`, `max_queued_requests`.

    Raises:
        UserError: Ray is not installed, or the model lacks a class of `selection`.
    """
    selection.check_classes(predictor.class_names.values())
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import_extra("ray.serve", "ray")
    from ray import serve

    tiling: Tiling | Literal[False] = predictor.tiling or False
    sized = [
        Predictor(predictor.backend, batch_size=size, tiling=tiling) for size in sorted(batch_sizes)
    ]
    detector = _detector_class(selection, sized[-1].batch_size, wait)
    return serve.deployment(**options)(detector).bind(sized)


def _detector_class(selection: Selection, most: int, wait: float) -> type:
    """Returns the class of a deployment, with batches of at most `most` images.

    Decorators of Ray are part of it, and Ray is an extra.
    """
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    class Detector:
        def __init__(self, sized: list[Predictor]) -> None:
            prepare_process()
            self._sized = sized
            for predictor in sized:
                predictor.warm_up()

        @serve.batch(max_batch_size=most, batch_wait_timeout_s=wait)
        async def _run(self, prepared: list[Prepared]) -> list[RawDetections]:
            fitting = next(each for each in self._sized if each.batch_size >= len(prepared))
            return await asyncio.to_thread(fitting.run, prepared)

        async def detect(self, content: bytes) -> dict[str, object]:
            pixels, windows, prepared = await asyncio.to_thread(self._prepare, content)
            views = await asyncio.gather(*map(self._run, prepared))
            return await asyncio.to_thread(self._detections, pixels, windows, views)

        def _prepare(self, content: bytes) -> tuple[Pixels, list[TileWindow], list[Prepared]]:
            predictor = self._sized[0]
            pixels, _ = predictor.read(content)
            windows = predictor.windows(*pixels.shape[:2])
            return pixels, windows, list(predictor.prepare(pixels, windows))

        def _detections(
            self, pixels: Pixels, windows: list[TileWindow], views: list[RawDetections]
        ) -> dict[str, object]:
            predictor = self._sized[0]
            raw = predictor.merged(views, windows, selection.min_score)
            return selection.of(predictor.detections(pixels, raw)).to_dict()

        async def __call__(self, request: Request | bytes) -> dict[str, object] | JSONResponse:
            if isinstance(request, bytes):
                return await self.detect(request)
            try:
                return await self.detect(await request.body())
            except UserError as error:
                status = 500 if isinstance(error, NotFiniteError) else 400
                return JSONResponse({"error": error.what}, status)

    return Detector

"""`POST /detect`: an image file in, JSON or an annotated picture out."""

from typing import Literal, NamedTuple, cast

import numpy as np
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox.errors import nearest
from stillbox.evaluation.pictures import picture_bytes
from stillbox.predicting.backend import Found, Pixels
from stillbox.predicting.detections import Detections
from stillbox.serving.answers import Json, bad_request
from stillbox.serving.engine import Engine

FORMATS = ("json", "png", "jpeg")


class Asked(NamedTuple):
    """What stands in the query of a request."""

    format: str
    """One of `FORMATS`."""
    min_score: float
    """Least score of a detection."""


class Detect:
    """The plain route, for people and scripts.

    Args:
        engine: runs the model.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        """Returns it."""
        return [Route("/detect", self.detect, methods=["POST"])]

    async def detect(self, request: Request) -> Response:
        """Detects in one image file: the body, or the one file of a form."""
        engine = self._engine
        asked = read_query(request, engine.settings.min_score)
        async with engine.body(request) as body:
            name, content = await _file_of(request, body)
            pixels = await engine.read(content)
            found = await engine.detect_pixels(pixels)
            if asked.format == "json":
                return Json(self._detections(pixels, found, name, asked.min_score).to_dict())
            return await engine.work(self._picture, pixels, found, asked)

    def _picture(self, pixels: Pixels, found: Found, asked: Asked) -> Response:
        drawn = self._detections(pixels, found, "", asked.min_score).draw(asked.min_score)
        kind = cast(Literal["PNG", "JPEG"], asked.format.upper())
        content = picture_bytes(np.asarray(drawn), kind)
        return Response(content, media_type=f"image/{asked.format}")

    def _detections(
        self, pixels: Pixels, found: Found, source: str, min_score: float
    ) -> Detections:
        return self._engine.predictor.detections(pixels, found, source).at_least(min_score)


def read_query(request: Request, min_score: float) -> Asked:
    """Reads format and least score.

    Args:
        request: with or without them.
        min_score: the score, where the request does not say.

    Raises:
        HTTPException: 400, they make no sense.
    """
    unknown = sorted(set(request.query_params) - {"format", "min_score"})
    if unknown:
        raise bad_request(f"there is no parameter {unknown[0]!r}: there are format and min_score")
    kind = request.query_params.get("format", "json")
    if kind not in FORMATS:
        raise bad_request(f"format: there is no {kind!r}: {nearest(kind, FORMATS)}")
    said = request.query_params.get("min_score", str(min_score))
    try:
        score = float(said)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 1:
        raise bad_request(f"min_score is a number in 0..1, not {said!r}")
    return Asked(kind, score)


async def _file_of(request: Request, body: bytes) -> tuple[str, bytes]:
    """Returns name and content of the image file."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        return "", body
    async with request.form(max_files=1, max_fields=8) as form:
        files = [value for value in form.values() if isinstance(value, UploadFile)]
        if len(files) != 1:
            raise bad_request("a form has one file, as from curl --form image=@FILE")
        return files[0].filename or "", await files[0].read()

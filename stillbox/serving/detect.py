"""`POST /detect`: an image file in, JSON or an annotated image out."""

from typing import Literal, cast

import numpy as np
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox.errors import nearest
from stillbox.evaluation.pictures import picture_bytes
from stillbox.predicting.detections import Detections
from stillbox.serving.engine import engine_of
from stillbox.serving.responses import AsciiJson, bad_request

FORMATS = ("json", "png", "jpeg")


async def _detect(request: Request) -> Response:
    """Detects in one image file: the body, or the one file of a form."""
    engine = engine_of(request)
    kind, min_score = _read_query(request, engine.settings.min_score)
    async with engine.body(request) as body:
        name, content = await _read_file(request, body)
        pixels = await engine.decode(content)
        found = await engine.detect_pixels(pixels)
        detections = engine.predictor.detections(pixels, found, name).at_least(min_score)
        if kind == "json":
            return AsciiJson(detections.to_dict())
        drawn = await engine.work(_draw, detections, min_score, kind)
        return Response(drawn, media_type=f"image/{kind}")


ROUTE = Route("/detect", _detect, methods=["POST"])


def _draw(detections: Detections, min_score: float, kind: str) -> bytes:
    encoding = cast(Literal["PNG", "JPEG"], kind.upper())
    return picture_bytes(np.asarray(detections.draw(min_score)), encoding)


def _read_query(request: Request, min_score: float) -> tuple[str, float]:
    """Returns one of `FORMATS` and the least score, by default `min_score`."""
    query = request.query_params
    unknown = sorted(set(query) - {"format", "min_score"})
    if unknown:
        raise bad_request(f"there is no parameter {unknown[0]!r}: there are format and min_score")
    kind = query.get("format", "json")
    if kind not in FORMATS:
        raise bad_request(f"format: there is no {kind!r}: {nearest(kind, FORMATS)}")
    text = query.get("min_score", str(min_score))
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 1:
        raise bad_request(f"min_score is a number in 0..1, not {text!r}")
    return kind, score


async def _read_file(request: Request, body: bytes) -> tuple[str, bytes]:
    """Returns name and content of the image file."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        return "", body
    async with request.form(max_files=1, max_fields=8) as form:
        files = [value for value in form.values() if isinstance(value, UploadFile)]
        if len(files) != 1:
            raise bad_request("a form has one file, as from curl --form image=@FILE")
        return files[0].filename or "", await files[0].read()

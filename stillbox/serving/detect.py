"""`POST /detect`: an image file in, JSON or an annotated image out."""

from functools import partial
from typing import Literal, cast

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox.errors import nearest
from stillbox.evaluation.pictures import picture_bytes
from stillbox.predicting.backend import Found, Pixels
from stillbox.predicting.predictor import Predictor
from stillbox.serving.engine import engine_of
from stillbox.serving.forms import read_file
from stillbox.serving.responses import AsciiJson, bad_request

FORMATS = ("json", "png", "jpeg")


async def _detect(request: Request) -> Response:
    """Detects in one image file: the body, or the one file of a form."""
    engine = engine_of(request)
    kind, min_score = _read_query(request, engine.settings.min_score)
    form = request.headers.get("content-type", "")

    async def respond(body: bytes) -> Response:
        if form.partition(";")[0].strip().lower() == "multipart/form-data":
            name, file = await engine.read(partial(read_file, form), body)
        else:
            name, file = "", body
        del body
        if kind != "json":
            return await engine.draw(file, partial(_draw, engine.predictor, min_score, kind))
        found, size = await engine.detect_upright(file)
        # Without the pixels, of which only the size is needed.
        blank = np.broadcast_to(np.uint8(0), (*size, 3))
        detections = engine.predictor.detections(blank, found, name)
        return AsciiJson(detections.at_least(min_score).to_dict())

    return await engine.respond(request, respond)


ROUTE = Route("/detect", _detect, methods=["POST"])


def _draw(
    predictor: Predictor, min_score: float, kind: str, pixels: Pixels, found: Found
) -> Response:
    picture = np.asarray(predictor.detections(pixels, found).draw(min_score))
    encoding = cast(Literal["PNG", "JPEG"], kind.upper())
    return Response(picture_bytes(picture, encoding), media_type=f"image/{kind}")


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

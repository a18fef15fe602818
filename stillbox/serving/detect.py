"""`POST /detect`: an image file in, JSON or an annotated image out."""

from contextlib import suppress
from functools import partial
from typing import Literal, cast

import numpy as np
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox.errors import nearest
from stillbox.evaluation.pictures import picture_bytes
from stillbox.predicting.backend import Pixels, RawDetections
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import CLASSES_PER_OBJECT, ClassesPerObject, Selection
from stillbox.serving.bodies import AsciiJson, bad_request, read_file
from stillbox.serving.engine import engine_of
from stillbox.serving.settings import ServeSettings

RESPONSE_FORMATS = ("json", "png", "jpeg")
_PARAMETERS = ("format", "min_score", "classes_per_object", "iou")


async def _detect(request: Request) -> Response:
    """Detects in one image file: the body, or the one file of a form."""
    engine = engine_of(request)
    kind, selection = _read_query(request, engine.settings)
    form = request.headers.get("content-type", "")

    async def respond(body: bytes) -> Response:
        if form.partition(";")[0].strip().lower() == "multipart/form-data":
            name, file = await engine.read(partial(read_file, form), body)
        else:
            name, file = "", body
        del body
        if kind != "json":
            return await engine.draw(file, partial(_draw, engine.predictor, selection, kind))
        found, size = await engine.detect_upright(file)
        # Without the pixels, of which only the size is needed.
        blank = np.broadcast_to(np.uint8(0), (*size, 3))
        detections = engine.predictor.detections(blank, found, name)
        return AsciiJson(selection.of(detections).to_dict())

    return await engine.respond(request, respond)


ROUTE = Route("/detect", _detect, methods=["POST"])


def _draw(
    predictor: Predictor, selection: Selection, kind: str, pixels: Pixels, found: RawDetections
) -> Response:
    shown = selection.of(predictor.detections(pixels, found))
    picture = np.asarray(shown.draw(selection.min_score))
    encoding = cast(Literal["PNG", "JPEG"], kind.upper())
    return Response(picture_bytes(picture, encoding), media_type=f"image/{kind}")


def _read_query(request: Request, settings: ServeSettings) -> tuple[str, Selection]:
    """Returns one of `RESPONSE_FORMATS` and what to return, by default as in the settings."""
    query = request.query_params
    unknown = sorted(set(query) - set(_PARAMETERS))
    if unknown:
        known = f"{', '.join(_PARAMETERS[:-1])} and {_PARAMETERS[-1]}"
        raise bad_request(f"there is no parameter {unknown[0]!r}: there are {known}")
    words = {
        "format": (query.get("format", "json"), RESPONSE_FORMATS),
        "classes_per_object": (
            query.get("classes_per_object", settings.classes_per_object or "one"),
            CLASSES_PER_OBJECT,
        ),
    }
    for name, (word, known_words) in words.items():
        if word not in known_words:
            raise bad_request(f"{name}: there is no {word!r}: {nearest(word, known_words)}")
    selection = Selection(
        min_score=_fraction(query, "min_score", settings.min_score),
        classes_per_object=cast(ClassesPerObject, words["classes_per_object"][0]),
        iou=_fraction(query, "iou", settings.iou),
    )
    return words["format"][0], selection


def _fraction(query: QueryParams, name: str, default: float) -> float:
    text = query.get(name, str(default))
    with suppress(ValueError):
        if 0 <= (value := float(text)) <= 1:
            return value
    raise bad_request(f"{name} is a number in 0..1, not {text!r}")

"""The server's application: every protocol over one engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox.errors import UserError
from stillbox.predicting.predictor import Predictor
from stillbox.serving.answers import Json, answer_failure, answer_refusal, answer_user_error
from stillbox.serving.detect import Detect
from stillbox.serving.engine import Engine
from stillbox.serving.limits import LimitBody
from stillbox.serving.metrics import MeasureRequests
from stillbox.serving.open_inference import OpenInference
from stillbox.serving.openapi import describe
from stillbox.serving.pages import Page
from stillbox.serving.security import OPEN, AddHeaders, RequireKey
from stillbox.serving.settings import ServeSettings
from stillbox.serving.tensorflow_serving import TensorFlowServing


def build_app(predictor: Predictor, settings: ServeSettings) -> Starlette:
    """Returns the ASGI application that serves a model. Its state has the `engine`.

    At its start it compiles every batch size, unless `engine.start()` did so before; at its end it
    finishes what it took.

    Args:
        predictor: the model.
        settings: name, batches, limits, key.

    Raises:
        UserError: the settings make no sense, or the model does not take such batches.
    """
    engine = Engine(predictor, settings)
    page = Page(settings)
    middleware = [
        Middleware(MeasureRequests, metrics=engine.metrics),
        Middleware(AddHeaders),
        Middleware(LimitBody, most=settings.max_body),
    ]
    if settings.api_key:
        key = Middleware(RequireKey, key=settings.api_key, open_paths=OPEN | page.paths)
        middleware.insert(2, key)
    app = Starlette(
        routes=[
            *TensorFlowServing(engine).routes(),
            *OpenInference(engine).routes(),
            *Detect(engine).routes(),
            *page.routes(),
            *_own_routes(engine),
        ],
        middleware=middleware,
        exception_handlers={
            HTTPException: answer_refusal,
            UserError: answer_user_error,
            Exception: answer_failure,
        },
        lifespan=_lifespan,
    )
    app.router.redirect_slashes = False
    app.state.engine = engine
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    engine: Engine = app.state.engine
    await run_in_threadpool(engine.start)
    yield
    await run_in_threadpool(engine.stop)


def _own_routes(engine: Engine) -> list[Route]:
    async def health(request: Request) -> Json:
        """Says that the server runs."""
        return Json({"status": "ok"})

    async def ready(request: Request) -> Json:
        """Says whether it takes requests."""
        return Json({"ready": engine.ready}, 200 if engine.ready else 503)

    async def metrics(request: Request) -> Response:
        """Answers Prometheus."""
        content = generate_latest(engine.metrics.registry)
        return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    described = describe(engine.settings)

    async def openapi(request: Request) -> Json:
        """Describes all routes."""
        return Json(described)

    return [
        Route("/healthz", health),
        Route("/readyz", ready),
        Route("/metrics", metrics),
        Route("/openapi.json", openapi),
    ]

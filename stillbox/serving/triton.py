"""Triton's extensions of the Open Inference Protocol: configuration, index and statistics.

https://docs.nvidia.com/deeplearning/triton-inference-server, "Protocols and APIs"
"""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stillbox.serving.bodies import AsciiJson
from stillbox.serving.engine import Engine, engine_of, output_shapes
from stillbox.serving.middleware import Labels, Metrics, Where
from stillbox.serving.open_inference import MODELS, check_model, tensors

_TYPES = {"UINT8": "TYPE_UINT8", "BYTES": "TYPE_STRING"}
_NONE = {"count": 0, "ns": 0}  # not measured


async def _config(request: Request) -> Response:
    """The configuration of the model: either input, the dimensions of a batch of any size."""
    check_model(request)
    engine = engine_of(request)
    shapes = output_shapes(engine.most_detections)
    return AsciiJson(
        {
            "name": engine.settings.name,
            "platform": "stillbox",
            "backend": "stillbox",
            "max_batch_size": 0,
            "input": [
                {"name": name, "data_type": _TYPES[kind], "dims": dims, "optional": True}
                for name, (kind, dims) in tensors(engine).items()
            ],
            "output": [
                {"name": name, "data_type": "TYPE_FP32", "dims": [-1, *shape]}
                for name, shape in shapes.items()
            ],
        }
    )


async def _index(request: Request) -> Response:
    """The index of the repository, which has one model."""
    engine = engine_of(request)
    state = "READY" if engine.ready else "UNAVAILABLE"
    name, version = engine.settings.name, str(engine.settings.version)
    return AsciiJson([{"name": name, "version": version, "state": state, "reason": ""}])


async def _statistics(request: Request) -> Response:
    """The statistics of the model since the start, of the requests of all protocols."""
    if "name" in request.path_params:
        check_model(request)
    return AsciiJson({"model_stats": [_statistics_of(engine_of(request))]})


def _statistics_of(engine: Engine) -> dict[str, object]:
    metrics, settings = engine.metrics, engine.settings
    good = partial(_duration, metrics, "stillbox_request_seconds", where=_answered)
    bad = partial(_duration, metrics, "stillbox_request_seconds", where=_failed)
    runs = _duration(metrics, "stillbox_run_seconds")
    return {
        "name": settings.name,
        "version": str(settings.version),
        "last_inference": int(1000 * metrics.total("stillbox_last_run_timestamp_seconds")),
        "inference_count": int(metrics.total("stillbox_images_total")),
        "execution_count": runs["count"],
        "inference_stats": {"success": good(), "fail": bad(), "compute_infer": runs}
        | dict.fromkeys(("queue", "compute_input", "compute_output"), _NONE),
        "batch_stats": [_batches_of(metrics, rows) for rows in engine.batcher.sizes],
    }


def _batches_of(metrics: Metrics, rows: int) -> dict[str, object]:
    runs = _duration(metrics, "stillbox_run_seconds", lambda labels: labels["rows"] == str(rows))
    return {
        "batch_size": rows,
        "compute_input": _NONE,
        "compute_infer": runs,
        "compute_output": _NONE,
    }


def _duration(metrics: Metrics, name: str, where: Where = lambda labels: True) -> dict[str, int]:
    """Returns count and nanoseconds of a histogram."""
    seconds = metrics.total(f"{name}_sum", where)
    return {"count": int(metrics.total(f"{name}_count", where)), "ns": int(1e9 * seconds)}


def _detects(labels: Labels) -> bool:
    return labels["route"].endswith(("/detect", "/infer", ":{action}"))


def _answered(labels: Labels) -> bool:
    return _detects(labels) and labels["code"] == "200"


def _failed(labels: Labels) -> bool:
    return _detects(labels) and labels["code"] != "200"


ROUTES = [
    *(Route(f"{model}/config", _config) for model in MODELS),
    *(Route(f"{model}/stats", _statistics) for model in MODELS),
    # Before the path of a model, which would match it too.
    Route("/v2/models/stats", _statistics),
    Route("/v2/repository/index", _index, methods=["POST"]),
]

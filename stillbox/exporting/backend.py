"""The formats of artefacts, their writers and runtimes, and the backend that runs an artefact."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import cv2
import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.results import RawDetections
from stillbox.evaluation.tiling import Tiling
from stillbox.experiment.schema import Experiment, PixelNormalization, Resizer
from stillbox.experiment.yaml_config import from_stored
from stillbox.exporting.manifest import EXPERIMENT, LABEL_MAP, Manifest, Written, check_files
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ENCODED, Format, InputType
from stillbox.image_kind import ImageKind
from stillbox.inputs.channels import of_kind, with_channels
from stillbox.inputs.resize import refuse_misfit, resize_image, resized_size
from stillbox.predicting.backend import Pixels, Prepared
from stillbox.records.label_map import LabelMap
from stillbox.records.wire import serialize_features
from stillbox.references import Parameter
from stillbox.textformat.yaml_tree import read_text_file

Run = Callable[[np.ndarray], dict[str, np.ndarray]]
"""From the value of the one input to the outputs by name. Images are `[B, h, w, C]`; encoded
images and tf.Examples are `[B]` objects of bytes."""

Writer = Callable[[ExportProgram, Path, Sequence[np.ndarray]], Written]
"""Writes an artefact into an empty folder. The images `[h, w, C]` calibrate a quantised
model. Raises UserError if an extra is not installed or the format cannot hold the model."""

Loader = Callable[[Path, Manifest], Run]
"""Loads the artefact in a folder. Raises UserError if the runtime is not installed or refuses
the artefact."""

StandIn = Callable[[ExportProgram, Path], Run]
"""Loads the program of a newly written artefact into JAX, without the preprocessing before it."""

_WRITERS = {
    "saved_model": "stillbox.exporting.saved_model.format:write",
    "frozen_graph": "stillbox.exporting.saved_model.without_variables:write",
    "stablehlo": "stillbox.exporting.stablehlo:write",
    "tflite": "stillbox.exporting.tflite.format:write",
    "onnx": "stillbox.exporting.onnx.format:write",
}
_LOADERS = {
    "saved_model": {"tensorflow": "stillbox.exporting.saved_model.format:load"},
    "frozen_graph": {"tensorflow": "stillbox.exporting.saved_model.without_variables:load"},
    "stablehlo": {"jax": "stillbox.exporting.stablehlo:load"},
    "tflite": {"litert": "stillbox.exporting.tflite.format:load"},
    "onnx": {
        "onnxruntime": "stillbox.exporting.onnx.format:load_onnxruntime",
        "openvino": "stillbox.exporting.onnx.format:load_openvino",
        "openvino_default": "stillbox.exporting.onnx.format:load_openvino_default",
    },
}
"""By format and runtime; the first runtime is the default."""
_INEXACT = ("openvino_default",)
"""Runtimes that may compute in less than float32; they run if they are named, and in benchmarks."""
_STAND_INS = {
    "saved_model": ("tensorflow", "stillbox.exporting.saved_model.format:load_stand_in"),
    "frozen_graph": ("tensorflow", "stillbox.exporting.saved_model.format:load_frozen"),
}
"""By format: the package of its runtime, and the loader that replaces a missing runtime."""

RUNTIME_PACKAGES: Mapping[str, tuple[str, str]] = {
    "tensorflow": ("tensorflow", "tf"),
    "jax": ("jax", ""),
    "litert": ("ai_edge_litert", "tflite"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "openvino"),
    "openvino_default": ("openvino", "openvino"),
}
"""The package that each runtime imports, and the extra that brings it; jax is always there."""


def find_writer(form: Format) -> Writer:
    """Returns the writer of a format; its module is imported now."""
    writer: Writer = resolve_name(_WRITERS[form])
    return writer


def runtimes_of(form: Format) -> tuple[str, ...]:
    """Returns the runtimes of a format, the default first."""
    return tuple(_LOADERS[form])


def find_loader(form: Format, runtime: str = "") -> Loader:
    """Returns the loader of a runtime, by default the format's; its module is imported now.

    Raises:
        UserError: the runtime does not run the format.
    """
    runtimes = _LOADERS[form]
    if runtime and runtime not in runtimes:
        raise UserError(
            f"{runtime} does not run {form}",
            where=Parameter("runtime"),
            fix="use " + " or ".join(runtimes),
        )
    loader: Loader = resolve_name(runtimes[runtime or next(iter(runtimes))])
    return loader


def find_stand_in(form: Format) -> StandIn | None:
    """Returns the loader of a format that needs no runtime.

    None if the runtime is installed, or if no other loader exists.
    """
    package, name = _STAND_INS.get(form, ("", ""))
    if not package or find_spec(package) is not None:
        return None
    stand_in: StandIn = resolve_name(name)
    return stand_in


@contextmanager
def refusal(runtime: str, file: Path, fix: str, *errors: type[Exception]) -> Iterator[None]:
    """Turns a runtime's errors on loading a file into a `UserError`."""
    try:
        yield
    except errors as error:
        raise UserError(
            f"{runtime} refuses the model: {error}", where=str(file), fix=fix
        ) from error


# The beginning of XLA's message about a failed allocation.
_NO_MEMORY = "RESOURCE_EXHAUSTED"


_WARM_UP_BATCHES, _MOST_BATCHES, _MOST_SECONDS = 3, 50, 1.0


class ExportBackend:
    """A `Backend`. Each process loads the artefact at the first run.

    Args:
        runtime: one of the format's runtimes; empty: the default.
        stand_in: runs the artefact instead of a runtime.

    Raises:
        UserError: there is no export, or the runtime does not run its format.
    """

    def __init__(self, folder: Path, runtime: str = "", *, stand_in: Run | None = None) -> None:
        self.folder, self._runtime, self._stand_in = folder, runtime, stand_in
        self.manifest = Manifest.read(folder)
        # Before a runtime gets any of them.
        self.manifest.verify()
        self._load = find_loader(self.manifest.settings.format, runtime)
        self.experiment = read_experiment(folder)
        self._model = self.experiment.model
        self._names = LabelMap.from_file(folder / LABEL_MAP).names

    @property
    def class_names(self) -> Mapping[int, str]:
        """Class names by label map id."""
        return self._names

    @property
    def runtime(self) -> str:
        """The runtime of the artefact."""
        return self._runtime or runtimes_of(self.manifest.settings.format)[0]

    @property
    def source(self) -> str:
        """The folder of the artefact."""
        return f"{self.folder} ({self._runtime or self.manifest.settings.format})"

    @property
    def batch_sizes(self) -> tuple[int, ...] | None:
        """The artefact's batch size; 1 if images keep their own sizes and cannot be stacked."""
        settings = self.manifest.settings
        if self._input_size is None and settings.input_type not in ENCODED:
            return (1,)
        return (settings.batch_size,) if settings.batch_size else None

    @property
    def tiling(self) -> Tiling | None:
        """The tiles of the experiment."""
        return Tiling.of(self.experiment.data.tiles)

    @property
    def image_kind(self) -> ImageKind:
        """Channels and bits of the images."""
        return self._model.image_kind

    @property
    def max_detections(self) -> int:
        """Most detections in an image."""
        return self.manifest.settings.max_detections or self._model.max_detections

    def resized_by_client(self, image: Pixels) -> Pixels:
        """Returns the image as a client gives it: of the artefact's size, of the model's bits.

        If the artefact takes images of one size, the client resizes and pads, which is not part of
        the comparison with the checkpoint.
        """
        if self._input_size is None:
            return image
        pixels = self.prepare(image).pixels
        return np.rint(pixels).astype(np.uint8) if self.image_kind.bits == 8 else pixels

    def prepare(self, image: Pixels, where: str | None = None) -> Prepared:
        """Returns the image itself, or one of the artefact's size; see `prepare_image`."""
        return prepare_image(image, self._input_size, self._model.resizer, where)

    def warm_up(self, batch_size: int) -> None:
        """Loads the model."""
        del batch_size  # the export has a fixed one
        _ = self._run

    def run(self, images: Sequence[Prepared]) -> list[RawDetections]:
        """Detects in a batch."""
        rows = self.manifest.settings.batch_size
        filled = [*images, *[images[-1]] * (rows - len(images))]
        try:
            outputs = self._run(self._input([image.pixels for image in filled]))
            return [self._row(outputs, row, image) for row, image in enumerate(images)]
        except (UserError, OSError):
            raise
        # The runtimes' exceptions differ. Older exports have no checksums, which would find damage.
        except Exception as error:
            if _NO_MEMORY in str(error):
                raise
            problem = f"the model does not detect in these images: {str(error) or repr(error)}"
            fix = "see that all files are of one export, or export again"
            raise UserError(problem, where=str(self.folder), fix=fix) from error

    @cached_property
    def _run(self) -> Run:
        if self._stand_in is not None:
            return self._stand_in
        check_files(self.folder)
        return self._load(self.folder, self.manifest)

    @property
    def _input_size(self) -> tuple[int, int] | None:
        """Height and width of the artefact's input; None: images keep their own."""
        settings = self.manifest.settings
        if settings.input_type == "raw_image_tensor":
            return self.manifest.input_size
        return settings.image_size

    def _input(self, pixels: Sequence[np.ndarray]) -> np.ndarray:
        kind = self.manifest.settings.input_type
        if kind in ENCODED:
            files = [cv2.imencode(".png", image[..., ::-1])[1].tobytes() for image in pixels]
            if kind == "tf_example":
                files = [serialize_features({"image/encoded": [file]}) for file in files]
            return np.array(files, object)
        return input_values(np.stack(pixels), kind, self._model.normalization)

    def _row(self, outputs: Mapping[str, np.ndarray], row: int, image: Prepared) -> RawDetections:
        """Returns one image's detections in pixels of the given image."""
        count = int(outputs["num_detections"][row])
        boxes = np.asarray(outputs["detection_boxes"][row, :count], np.float64)
        size = (image.pixels.shape[0], image.pixels.shape[1])
        boxes = boxes / np.tile(self._frame(size), 2) * np.tile(np.array(size, np.float64), 2)
        boxes *= np.tile(np.array(image.size) / np.array(image.true_size), 2)
        detections = RawDetections(
            boxes=boxes,
            scores=np.asarray(outputs["detection_scores"][row, :count], np.float64),
            class_ids=np.rint(outputs["detection_classes"][row, :count]).astype(np.int64),
            # Signatures with raw predictions show NaN, which suppression hides.
            finite=all(bool(np.isfinite(output[row]).all()) for output in outputs.values()),
        )
        return detections if image.true_size == size else _clipped(detections, image.size)

    def _frame(self, size: tuple[int, int]) -> np.ndarray:
        """Returns height and width `[2]` of an input image in the unit of the boxes."""
        settings = self.manifest.settings
        if settings.signature == "detection_api" or settings.normalized_coordinates:
            return np.ones(2)
        if size != self.manifest.input_size:
            size = resized_size(size, self._model.resizer)
        return np.array(size, np.float64)

    def __reduce__(self) -> tuple[type["ExportBackend"], tuple[Path, str]]:
        return type(self), (self.folder, self._runtime)


def read_experiment(folder: Path) -> Experiment:
    """Returns the experiment of an export.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    file = folder / EXPERIMENT
    fix = "give the folder that `stillbox export` wrote"
    return from_stored(read_text_file(file, fix=fix, inside=folder), str(file))


def prepare_image(
    image: Pixels, wanted: tuple[int, int] | None, resizer: Resizer, where: str | None = None
) -> Prepared:
    """Returns an image of the `wanted` size of an artefact's input; None: the image itself.

    Raises:
        UserError: the artefact places the image in the network input, and it does not fit there.
    """
    size = image.shape[0], image.shape[1]
    if wanted is None:
        refuse_misfit(size, resizer, where)
        return Prepared(image, size, size)
    if wanted != resizer.input_size:
        resized = with_channels(cv2.resize(image, wanted[::-1], interpolation=cv2.INTER_AREA))
        return Prepared(resized, wanted, size)
    pixels, true_size = resize_image(image, resizer, where=where)
    return Prepared(pixels, true_size, size)


def input_values(
    pixels: np.ndarray, kind: InputType, normalization: PixelNormalization | None
) -> np.ndarray:
    """Returns pixels in 0..255 as values of an input that takes no files."""
    if kind == "image_tensor":
        return np.rint(pixels).astype(np.uint8)
    pixels = pixels.astype(np.float32)
    if kind == "float_image_tensor":
        return pixels
    if normalization is None:  # others are not exported with this input
        raise ValueError("its experiment has no normalization")
    mean, std = (np.array(values, np.float32) for values in (normalization.mean, normalization.std))
    return (pixels - mean) / std


def fastest_backend(folder: Path, say: Callable[[str], None]) -> ExportBackend:
    """Returns the backend of the runtime that takes the least time for a batch of noise.

    It measures those that are installed, for about a second each, and passes their milliseconds to
    `say`. Nothing is measured if there is only one.

    Raises:
        UserError: there is no export, no runtime of its format is installed, or each refuses it.
    """
    runtimes = [
        runtime
        for runtime in runtimes_of(Manifest.read(folder).settings.format)
        if runtime not in _INEXACT
    ]
    installed = [
        runtime for runtime in runtimes if find_spec(RUNTIME_PACKAGES[runtime][0]) is not None
    ]
    if len(installed) < 2:
        return ExportBackend(folder, *installed)
    measured: list[tuple[float, ExportBackend]] = []
    errors: dict[str, UserError] = {}
    for runtime in installed:
        try:
            backend = ExportBackend(folder, runtime)
            measured.append((_batch_seconds(backend), backend))
        except UserError as error:
            errors[runtime] = error
    if not measured:
        raise errors[installed[0]]
    measured.sort(key=lambda row: row[0])
    taken = [f"{1000 * seconds:.1f} ms in {backend.runtime}" for seconds, backend in measured]
    taken += [f"{runtime} refuses it ({error.what})" for runtime, error in errors.items()]
    say(f"{folder}: a batch takes {', '.join(taken)}; {measured[0][1].runtime} is used")
    return measured[0][1]


def _batch_seconds(backend: ExportBackend) -> float:
    """Returns the shortest time of a batch, the first of which loads and prepares the artefact."""
    height, width = backend.manifest.input_size
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    (rows, *_) = backend.batch_sizes or (1,)
    batch = [backend.prepare(of_kind(noise, backend.image_kind))] * rows
    for _ in range(_WARM_UP_BATCHES):
        backend.run(batch)
    seconds: list[float] = []
    while len(seconds) < _MOST_BATCHES and sum(seconds) < _MOST_SECONDS:
        began = time.perf_counter()
        backend.run(batch)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _clipped(detections: RawDetections, size: tuple[int, int]) -> RawDetections:
    """Clips detections to an image without its padding; drops those without area."""
    boxes = np.clip(detections.boxes, 0, np.tile(size, 2))
    seen = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    return RawDetections(
        boxes[seen], detections.scores[seen], detections.class_ids[seen], detections.finite
    )

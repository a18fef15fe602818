"""Trains beside the executed originals: from their weights, on their batches, after the input
pipeline.

Weights and images are functions of names and numbers, so that both sides make them anew. Most units
lie well above 0 and below 6: in a network of random signs an error of rounding would double in
every layer.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stillbox.boxes.structures import Batch
from stillbox.checkpoints.names import reference_names
from stillbox.devices.mesh import build_mesh
from stillbox.experiment.schema import Experiment
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.training.program import train_program
from stillbox.training.step import create_state
from tests.batches import batch_of

GOLDENS = Path(__file__).parents[1] / "goldens" / "trajectories"
Names = Callable[[Experiment, Mapping[str, Any]], Mapping[str, str]]
"""From an experiment and its arrays to the original's name of each, by our path."""
COLUMNS = {
    "cls": "classification_loss",
    "box": "localization_loss",
    "term/Loss/classification_loss": "classification_loss",
    "term/Loss/localization_loss": "localization_loss",
    "term/Loss/BoxClassifierLoss/classification_loss": "classification_loss",
    "term/Loss/BoxClassifierLoss/localization_loss": "localization_loss",
    "term/Loss/RPNLoss/objectness_loss": "objectness_loss",
    "term/Loss/RPNLoss/localization_loss": "proposal_localization_loss",
}
"""The original's name of a term of the loss, and ours."""
_HEADS = ("BoxEncodingPredictor", "ClassPredictor", "BoxPredictor")
_HEAD_PREFIXES = ("class-predict", "box-predict", "rpn-")


def _names_in_files(experiment: Experiment, arrays: Mapping[str, Any]) -> Mapping[str, str]:
    return reference_names(experiment.model, arrays)


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a run of an original was fed."""

    seed: int
    batch: int
    side: int
    classes: int
    steps: int
    class_bias: float = 0.0
    """Mean of the initial biases of the class predictor."""
    gamma: float = 0.4
    beta: float = 1.2
    empty: bool = True
    """Image `step % batch` has no box."""
    names: Names = _names_in_files


@dataclass(frozen=True)
class Trajectory:
    """What a run reported and where it ended, by the original's names."""

    rows: list[dict[str, float]]
    """The metrics of each step."""
    start: dict[str, np.ndarray]
    variables: dict[str, np.ndarray]
    averages: dict[str, np.ndarray]


def run(experiment: Experiment, case: Case) -> Trajectory:
    """Trains as many steps as the original was run."""
    program = train_program(experiment, build_mesh(case.batch, experiment.devices))
    detector = build_detector(experiment.model)
    _, params, stats = split_detector(detector)
    names = case.names(experiment, params | stats)
    start = {
        path: initial(names[path], array.shape, case) for path, array in (params | stats).items()
    }
    first = create_state(
        {path: jax.numpy.asarray(start[path]) for path in params},
        {path: jax.numpy.asarray(start[path]) for path in stats},
        experiment.train,
        program.trainable,
        detector.initial_loss_state(),
    )
    compiled, state, rows = program.lower().compile(), program.put_state(first), []
    for batch in batches(case, program.batch.boxes.shape[1]):
        state, metrics = compiled(state, program.put_batch(batch))
        rows.append({name: float(value) for name, value in metrics.items()})

    def named(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {names[path]: np.asarray(array) for path, array in arrays.items()}

    return Trajectory(rows, named(start), named(state.params | state.stats), named(state.ema))


def batches(case: Case, room: int) -> Iterator[Batch]:
    """Yields the batches of all steps, with room for so many boxes in each image."""
    for step in range(case.steps):
        rng = np.random.RandomState(case.seed * 1000 + step)
        boxes = np.zeros((case.batch, room, 4), np.float32)
        classes = np.zeros((case.batch, room), np.int32)
        weights = np.zeros((case.batch, room), np.float32)
        images = np.zeros((case.batch, case.side, case.side, 3), np.float32)
        for i in range(case.batch):
            image = _background(rng, case.side)
            count = 0 if case.empty and i == step % case.batch else rng.randint(1, 6)
            for k in range(count):
                boxes[i, k], classes[i, k] = _draw_object(rng, image, case.classes)
            weights[i, :count] = 1
            images[i] = np.clip(image, 0, 255)
        yield batch_of(images, boxes, weights, classes)


def _background(rng: np.random.RandomState, side: int) -> np.ndarray:
    """Waves, plain patches and noise, so that images differ in large and in small."""
    image = np.zeros((side, side, 3))
    y, x = np.meshgrid(np.arange(side) / side, np.arange(side) / side, indexing="ij")
    for channel in range(3):
        a, b = np.exp(rng.uniform(0, 4.5, 2))
        p, q = rng.uniform(0, 6, 2)
        mean, height = rng.uniform(30, 225), rng.uniform(10, 110)
        image[..., channel] = mean + height * np.sin(a * y + p) * np.cos(b * x + q)
    for _ in range(6):
        top, left = rng.randint(side), rng.randint(side)
        height, width = rng.randint(side // 8, side // 2), rng.randint(side // 8, side // 2)
        image[top : top + height, left : left + width] = rng.uniform(0, 255, 3)
    return image + rng.uniform(-20, 20, (side, side, 3))


def _draw_object(
    rng: np.random.RandomState, image: np.ndarray, classes: int
) -> tuple[np.ndarray, int]:
    """Tints a rectangle by its class; returns its box and the class."""
    side = len(image)
    height, width = rng.uniform(0.1, 0.7, 2)
    top, left = rng.uniform(0, 1 - height), rng.uniform(0, 1 - width)
    class_ = rng.randint(classes)
    rows = slice(int(top * side), int((top + height) * side))
    columns = slice(int(left * side), int((left + width) * side))
    tint = 40 * (class_ + 1) * np.array([1, -1, 0.5])
    image[rows, columns] = (image[rows, columns] + tint) / 1.2
    return np.array([top, left, top + height, left + width]), class_


def initial(name: str, shape: tuple[int, ...], case: Case) -> np.ndarray:
    """The value that the original's variable of a name has before the first step."""
    z = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    layer, kind = ("/" + name).split("/")[-2:]
    match kind:
        case "gamma":
            value = case.gamma * (1 + 0.1 * z)
        case "beta":
            value = case.beta + 0.1 * z
        case "moving_mean":
            value = 0.1 * z
        case "moving_variance" | "bifpn_combine_weights":
            value = 1 + 0.5 * np.abs(z)
        case "bias" | "biases":
            of_classes = "ClassPredictor" in layer or "class-predict" in layer
            value = case.class_bias * of_classes + 0.1 * z
        case _:
            fan_in = np.prod(shape[:2] if "depthwise" in kind else shape[:-1])
            value = z * np.sqrt(_gain(name, layer) / fan_in)
    return value.astype(np.float32)


def _gain(name: str, layer: str) -> float:
    if layer in _HEADS or layer.startswith(_HEAD_PREFIXES):
        return 0.02
    return 0.01 if name.startswith("ssd/") and "_net/" in name else 2.0


@dataclass(frozen=True)
class Golden:
    """What the original reported and where it ended."""

    rows: list[dict[str, float]]
    variables: dict[str, tuple[float, float]]
    """Norm of each variable after the last step, and of its difference from the first value."""
    averages: dict[str, tuple[float, float]]


def golden(name: str) -> Golden:
    """Reads the golden file of a case."""
    found = json.loads((GOLDENS / f"{name}.json").read_text())
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return Golden(rows, found["variables"], found["averages"])

"""Forward passes, losses and NMS on the accelerator, compared with what the original computed.

    python benchmarks/gpu.py --goldens

The goldens belong to the tests (`tests/goldens`): executed TF1 graphs with weights that follow
from the variables' names. Three arithmetics:

- `highest`: float32 throughout. The tests on a CPU have the same tolerances.
- `tensorfloat32`: what XLA takes for float32 on NVIDIA's GPUs by itself: products of 10 bits.
- `bfloat16`: activations of 8 bits, as the recipes train.

A value may be off by the tolerance times the deviation of its map; where there is none, by the
tolerance times itself. NMS has no products, so that it must agree to the last digits in any case.
Ends with 1 where anything is further off.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from measuring import show

from stillbox.models.build import build_detector
from stillbox.models.variables import bind_detector, split_detector
from tests import reference
from tests.boxes import golden
from tests.matched import loss_terms

# By arithmetic: of predictions, in deviations of their map, and of losses, in themselves.
_TOLERANCES = {
    "highest": (3e-3, 1e-3),
    "tensorfloat32": (1e-2, 2e-3),
    "bfloat16": (8e-2, 1e-2),
}
_RECIPES = (reference.SSD, reference.FPN, reference.RESNET)
_NMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "soft.5": {"soft_sigma": 0.5},
    "agnostic": {"class_agnostic": True},
}
_NMS_TOLERANCE = 1e-6


class Check(NamedTuple):
    """A comparison."""

    name: str
    """What is compared."""
    arithmetic: str
    """How it was computed."""
    off: float
    """The largest difference, in the unit of the tolerance."""
    tolerance: float
    """What is allowed."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: the smallest model only")
    tiny = parser.parse_args().tiny
    table = Table(title=f"goldens on {jax.devices()[0].device_kind}, jax {jax.__version__}")
    for column in ("what", "arithmetic", "off by", "allowed", ""):
        table.add_column(column)
    failed = 0
    for check in _checks(_RECIPES[:1] if tiny else _RECIPES):
        right = check.off <= check.tolerance
        failed += not right
        numbers = f"{check.off:.2g}", f"{check.tolerance:.2g}"
        table.add_row(check.name, check.arithmetic, *numbers, "" if right else "WRONG")
    show(table)
    print(f"{failed} comparisons are off" if failed else "all agree")
    raise SystemExit(bool(failed))


def _checks(recipes: tuple[str, ...]) -> Iterator[Check]:
    for recipe in recipes:
        for arithmetic in _TOLERANCES:
            yield from _forward(recipe, arithmetic)
    for name, options in _NMS.items():
        yield _nms(name, options)


def _forward(recipe: str, arithmetic: str) -> Iterator[Check]:
    """Compares predictions and losses of one model."""
    model = reference.model(recipe)
    dtype = jnp.bfloat16 if arithmetic == "bfloat16" else jnp.float32
    detector = build_detector(model, dtype=dtype)
    reference.load_deterministic_weights(detector, model)
    graph, params, stats = split_detector(detector)

    def forward(params: Any, stats: Any, batch: Any) -> Any:  # noqa: ANN401
        bound = bind_detector(graph, params, stats)
        predictions = bound(batch.images, train=False)
        losses = loss_terms(predictions, batch, detector.anchors, model)
        return predictions, losses, bound.regularization()

    batch = reference.batch(model.resizer.input_size[0])
    precision = "highest" if arithmetic == "highest" else "default"
    with jax.default_matmul_precision(precision):
        outputs = jax.jit(forward)(params, stats, batch)
    predictions, losses, penalty = jax.tree.map(np.asarray, outputs)
    theirs = reference.golden(recipe)["eval"]
    for_maps, for_losses = _TOLERANCES[arithmetic]
    boxes, logits = predictions.box_encodings, predictions.class_logits
    pairs = {
        "boxes": (
            (boxes[0, :3], theirs["box_img0_anchor0_3"]),
            (boxes[1, -2:], theirs["box_img1_last2"]),
            theirs["box_std"],
        ),
        "logits": (
            (logits[0, 0, :6], theirs["cls_img0_anchor0_first6"]),
            (logits[1, -1, :6], theirs["cls_img1_last_first6"]),
            theirs["cls_std"],
        ),
    }
    for name, (first, last, deviation) in pairs.items():
        off = max(np.abs(ours - np.asarray(computed)).max() for ours, computed in (first, last))
        yield Check(f"{recipe}: {name}", arithmetic, off / deviation, for_maps)
    for name, ours, expected in _losses(recipe, theirs, losses, penalty):
        yield Check(f"{recipe}: {name}", arithmetic, abs(ours / expected - 1), for_losses)


def _losses(
    recipe: str,
    theirs: dict[str, Any],
    losses: Any,  # noqa: ANN401
    penalty: np.ndarray,
) -> Iterator[tuple[str, float, float]]:
    if recipe == reference.SSD:
        values = golden.load("training_losses.json")["eval"]
        expected = values["localization_loss"], values["classification_loss"]
    else:
        known = theirs["loss"]
        expected = known["Loss/localization_loss"], known["Loss/classification_loss"]
    yield "localisation loss", float(losses.localization), expected[0]
    yield "classification loss", float(losses.classification), expected[1]
    yield "penalty", float(penalty), theirs["regularization_loss"]


def _nms(name: str, options: dict[str, Any]) -> Check:
    """Compares what is left of 200 boxes of 5 classes."""
    boxes, scores = (array[None] for array in golden.nms_inputs())
    limits = {"score_threshold": 0.1, "iou_threshold": 0.5, "max_per_class": 20, "max_total": 50}
    kept = jax.jit(lambda b, s: golden.nms(b, s, **limits, **options))(boxes, scores)
    kept = jax.tree.map(np.asarray, kept)
    expected = golden.load("boxes_nms.json")[name]
    if int(kept.count[0]) != expected["num"]:
        return Check(f"NMS, {name}", "", float("inf"), _NMS_TOLERANCE)
    off = max(
        np.abs(kept.scores[0, :8] - expected["scores8"]).max(),
        np.abs(kept.boxes[0, :3] - expected["boxes3"]).max(),
        np.abs(kept.classes[0, :8] - expected["classes8"]).max(),
        abs(kept.boxes.sum() / expected["box_sum"] - 1),
    )
    return Check(f"NMS, {name}", "", float(off), _NMS_TOLERANCE)


if __name__ == "__main__":
    main()

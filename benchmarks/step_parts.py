"""What a train step spends outside its convolutions, found by leaving things out.

    python benchmarks/ssd_resnet34.py --parts
    python benchmarks/retinanet.py --parts

Four programs take turns, so that all see the same moments of the machine. Each does less than the
one before, and a part is the difference of two:

    the step
      - the step with a weighted sum of the predictions as loss  = targets, losses, mining
      - forward and backward of the network, from a given gradient  = penalty, update, checks
      - the same without norms, biases, activations, pooling  = norms, biases, activations, pooling
    and the last program is the convolutions, with padding, the additions of residual connections
    and pyramids, enlarged maps, and the pixels' normalisation.

Anchors are constants of the compiled program: they are made before it and take no time in it.

All is the code of the training step, with some functions replaced while jax traces it. Differences
carry the noise of two measurements: on a busy machine a small part may come out below zero.
Therefore what can run on its own also does: the loss with its gradient by given predictions,
targets alone, and the update with a network that predicts nothing and gets the gradient of the
penalty alone.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from measuring import BOXES, TrainStep
from rich.table import Table

from stillbox.boxes.structures import Batch
from stillbox.experiment import schema
from stillbox.experiment.variants import implements
from stillbox.models.detector import LossInputs, LossOutput, Predictions
from stillbox.models.layers.conv import ConvLayer
from stillbox.models.layers.hyperparams import ACTIVATIONS
from stillbox.models.layers.lowering.pooling import max_pool
from stillbox.models.layers.norm import NormLayer
from stillbox.models.one_stage.loss import batch_targets, matched_loss
from stillbox.models.variables import Arrays, bind_detector, read_statistics
from stillbox.training import step as step_module

Run = Callable[[], float]


def measure_parts(
    experiment: schema.Experiment,
    batch_size: int,
    warm_up: int,
    rounds: int,
    boxes: int = BOXES,
) -> Table:
    """Returns the table of parts.

    Args:
        experiment: a recipe with a backbone that pools only to shrink, such as a ResNet.
        batch_size: images of a step.
        warm_up: rounds that do not count.
        rounds: rounds that do.
        boxes: of each image.
    """
    whole = TrainStep(experiment, batch_size, boxes)
    runs = _programs(whole, experiment, batch_size)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(warm_up + rounds):
        for name, run in runs.items():
            taken = run()
            if number >= warm_up:
                seconds[name].append(taken)
    title = f"parts of the step, {experiment.train.precision}, batch {batch_size}, {boxes} boxes"
    return _table(title, seconds)


def _table(title: str, seconds: dict[str, list[float]]) -> Table:
    table = Table(title=title)
    for column in ("part", "left out, s", "share", "on its own, s"):
        table.add_column(column, justify="right")
    step, no_loss, network, convolutions = (
        seconds[name] for name in ("step", "no loss", "network", "convolutions")
    )
    whole = statistics.median(step)

    def add(name: str, times: list[float], alone: str = "") -> None:
        left = statistics.median(times) if times else None
        shown = ("", "") if left is None else (f"{left:.3f}", f"{left / whole:.1%}")
        table.add_row(name, *shown, f"{statistics.median(seconds[alone]):.3f}" if alone else "")

    add("the step", step)
    add("convolutions", convolutions)
    add("all else", _less(step, convolutions))
    add("norms, biases, activations", _less(network, convolutions))
    add("targets, losses, mining", _less(step, no_loss), "losses")
    add("of that targets", [], "targets")
    add("penalty, update, checks", _less(no_loss, network), "update")
    return table


def _less(more: list[float], less: list[float]) -> list[float]:
    """Returns the differences round by round: what slows a whole round leaves them alone."""
    return [a - b for a, b in zip(more, less, strict=True)]


def _programs(whole: TrainStep, experiment: schema.Experiment, batch_size: int) -> dict[str, Run]:
    predictions = _predictions(whole, batch_size)
    with _loss_replaced(_weighted_sum(predictions)):
        no_loss = TrainStep(experiment, batch_size)
    with (
        _loss_replaced(_no_loss),
        mock.patch.object(step_module, "bind_detector", _without_network),
    ):
        update = TrainStep(experiment, batch_size)
    network = _network(whole, predictions)
    with _only_convolutions():
        convolutions = _network(whole, predictions)
    anchors, model = whole.detector.anchors, experiment.model

    def loss(predictions: Predictions, batch: Batch) -> jax.Array:
        output = matched_loss(model.loss, model, predictions, anchors, (), LossInputs(batch))
        return sum(output.terms.values(), jnp.zeros(()))

    return {
        "step": whole.run,
        "no loss": no_loss.run,
        "network": network,
        "convolutions": convolutions,
        "losses": _compiled(jax.value_and_grad(loss), predictions, whole.batch),
        "targets": _compiled(lambda batch: batch_targets(batch, anchors, model), whole.batch),
        "update": update.run,
    }


def _network(whole: TrainStep, gradient: Predictions) -> Run:
    """Returns a run of forward and backward, from the gradient by the predictions."""
    graph, names = whole.graph, whole.trainable

    def program(params: Arrays, stats: Arrays, images: jax.Array, gradient: Predictions) -> Any:  # noqa: ANN401
        trainable = {path: array for path, array in params.items() if path in names}
        frozen = {path: array for path, array in params.items() if path not in names}

        def forward(trainable: Arrays) -> tuple[Predictions, Arrays]:
            detector = bind_detector(graph, {**trainable, **frozen}, stats)
            return detector(images, train=True), read_statistics(detector)

        # The predictions are returned, or nobody would compute them.
        predictions, pull_back, stats_after = jax.vjp(forward, trainable, has_aux=True)
        return predictions, pull_back(gradient), stats_after

    # The step gives its own state away.
    params, stats = jax.tree.map(jnp.copy, (whole.state.params, whole.state.stats))
    return _compiled(program, params, stats, whole.batch.images, gradient)


def _compiled(function: Callable[..., Any], *arguments: Any) -> Run:  # noqa: ANN401
    compiled = jax.jit(function).lower(*arguments).compile()

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        return time.perf_counter() - began

    return run


def _predictions(whole: TrainStep, batch_size: int) -> Predictions:
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda images: whole.detector(images, train=False), whole.batch.images)
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape), s.dtype), shapes)


@contextmanager
def _loss_replaced(loss: Callable[..., LossOutput]) -> Iterator[None]:
    """Replaces the loss `matched` while a program is traced."""
    implements(schema.Loss)(loss)
    try:
        yield
    finally:
        implements(schema.Loss)(matched_loss)


def _weighted_sum(weights: Predictions) -> Callable[..., LossOutput]:
    """Returns a loss that is next to nothing, but needs every prediction."""

    def loss(_: object, __: object, predictions: Predictions, *given: Any) -> LossOutput:  # noqa: ANN401
        # Were it constant, the compiler would work out the gradients of the heads' biases.
        image_weight = jnp.asarray(given[-1].batch.image_weights)[0]
        products = jax.tree.map(lambda a, b: image_weight * jnp.vdot(a, b), predictions, weights)
        return LossOutput(products._asdict(), {}, {})

    return loss


def _no_loss(*_: object) -> LossOutput:
    return LossOutput({"loss": jnp.zeros(())}, {}, {})


def _without_network(*arguments: Any) -> Any:  # noqa: ANN401
    """Stands in for `bind_detector`; of the network the penalty and the statistics are left."""
    detector = bind_detector(*arguments)

    class Silent(type(detector)):  # type: ignore[misc]
        def __call__(self, *_: object, **__: object) -> None:
            return None

    detector.__class__ = Silent
    return detector


@contextmanager
def _only_convolutions() -> Iterator[None]:
    """Leaves out what stands between the convolutions while a program is traced."""

    def first_rows(x: jax.Array, _: int, stride: int, **__: object) -> jax.Array:
        height, width = (-(-side // stride) for side in x.shape[1:3])
        return x[:, :height, :width]

    def finish(layer: ConvLayer, product: jax.Array, **_: object) -> jax.Array:
        # What has a bias is float32 from here on.
        return product.astype(jnp.float32) if layer.bias is not None else product

    def same(_: NormLayer, x: jax.Array, *__: object, **___: object) -> jax.Array:
        return x

    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("stillbox.models") and getattr(module, "max_pool", None) is max_pool
    ]
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "max_pool", first_rows))
        stack.enter_context(mock.patch.object(ConvLayer, "_finish", finish))
        stack.enter_context(mock.patch.object(NormLayer, "__call__", same))
        identities = {name: lambda x: x for name in ACTIVATIONS}
        stack.enter_context(mock.patch.dict(ACTIVATIONS, identities))
        yield

"""Train steps per second of a recipe's model, beside the machine's matrix-product peak.

    python benchmarks/train_step.py [--recipe ssd_mobilenet_v1_300x300] [--side 300]
        [--batch-size 16] [--steps 5] [--precision float32] [--peer]

The real step: forward, targets, losses, backward, optimizer; synthetic images, already on the
device. The best of all steps counts, as does the best of all products, which are measured before
and after the steps: on a shared machine the peak moves. FLOPs are the model's: a multiply-add is
two, the backward pass costs twice the forward pass, and only convolutions count.
The peer is the same step with the convolutions that XLA chooses by itself.
"""

import argparse

import jax
from measuring import TrainStep, forward_flops, peak
from rich.console import Console
from rich.table import Table

from stillbox.cli.overrides import changes_of
from stillbox.devices.process import restart_with_large_pages
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.lowering import lowering


def main() -> None:
    """Prints the table."""
    restart_with_large_pages()  # as every command does
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="ssd_mobilenet_v1_300x300")
    parser.add_argument("--side", type=int, help="of the square network input; default: its own")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--peer", action="store_true", help="also XLA's own lowering: slow")
    arguments = parser.parse_args()
    device = jax.devices()[0]
    experiment = _experiment(arguments)
    side = experiment.model.resizer.input_size[0]
    batch = f"batch {arguments.batch_size}"
    table = Table(title=f"{arguments.recipe}, {side} px, {arguments.precision}, {batch}, {device}")
    for column in ("step", "s", "images/s", "GFLOP/s", "of the peak", "compiling, s"):
        table.add_column(column, justify="right")
    runs = {"stillbox": False} | ({"plain lowering": True} if arguments.peer else {})
    best = peak()
    measured = {name: _measure(experiment, arguments, plain) for name, plain in runs.items()}
    best = max(best, peak())
    for name, (seconds, compiling, flops) in measured.items():
        speed = flops / seconds / 1e9
        table.add_row(
            name,
            f"{seconds:.2f}",
            f"{arguments.batch_size / seconds:.1f}",
            f"{speed:.0f}",
            f"{speed / best:.0%}",
            f"{compiling:.0f}",
        )
    table.add_row("float32 matrix product", "", "", f"{best:.0f}", "100%", "")
    Console().print(table)


def _experiment(arguments: argparse.Namespace) -> schema.Experiment:
    overrides = [f"train.precision={arguments.precision}"]
    if arguments.side:
        sides = ("height", "width")
        overrides += [f"model.resizer.{name}={arguments.side}" for name in sides]
    return resolve(arguments.recipe, changes_of(overrides)).experiment


def _measure(
    experiment: schema.Experiment, arguments: argparse.Namespace, plain: bool
) -> tuple[float, float, float]:
    """Returns the seconds of the best step, the seconds of compiling, and the FLOPs of a step."""
    with lowering(portable=plain):
        step = TrainStep(experiment, arguments.batch_size)
    seconds = min(step.run() for _ in range(arguments.steps))
    return seconds, step.compiling, 3 * arguments.batch_size * forward_flops(step.detector)


if __name__ == "__main__":
    main()

"""`stillbox weights`: a trained model's weights for other programs."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_option, parse_step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `save`."""
    inner = parser.add_subparsers(dest="weights_verb", required=True)
    save = inner.add_parser(
        "save",
        help="as a TF1 checkpoint, .npz or .safetensors",
        description="Writes parameters and moving statistics under the names in the original's "
        "checkpoints; `stillbox` reads all three formats.",
    )
    save.add_argument("model_dir", type=Path, metavar="DIR", help="a model directory")
    save.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="PATH",
        help="model.npz, model.safetensors, or a TF1 checkpoint's prefix such as model.ckpt",
    )
    add_option(
        save,
        "--step",
        "best",
        "checkpoint: best, latest or a number",
        "STEP",
    )
    save.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(arguments: argparse.Namespace) -> int:
    """Writes the weights and prints a summary."""
    from stillbox.checkpoints.saving import save_weights

    saved = save_weights(
        arguments.model_dir,
        arguments.to,
        step=parse_step(arguments.step),
        overwrite=arguments.overwrite,
    )
    print(saved.render())
    return 0

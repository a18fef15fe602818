"""`stillbox pack`: write a trained model into one small file, or a folder, that every verb reads.

It holds the weights that evaluation uses, the experiment and the label map, and no state of the
optimizer and no records.
"""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_imports, parse_step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="a model directory, or one of its checkpoints"
    )
    parser.add_argument(
        "target",
        type=Path,
        metavar="TARGET",
        help="a new file whose name ends in .stillbox, or a new folder",
    )
    parser.add_argument(
        "--step",
        default="best",
        help="checkpoint of DIR: best, latest or a number (default: %(default)s)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the target")
    add_imports(parser)


def run(arguments: argparse.Namespace) -> int:
    """Packs the model and prints its size."""
    from stillbox.checkpoints.packed import pack_model

    step = parse_step(arguments.step)
    packed = pack_model(
        arguments.directory, arguments.target, step=step, overwrite=arguments.overwrite
    )
    print(packed.render())
    return 0

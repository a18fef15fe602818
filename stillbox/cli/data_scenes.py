"""`stillbox data scenes`: draw the synthetic data set of shapes."""

import argparse
import sys
from pathlib import Path

from stillbox.cli.arguments import add_option
from stillbox.printing import count_text


def add_scenes(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `data scenes`."""
    parser.add_argument("--output", required=True, type=Path, help="folder of the data set")
    add_option(parser, "--train", 600, "training scenes")
    add_option(parser, "--val", 100, "held-out scenes")
    add_option(parser, "--seed", 0, "of the random scenes")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing data set")


def run_scenes(arguments: argparse.Namespace) -> int:
    """Draws the scenes and prints a summary."""
    from stillbox.records.scenes import SceneSet, write_scenes

    def describe(name: str, scenes: SceneSet) -> str:
        boxes = ", ".join(f"{count} {label}" for label, count in scenes.boxes.items())
        return (
            f"{name}: {count_text(scenes.images, 'scene')}, {scenes.empty} of them empty; {boxes}"
        )

    print("drawing scenes", file=sys.stderr)
    written = write_scenes(
        arguments.output,
        seed=arguments.seed,
        train=arguments.train,
        val=arguments.val,
        overwrite=arguments.overwrite,
    )
    print(describe("train", written.train))
    print(describe("val", written.val))
    print(f"records, images and annotations are in {arguments.output}")
    return 0

"""`stillbox data scenes`: draw the embedded data set, which needs no download."""

import argparse
import sys
from pathlib import Path


def add_verb(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb to `stillbox data`."""
    parser = verbs.add_parser(
        "scenes", help="draw the embedded data set of shapes", description=__doc__
    )
    parser.add_argument("--output", required=True, type=Path, help="folder of the data set")
    parser.add_argument("--train", type=int, default=600, help="training scenes (default: 600)")
    parser.add_argument("--val", type=int, default=100, help="held-out scenes (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other scenes")
    parser.add_argument("--overwrite", action="store_true", help="replace a data set found there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draws the scenes and says what was drawn."""
    from stillbox.records.scenes import SceneSet, write_scenes

    def describe(name: str, scenes: SceneSet) -> str:
        boxes = ", ".join(f"{count} {label}" for label, count in scenes.boxes.items())
        return f"{name}: {scenes.images} scenes, {scenes.empty} of them empty; {boxes}"

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

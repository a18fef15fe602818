"""Fingerprints of experiments and of their programs, to show that a change changes none of them.

    python -m tools.programs RECIPE_OR_FILE ... > before
    python -m tools.programs RECIPE_OR_FILE ... > after
    diff before after

Each line has the SHA-256 of one text: of the experiment as `stillbox config` prints it, and, with
`--lower`, of the training and of the prediction step as StableHLO for one CPU, in which functions
have numbers in place of names. `--output FOLDER` keeps the texts. Without a name it takes every
recipe.
"""

import argparse
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import jax

from stillbox.devices.mesh import build_mesh
from stillbox.errors import UserError
from stillbox.evaluation.program import predict_program
from stillbox.experiment import schema
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.resolve import resolve
from stillbox.experiment.yaml_config import to_yaml
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program


def texts(name: str, *, lower: bool) -> Iterator[tuple[str, str]]:
    """Yields what is compared about an experiment: the name of each text, and the text."""
    try:
        resolved = resolve(name)
    except UserError as error:
        yield "refused", str(error)
        return
    remarks = "\n".join(map(str, (*resolved.notes, *resolved.warnings)))
    yield "config", to_yaml(resolved.experiment) + remarks
    if lower:
        yield from _programs(resolved.experiment)


def _programs(experiment: schema.Experiment) -> Iterator[tuple[str, str]]:
    mesh = build_mesh(1, schema.Devices(), jax.devices("cpu")[:1])
    yield "train", _numbered(train_program(plan_training(experiment, mesh)).lower().as_text())
    jax.clear_caches()
    yield "predict", _numbered(predict_program(experiment, mesh).lower().as_text())
    jax.clear_caches()


def _numbered(program: str) -> str:
    """Returns a program with numbers for the names of functions, in order of appearance."""
    numbers: dict[str, int] = {}
    return re.sub(r"@\w+", lambda match: f"@{numbers.setdefault(match[0], len(numbers))}", program)


def main() -> None:
    """Prints the fingerprints."""
    parser = argparse.ArgumentParser(prog="tools.programs")
    parser.add_argument("names", nargs="*", help="recipes and config files; default: every recipe")
    parser.add_argument("--lower", action="store_true", help="trace the programs, too")
    parser.add_argument("--output", type=Path, help="folder for the texts")
    arguments = parser.parse_args()
    for name in arguments.names or recipe_names():
        for kind, text in texts(name, lower=arguments.lower):
            print(hashlib.sha256(text.encode()).hexdigest()[:16], kind, name, flush=True)
            if arguments.output is not None:
                arguments.output.mkdir(parents=True, exist_ok=True)
                (arguments.output / f"{Path(name).name}.{kind}.txt").write_text(text)


if __name__ == "__main__":
    main()

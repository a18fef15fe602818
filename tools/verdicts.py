"""The pages of verdicts: every recipe, compiled for one kind of accelerator.

    python -m tools.verdicts docs/tpu_verdicts.md v5e:2x4
    python -m tools.verdicts docs/gpu_verdicts.md h200:8

Each recipe is compiled by `stillbox check` in a process of its own, the smallest images first.
Finished rows are kept in a JSON file beside the page, so that a stopped run continues with the next
recipe. Recipes named after the target are compiled again.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from stillbox.checkpoints.files import replace_durably
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.resolve import resolve
from stillbox.printing import size_text


@dataclass(frozen=True)
class Page:
    """A page and the accelerator that it is about."""

    target: str
    """As `--target` takes it."""
    devices: int
    """How many devices the target has."""
    package: str
    """The package with the compiler."""
    title: str
    """Heading of the page."""
    slot: str
    """The word for one device."""
    compiler: str
    """A phrase: the compiler and the devices."""
    caution: str
    """What the verdicts leave open."""


PAGES = {
    page.target: page
    for page in (
        Page(
            target="v5e:2x4",
            devices=8,
            package="libtpu",
            title="What the TPU compiler says about every recipe",
            slot="chip",
            compiler="the compiler of TPUs for v5e:2x4, a slice of 8 chips with 15.75 GiB each for "
            "a program",
            caution="**Nothing here was run on a TPU.**",
        ),
        Page(
            target="h200:8",
            devices=8,
            package="jax-cuda13-plugin",
            title="What XLA's compiler for GPUs says about every recipe",
            slot="GPU",
            compiler="XLA for h200:8, eight H200 of one machine, of whose memory JAX takes 105.75 "
            "GiB each",
            caution="**Nothing here was run on a GPU**, and the scratch memory of cuDNN's "
            "convolutions is not in it, because that is decided on the GPU.",
        ),
    )
}

_BFLOAT16 = ("train.precision=bfloat16", "evaluation.precision=bfloat16")
_COLUMNS = (
    "recipe",
    "input",
    "batch",
    "memory of a {slot}",
    "left",
    "GFLOP an image",
    "sums of a step",
    "images/s at most",
    "evaluation: batch, memory",
    "prediction",
    "compiled in",
    "on, with",
)
_HEAD = """# {title}

Each recipe of this release, its steps compiled in bfloat16 by {compiler}. This page is made by
`python -m tools.verdicts`; one row is what
`stillbox check RECIPE --target {target} {changes}`
says, and [accelerators.md](accelerators.md) says what
that means. Without the two changes the precisions are the recipe's own, mostly float32.
{caution} "Images/s at most" is an estimate from published
peaks, which no program reaches.

The batch is the recipe's over all {slot}s, rounded up to a multiple of {devices}. Where another
number follows it, the recipe's own batch does not fit and that one does; `--find-batch` finds out
whether a batch in between fits too.

"""

Row = dict[str, Any]
Check = Callable[[str, Sequence[str]], Row]


def run_check(recipe: str, arguments: Sequence[str]) -> Row:
    """Returns the JSON of `stillbox check RECIPE ARGUMENTS` about its target.

    Raises:
        RuntimeError: the command ended without a verdict.
    """
    words = ["check", recipe, "--no-records", "--json", *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "stillbox.cli.main", *words], stdout=subprocess.PIPE, check=False
    )
    content: Row = json.loads(done.stdout or "{}")
    if "target" not in content:
        raise RuntimeError(f"stillbox {' '.join(words)} ended with {done.returncode}")
    verdict: Row = content["target"]
    return verdict


def make_row(recipe: str, about: Page, check: Check = run_check) -> Row:
    """Compiles a recipe at its own batch, and at smaller ones where that does not fit."""
    experiment = resolve(recipe).experiment
    full = _multiple(experiment.train.batch_size, about.devices)
    scored = _multiple(experiment.evaluation.batch_size, about.devices)

    def attempt(batch: int) -> Row:
        overrides = (
            *_BFLOAT16,
            f"train.batch_size={batch}",
            f"evaluation.batch_size={scored}",
        )
        sets = [word for override in overrides for word in ("--set", override)]
        return check(recipe, ["--target", about.target, *sets])

    batch, verdict = full, attempt(full)
    while (needed := verdict["steps"][0]["bytes_needed_per_device"]) and batch > about.devices:
        batch = _smaller(batch, verdict["usable_bytes_per_device"] / needed, about.devices)
        verdict = attempt(batch)
    return {
        "recipe": recipe,
        "input": list(experiment.model.resizer.input_size),
        "own_batch": experiment.train.batch_size,
        "asked_batch": full,
        "date": date.today().isoformat(),
        "jax": jax.__version__,
        "compiler": f"{about.package} {metadata.version(about.package)}",
        "verdict": verdict,
    }


def _smaller(batch: int, share: float, devices: int) -> int:
    """Returns the multiple of `devices` below the share of a batch that there is memory for."""
    return max(int(batch * min(share, 0.99)) // devices, 1) * devices


def _multiple(batch: int, devices: int) -> int:
    return -(-batch // devices) * devices


def write_page(rows: dict[str, Row], about: Page) -> str:
    """Returns the page; below the table it names recipes without a row."""
    facts = vars(about) | {"changes": " ".join(f"--set {change}" for change in _BFLOAT16)}
    lines = [_line(_COLUMNS).format(**facts), _line("---" for _ in _COLUMNS)]
    lines += [_line(_cells(rows[recipe])) for recipe in in_order() if recipe in rows]
    missing = [f"`{recipe}`" for recipe in in_order() if recipe not in rows]
    after = [f"\nNot yet compiled: {', '.join(missing)}."] if missing else []
    refused = [
        f"\n`{recipe}`, {step['step']}: {step['refused']}."
        for recipe, row in rows.items()
        for step in row["verdict"]["steps"]
        if not step["fits"]
    ]
    return _HEAD.format(**facts) + "\n".join([*lines, *refused, *after]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row) -> list[str]:
    train, evaluate, predict = row["verdict"]["steps"]
    batch = str(row["asked_batch"])
    if train["images"] != row["asked_batch"]:
        batch += f" -> {train['images']}"
    seconds = sum(step["compile_seconds"] for step in row["verdict"]["steps"])
    return [
        f"`{row['recipe']}`",
        " x ".join(map(str, row["input"])),
        batch,
        _memory(train, "total"),
        _memory(train, "left"),
        f"{train['flops_per_image'] / 1e9:,.1f}" if train["fits"] else "-",
        size_text(sum(train["collective_bytes_per_device"].values())) if train["fits"] else "-",
        f"{train['images_per_second_at_most']:,.0f}" if train["fits"] else "-",
        f"{evaluate['images']}, {_memory(evaluate, 'total')}",
        _memory(predict, "total"),
        f"{seconds:,.0f} s",
        f"{row['date']}, jax {row['jax']}, {row['compiler']}",
    ]


def _memory(step: Row, part: str) -> str:
    return size_text(step["memory_per_device"][part]) if step["fits"] else "does not fit"


def in_order() -> list[str]:
    """Returns all recipes, those with the smallest images first."""

    def pixels(name: str) -> int:
        height, width = resolve(name).experiment.model.resizer.input_size
        return height * width

    return sorted(recipe_names(), key=lambda name: (pixels(name), name))


def main(page: Path, about: Page, again: Sequence[str] = ()) -> None:
    """Compiles the recipes that a page lacks, one after the other."""
    kept = page.with_suffix(".json")
    rows: dict[str, Row] = json.loads(kept.read_text()) if kept.is_file() else {}
    for recipe in in_order():
        if recipe not in rows or recipe in again:
            print(recipe, flush=True)
            rows[recipe] = make_row(recipe, about)
            replace_durably(kept, json.dumps(rows, indent=1) + "\n")
        replace_durably(page, write_page(rows, about))


if __name__ == "__main__":
    main(Path(sys.argv[1]), PAGES[sys.argv[2]], sys.argv[3:])

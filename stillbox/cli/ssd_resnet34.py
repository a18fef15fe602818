"""`stillbox ssd_resnet34`: SSD ResNet-34's own command line.

Flags become overrides of the recipe `ssd_resnet34`; `stillbox train`, `evaluate` and `predict` do
the same with stillbox's own options. Training resumes the run in --model_dir, up to --epochs.
"""

import argparse
import shlex
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from stillbox.cli.arguments import add_overrides, add_processes, note
from stillbox.cli.running import batch_profiler, run_training, say, score_checkpoints
from stillbox.cli.ssd_resnet34_flags import add_flags, check_flags
from stillbox.cli.ssd_resnet34_overrides import (
    evaluation_overrides,
    note_size,
    training_overrides,
)
from stillbox.devices.announcing import say_aside
from stillbox.experiment.resolve import resolve
from stillbox.printing import printable_line

if TYPE_CHECKING:
    from stillbox.evaluation.scores import Scores


_RECIPE = "ssd_resnet34"
_RESULTS = "eval"
_SHOWN = 10
_PICTURE = Path("out.png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_flags(parser)
    add_overrides(parser)
    add_processes(parser)


def run(arguments: argparse.Namespace) -> int:
    """Trains, evaluates or predicts."""
    check_flags(arguments)
    if arguments.inference is not None:
        return _predict(arguments)
    if arguments.mode == "eval":
        return _evaluate(arguments)
    return _train(arguments)


def _train(arguments: argparse.Namespace) -> int:
    overrides = training_overrides(arguments)
    if arguments.mode == "train_and_eval":
        overrides += evaluation_overrides(arguments)
        every = next(text for text in overrides if text.startswith("train.checkpoint_every="))
        overrides.append(every.replace("checkpoint", "evaluate"))
    arguments.config, arguments.overrides = _RECIPE, [*overrides, *arguments.overrides]
    words = ["stillbox", "train", _RECIPE, "--model-dir", str(arguments.model_dir)]
    words += [word for text in arguments.overrides for word in ("--set", text)]
    note(f"these flags are short for\n  {shlex.join(words)}")
    resolved = resolve(arguments.config, arguments.overrides)
    note_size(resolved.experiment, arguments)
    return run_training(resolved, arguments.model_dir, profile=arguments.profile)


def _evaluate(arguments: argparse.Namespace) -> int:
    """Scores every checkpoint of the model directory without scores."""
    from stillbox.checkpoints.model_directory import ModelDirectory
    from stillbox.evaluation.history import HISTORY, read_history
    from stillbox.experiment.resolve import with_overrides
    from stillbox.training.watching import Patience

    directory = ModelDirectory.open(arguments.model_dir)
    overrides = [*evaluation_overrides(arguments), *arguments.overrides]
    experiment = with_overrides(directory.read_experiment(say_aside), overrides)

    def report(step: int, scores: "Scores") -> None:
        for name, value in scores.summary.items():
            say(f"  {name:6s} {_number(value)}")
        say(f"Current AP: {_number(scores.summary['AP'])}")

    results, patience = arguments.model_dir / _RESULTS, Patience(existing=True)
    profile = arguments.profile
    score_checkpoints(experiment, arguments.model_dir, results, patience, profile, on_scores=report)
    # Scores of earlier calls too.
    for step, summary in read_history(results / HISTORY).evaluations:
        say(f"COCO/AP value for step {step} = {_number(summary['AP'])}")
    return 0


def _number(value: float | None) -> str:
    return "no such boxes" if value is None else f"{value:.5f}"


def _predict(arguments: argparse.Namespace) -> int:
    """Prints the best detections of one image and draws them."""
    from stillbox.api import load
    from stillbox.predicting.images import read_image
    from stillbox.predicting.selection import Selection

    predictor = load(arguments.model_dir, step="latest", overrides=arguments.overrides)
    with batch_profiler(arguments.profile, arguments.model_dir, "predict") as profiler:
        # As in the original: every detection.
        everything = Selection(min_score=0, classes_per_object="all")
        (found,) = predictor.detect(
            [arguments.inference], read_image, everything, observer=profiler
        )
    for one in islice(found, _SHOWN):
        ymin, xmin, ymax, xmax = one.box
        corners = f"({xmin:.0f},{ymin:.0f}) ({xmax:.0f},{ymax:.0f})"
        print(f"{one.score:.3f} ({one.class_id}) {printable_line(one.name)} {corners}")
    if not len(found):
        print("nothing found")
    found.save(_PICTURE, min_score=0.0, max_boxes=_SHOWN)
    print(f"picture: {_PICTURE}")
    return 0

"""`stillbox model_garden`: the training program of TensorFlow Model Garden, for RetinaNet.

Its experiment becomes an equivalent experiment of stillbox; `stillbox train` and `evaluate` do the
same with stillbox's own options. Training resumes the run in --model_dir. Names and defaults of the
flags are those of `official/vision/train.py` (tensorflow/models).
"""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_overrides, add_processes, add_profile, show_remarks
from stillbox.cli.original_flags import Flag, add_flags, explain_flags
from stillbox.cli.running import run_training, score_checkpoints, training_place
from stillbox.experiment.model_garden import EXPERIMENTS, GardenReading, read_garden, resolved_text
from stillbox.experiment.resolve import Resolved, resolve_reading

_ONE_PROGRAM = "all devices that JAX finds run one synchronous program"
_MODES = ("train", "eval", "train_and_eval", "continuous_eval", "continuous_train_and_eval")
_FLAGS = (
    Flag("experiment", ", ".join(EXPERIMENTS), required=True, metavar="NAME"),
    Flag(
        "mode",
        "eval scores the newest checkpoint of --model_dir, continuous_eval each new one",
        choices=_MODES,
        required=True,
    ),
    Flag("model_dir", "folder of all results", Path, required=True, metavar="DIR"),
    Flag(
        "params_override",
        "fields over those of the files: YAML, JSON, `a.b=1,c.d=2`, or a file of them",
        default="",
        metavar="TEXT",
    ),
    Flag("tpu", note=_ONE_PROGRAM),
    Flag("tf_data_service", note="images are decoded on this machine"),
    Flag("tpu_platform", note=_ONE_PROGRAM),
    Flag("gin_file", refusal="write fields of the experiment, --params_override"),
    Flag("gin_params", refusal="write fields of the experiment, --params_override"),
)
_PARAMS = "params.yaml"
_RESULTS = "validation"
_TIMEOUT = "trainer.continuous_eval_timeout"


def add_config_files(parser: argparse.ArgumentParser) -> None:
    """Adds --config_file, which may be given several times."""
    parser.add_argument(
        "--config_file",
        action="append",
        default=[],
        metavar="YAML",
        help="fields over the experiment's defaults; of several files the last counts",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_flags(parser, _FLAGS)
    add_config_files(parser)
    add_profile(parser, "steps, or batches of the evaluation,", "the model directory")
    add_overrides(parser)
    add_processes(parser)


def run(arguments: argparse.Namespace) -> int:
    """Trains or evaluates."""
    explain_flags(arguments, _FLAGS)
    reading = read_garden(
        experiment=arguments.experiment,
        config_files=arguments.config_file,
        params_override=arguments.params_override,
        used=(_TIMEOUT,),
    )
    if arguments.mode in ("eval", "continuous_eval"):
        return _evaluate(arguments, reading)
    return _train(arguments, reading)


def _train(arguments: argparse.Namespace, reading: GardenReading) -> int:
    from stillbox.checkpoints.files import replace_durably
    from stillbox.devices.job import is_main_process
    from stillbox.records.files import make_folder

    changes = []
    if arguments.mode == "train":
        changes = ["train.evaluate_every=0", "data.evaluation.paths=[]"]
    resolved = _resolve(arguments, reading, changes)
    with training_place(arguments.model_dir) as place:
        if is_main_process():
            folder = make_folder(place.folder, below=place.folder)
            replace_durably(folder / _PARAMS, resolved_text(reading.params))
        return run_training(resolved, place, profile=arguments.profile)


def _resolve(arguments: argparse.Namespace, reading: GardenReading, changes: list[str]) -> Resolved:
    source = str(arguments.config_file[-1]) if arguments.config_file else "--params_override"
    return resolve_reading(reading, [*changes, *arguments.overrides], source)


def _evaluate(arguments: argparse.Namespace, reading: GardenReading) -> int:
    """Scores the newest checkpoint, or each new one until that of the last step."""
    resolved = _resolve(arguments, reading, [])
    show_remarks(resolved, resolved.warnings)

    from stillbox.training.watching import WatchPolicy

    patience = WatchPolicy(
        once=arguments.mode == "eval",
        last_step=resolved.experiment.train.steps,
        timeout=reading.params.value(_TIMEOUT),
    )
    output = arguments.model_dir / _RESULTS
    score_checkpoints(resolved.experiment, arguments.model_dir, output, patience, arguments.profile)
    return 0

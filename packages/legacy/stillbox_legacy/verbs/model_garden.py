"""`stillbox model_garden`: the training program of TensorFlow Model Garden, with its flags.

Flags have the names and defaults of `official/vision/train.py` (tensorflow/models).
"""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_overrides, add_processes, add_profile
from stillbox.cli.official_models import add_config_files, evaluate_run, train_run
from stillbox.cli.original_flags import Flag, add_flags, explain_flags
from stillbox_legacy.model_garden import EXPERIMENTS, read_garden, resolved_text

_ONE_PROGRAM = "all devices that JAX finds run one synchronous program"
_MODES = ("train", "eval", "train_and_eval", "continuous_eval", "continuous_train_and_eval")
_GARDEN = (
    Flag("experiment", ", ".join(EXPERIMENTS), required=True, metavar="NAME"),
    Flag("mode", "eval scores the newest checkpoint of --model_dir, continuous_eval each new one",
         choices=_MODES, required=True),
    Flag("model_dir", "folder of all results", Path, required=True, metavar="DIR"),
    Flag("params_override",
         "fields over those of the files: YAML, JSON, `a.b=1,c.d=2`, or a file of them", default="",
         metavar="TEXT"),
    Flag("tpu", note=_ONE_PROGRAM),
    Flag("tf_data_service", note="images are decoded on this machine"),
    Flag("tpu_platform", note=_ONE_PROGRAM),
    Flag("gin_file", refusal="write fields of the experiment, --params_override"),
    Flag("gin_params", refusal="write fields of the experiment, --params_override"),
)  # fmt: skip
_TIMEOUT = "trainer.continuous_eval_timeout"


def add_model_garden(parser: argparse.ArgumentParser) -> None:
    """`stillbox model_garden`: the training program of TensorFlow Model Garden, for RetinaNet.

    Its experiment becomes an equivalent experiment of stillbox; `stillbox train` and `evaluate` do
    the same with stillbox's own options. Training resumes the run in --model_dir. Flags have
    the names and defaults of `official/vision/train.py` (tensorflow/models).
    """
    add_flags(parser, _GARDEN)
    add_config_files(parser)
    add_profile(parser, "steps, or batches of the evaluation,", "the model directory")
    add_overrides(parser)
    add_processes(parser)


def run_model_garden(arguments: argparse.Namespace) -> int:
    """Trains or evaluates."""
    explain_flags(arguments, _GARDEN)
    reading = read_garden(
        experiment=arguments.experiment,
        config_files=arguments.config_file,
        params_override=arguments.params_override,
        used=(_TIMEOUT,),
    )
    if arguments.mode in ("eval", "continuous_eval"):
        timeout = reading.params.value(_TIMEOUT)
        once = arguments.mode == "eval"
        return evaluate_run(arguments, reading, "validation", once=once, timeout=timeout)
    changes = dict[str, object]()
    if arguments.mode == "train":
        changes = {"train.evaluate_every": 0, "data.evaluation.paths": []}
    return train_run(arguments, reading, resolved_text(reading.params), changes)

"""The flags of tpu/models' `models/official/detection/main.py`, with its names and defaults."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_option, add_switch, note, warn

MODES = ("train", "eval", "train_and_eval", "predict")

_DEVICES = "all devices that JAX finds are used, and a batch is split over them"
# Flags that request what is always done, or what does not apply here.
_MACHINES = {
    "tpu": _DEVICES,
    "num_cores": _DEVICES,
    "gcp_project": _DEVICES,
    "tpu_zone": _DEVICES,
    "tpu_job_name": _DEVICES,
    "eval_master": "training and evaluation run in this process",
}
# Flags that the original never reads, and the parameter that it reads in their place.
_UNREAD = {
    "data_dir": "train.train_file_pattern and eval.eval_file_pattern",
    "train_batch_size": "train.train_batch_size",
    "train_steps": "train.total_steps",
    "eval_batch_size": "eval.eval_batch_size",
    "skip_host_call": "enable_summary",
    "iterations_per_loop": "train.iterations_per_loop",
    "precision": "architecture.use_bfloat16",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds all flags to the parser."""
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="train",
        help="eval scores new checkpoints of --model_dir; predict writes detections "
        "(default: train)",
    )
    parser.add_argument(
        "--model_dir", type=Path, required=True, metavar="DIR", help="folder of all results"
    )
    about = "model whose defaults the parameters have"
    add_option(parser, "--model", "retinanet", about, "NAME")
    parser.add_argument(
        "--config_file", metavar="YAML", help="parameters that differ from the defaults"
    )
    parser.add_argument(
        "--params_override",
        default="",
        metavar="TEXT",
        help="parameters that differ from those: YAML, JSON, `a.b=1,c.d=2`, or a file of them",
    )
    add_switch(parser, "eval_after_training", "score the last checkpoint of --mode train")
    add_switch(parser, "use_tpu", f"accepted: {_DEVICES}")
    for name, sentence in _MACHINES.items():
        parser.add_argument(f"--{name}", metavar="X", help=f"accepted: {sentence}")
    for name, key in _UNREAD.items():
        about = f"accepted: without effect, as in the original, which reads {key}"
        parser.add_argument(f"--{name}", metavar="X", nargs="?", const="true", help=about)


def explain_flags(arguments: argparse.Namespace) -> None:
    """Prints which of the given flags have another effect here, or none."""
    sentences: dict[str, list[str]] = {}
    for name, sentence in _MACHINES.items():
        if getattr(arguments, name) is not None:
            sentences.setdefault(sentence, []).append(f"--{name}")
    for sentence, names in sentences.items():
        note(f"{', '.join(names)}: {sentence}")
    for name, key in _UNREAD.items():
        if getattr(arguments, name) is not None:
            warn(f"--{name} has no effect, as in the original; say it in --params_override: {key}")

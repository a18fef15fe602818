"""The flags of SSD ResNet-34's original script, and what they mean for an experiment.

Source: SSD ResNet-34 fact sheet 1.1. Names and defaults are the original's.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from stillbox.errors import UserError
from stillbox.records.label_map import LabelMap

_GREATEST_EPOCH_OF_FULL_RATE, _LAST_EPOCH_OF_DECAY = 15, 55
_IMAGES_OF_BASE_RATE = 32
# 1.01 and .01 times the rate: the original adds a hundredth to its warm-up and to its cosine.
_PEAK, _FLOOR = 1.01, 0.01
_TORCH_SUFFIXES = (".pth", ".pt", ".safetensors")

# What they ask for is so in any case, or is not a matter of this program.
_SWITCHES = {
    "no_hpu": "this runs on the devices that JAX finds, whatever they are",
    "distributed_bn": "batch norm takes its statistics from the global batch in any case",
    "vis_dataloader": "the first batch is drawn into TensorBoard in any case",
    "use_cocoeval_cc": "COCO's numbers are computed by a compiled library in any case",
}
_VALUES = {
    "recipe_cache": "compiled programs are kept in stillbox's own cache, see `stillbox doctor`",
    "hvd_workers": "it was for a launcher of the original's",
    "num_workers_per_hls": "it was for a launcher of the original's",
    "kubernetes_run": "it was for a launcher of the original's",
}
_HIDDEN = ("hvd_workers", "num_workers_per_hls", "kubernetes_run")
_WORLD_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds all flags to the parser."""
    _add_run(parser)
    _add_recipe(parser)
    _add_data(parser)
    for name, sentence in _SWITCHES.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"accepted: {sentence}")
    for name, sentence in _VALUES.items():
        about = argparse.SUPPRESS if name in _HIDDEN else f"accepted: {sentence}"
        parser.add_argument(f"--{name}", help=about, metavar="X")
    parser.add_argument("--static", action="store_true", help=argparse.SUPPRESS)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=("train", "eval", "train_and_eval"),
        default="train",
        help="eval scores all checkpoints of --model_dir; train_and_eval each as it is written "
        "(default: train)",
    )
    parser.add_argument("--inference", type=Path, metavar="IMAGE", help="detect in one image")
    _add(parser, "--model_dir", Path("/tmp/ssd"), "where everything goes", "DIR")
    parser.add_argument(
        "--use_horovod", action="store_true", help="with one process, which uses all devices"
    )
    _add(parser, "--profile", "0,0", "trace steps A to B of this run; 0,0 traces none", "A,B")
    _add(parser, "--log_step_count_steps", 1, "steps between two lines", short="-v")
    _add(parser, "--save_summary_steps", 1, "steps between two entries for TensorBoard")
    about = "epochs between two checkpoints"
    _add(parser, "--save_checkpoints_epochs", 5.0, about, "EPOCHS", short="-c")
    _add(parser, "--keep_ckpt_max", 20, "newest checkpoints that are kept")


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-d",
        "--dtype",
        choices=("bf16", "fp32"),
        default="bf16",
        help="of activations in training (default: bf16)",
    )
    _add(parser, "--batch_size", 128, "images of a step", short="-b")
    _add(parser, "--epochs", 50.0, "epochs in all, resumed or not", "EPOCHS", short="-e")
    _add(parser, "--steps", 0, "train so many steps instead of --epochs", short="-s")
    _add(parser, "--base_lr", 3e-3, "learning rate for 32 images", "RATE")
    _add(parser, "--lr_warmup_epoch", 7.0, "length of the warm-up", "EPOCHS")
    _add(parser, "--k", 0, "the cosine goes from epoch 15 to 55, times 1 + k / 10")
    _add(parser, "--weight_decay", 5e-4, "of kernels and biases", "X")
    about = (
        "weights of the backbone: a TF1 checkpoint or torchvision's .pth or .safetensors; '' for "
        "random ones"
    )
    _add(parser, "--resnet_checkpoint", "/data/ssd_r34-mlperf", about, "PATH")


def _add_data(parser: argparse.ArgumentParser) -> None:
    about = "records train* and val*, and label_map.pbtxt unless the classes are COCO's"
    _add(parser, "--data_dir", Path("/data/coco2017/ssd_tf_records"), about, "DIR")
    parser.add_argument("-f", "--use_fake_data", action="store_true", help="repeat one batch")
    _add(parser, "--eval_samples", 5000, "images that are scored at most")
    _add(parser, "--num_examples_per_epoch", 117266, "images that an epoch counts")
    _add(parser, "--max_cpus", 16, "bound of the threads that decode and augment")
    _add(parser, "--num_parallel_calls", 64, "another bound of them")
    _add(parser, "--threadpool_size", 0, "a third one; 0 sets none")


def _add(
    parser: argparse.ArgumentParser,
    name: str,
    default: float | str | Path,
    about: str,
    metavar: str = "N",
    short: str | None = None,
) -> None:
    """Adds a flag of its default's type, whose help says the default."""
    names = (short, name) if short else (name,)
    about = f"{about} (default: {default})"
    parser.add_argument(*names, type=type(default), default=default, help=about, metavar=metavar)


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuses what cannot be done, and says what flags mean here that meant something else.

    Raises:
        UserError: a flag cannot be honoured, or has no sensible value.
    """
    if arguments.static:
        raise UserError(
            "--static is not supported: its files hold targets for one size of batch",
            fix="--use_fake_data measures a step without the input pipeline; decoded images are "
            "kept in memory in any case",
        )
    for name in ("batch_size", "num_examples_per_epoch", "save_checkpoints_epochs", "max_cpus"):
        if getattr(arguments, name) <= 0:
            raise UserError(f"--{name} is {getattr(arguments, name)}", fix="give one above 0")
    if arguments.lr_warmup_epoch > _GREATEST_EPOCH_OF_FULL_RATE * _stretch(arguments):
        raise UserError(
            f"the warm-up ends at epoch {arguments.lr_warmup_epoch:g}, after the decay begins at "
            f"{_GREATEST_EPOCH_OF_FULL_RATE * _stretch(arguments):g}",
            where="--lr_warmup_epoch",
            fix="shorten it, or raise --k",
        )
    if arguments.use_horovod:
        _check_processes()
    for name, sentence in (_SWITCHES | _VALUES).items():
        if getattr(arguments, name) not in (None, False):
            _note(f"--{name}: {sentence}")


def _check_processes() -> None:
    for variable in _WORLD_SIZES:
        if int(os.environ.get(variable, "1")) > 1:
            raise UserError(
                f"{os.environ[variable]} processes were started ({variable})",
                where="--use_horovod",
                fix="start one: it uses all devices of this machine",
            )
    _note("--use_horovod: one process uses all devices of this machine")


def steps_per_epoch(arguments: argparse.Namespace) -> int:
    """Returns how many batches an epoch has; the last one is full, too."""
    return math.ceil(arguments.num_examples_per_epoch / arguments.batch_size)


def training_overrides(arguments: argparse.Namespace) -> list[str]:
    """Returns what the flags change in the recipe `ssd_resnet34` for training.

    Raises:
        UserError: records or weights are not there.
    """
    epoch = steps_per_epoch(arguments)
    changes = {
        "train.batch_size": arguments.batch_size,
        "train.steps": arguments.steps or int(arguments.epochs) * epoch,
        "train.precision": {"bf16": "bfloat16", "fp32": "float32"}[arguments.dtype],
        "train.log_every": arguments.log_step_count_steps,
        "train.summary_every": arguments.save_summary_steps,
        "train.checkpoint_every": max(round(arguments.save_checkpoints_epochs * epoch), 1),
        "train.keep_checkpoints": arguments.keep_ckpt_max,
        "data.repeat_first_batch": str(arguments.use_fake_data).lower(),
        "data.workers": _workers(arguments),
        **{f"model.{part}.conv.regularizer.weight": arguments.weight_decay for part in _PARTS},
    }
    schedule = [
        f"train.optimizer.schedule.{name}={value}" for name, value in _schedule(arguments, epoch)
    ]
    texts = [f"{path}={value}" for path, value in changes.items()]
    weights = list(_weights(arguments.resnet_checkpoint, arguments.model_dir))
    return [*texts, *schedule, *_records(arguments.data_dir, "train"), *weights]


_PARTS = ("backbone", "neck", "head")


def evaluation_overrides(arguments: argparse.Namespace) -> list[str]:
    """Returns what the flags change for scoring.

    Raises:
        UserError: there are no records.
    """
    return [
        f"evaluation.batch_size={arguments.batch_size}",
        f"evaluation.max_examples={arguments.eval_samples}",
        f"data.workers={_workers(arguments)}",
        *_records(arguments.data_dir, "evaluation"),
    ]


def _stretch(arguments: argparse.Namespace) -> float:
    return float(1 + arguments.k / 10)


def _schedule(arguments: argparse.Namespace, epoch: int) -> Iterator[tuple[str, float]]:
    """Yields the fields of the cosine schedule (SSD ResNet-34 fact sheet 5.1)."""
    rate = arguments.base_lr * arguments.batch_size / _IMAGES_OF_BASE_RATE
    warmup = round(arguments.lr_warmup_epoch * epoch)
    start = round(_GREATEST_EPOCH_OF_FULL_RATE * _stretch(arguments) * epoch)
    yield "learning_rate", _PEAK * rate
    yield "final_learning_rate", _FLOOR * rate
    yield "warmup_steps", warmup
    yield "hold_steps", start - warmup
    yield "total_steps", round(_LAST_EPOCH_OF_DECAY * _stretch(arguments) * epoch)


def _workers(arguments: argparse.Namespace) -> int:
    bounds = [arguments.max_cpus, arguments.num_parallel_calls, os.cpu_count() or 1]
    return max(min(filter(None, [*bounds, arguments.threadpool_size])), 1)


def _records(folder: Path, name: str) -> Iterator[str]:
    """Yields the paths of the records, their label map and the number of its classes."""
    prefix = {"train": "train", "evaluation": "val"}[name]
    files = sorted(
        path
        for path in folder.glob(f"{prefix}*")
        if path.is_file() and ("-of-" in path.name or path.suffix in (".tfrecord", ".record"))
    )
    if not files:
        raise UserError(
            f"there are no records {prefix}*",
            where=str(folder),
            fix="make them with `stillbox data convert coco`, and say where in --data_dir",
        )
    own = folder / "label_map.pbtxt"
    label_map = str(own) if own.is_file() else "coco"
    yield f"data.{name}.paths={json.dumps([str(path) for path in files])}"
    yield f"data.{name}.label_map={json.dumps(label_map)}"
    yield f"model.num_classes={len(LabelMap.from_file(label_map))}"


def _weights(checkpoint: str, model_directory: Path) -> Iterator[str]:
    """Yields where the backbone's first weights come from, and what follows from that."""
    if not checkpoint:
        _note(
            "--resnet_checkpoint is empty: all layers start from random weights and are trained; "
            "on COCO that ends at an AP of about .17"
        )
        yield "train.freeze=[]"
        return
    from stillbox.checkpoints.model_directory import is_model_directory

    path = Path(checkpoint)
    found = path.exists() or Path(f"{path}.index").is_file()
    if not found and not is_model_directory(model_directory):
        raise UserError(
            "there are no such weights",
            where=f"--resnet_checkpoint {checkpoint}",
            fix="give a TF1 checkpoint or torchvision's resnet34 as .pth or .safetensors (see "
            "docs/weights.md), or '' to start from random weights",
        )
    yield f"train.fine_tune.checkpoint={json.dumps(checkpoint)}"
    if path.suffix in _TORCH_SUFFIXES:
        yield "model.backbone.pool_padding=symmetric"


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)

"""The flags of SSD ResNet-34's original script `ssd.py`, with its names and defaults."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import find_process_info, note
from stillbox.cli.original_flags import Flag, explain_flags
from stillbox.errors import UserError

_LAUNCHER = "it was for a launcher of the original's"
_RUN = (
    Flag(
        "mode",
        "eval scores all checkpoints of --model_dir; train_and_eval each as it is written "
        "(default: train)",
        default="train",
        choices=("train", "eval", "train_and_eval"),
    ),
    Flag("inference", "detect in one image", Path, metavar="IMAGE"),
    Flag("model_dir", "folder of all results", default=Path("/tmp/ssd"), metavar="DIR"),
    Flag("use_horovod", "--batch_size is that of each process", bool),
    Flag(
        "profile",
        "trace steps A to B of this run, or batches; 0,0: none",
        default="0,0",
        metavar="A,B",
    ),
    Flag(
        "log_step_count_steps",
        "steps between two lines",
        default=1,
        short="-v",
        field="train.log_every",
    ),
    Flag(
        "save_summary_steps",
        "steps between two entries for TensorBoard",
        default=1,
        field="train.summary_every",
    ),
    Flag(
        "save_checkpoints_epochs",
        "epochs between two checkpoints",
        default=5.0,
        metavar="EPOCHS",
        short="-c",
    ),
    Flag(
        "keep_ckpt_max",
        "newest checkpoints that are kept",
        default=20,
        field="train.keep_checkpoints",
    ),
)
_RECIPE = (
    Flag(
        "dtype",
        "of activations in training (default: bf16)",
        default="bf16",
        short="-d",
        choices=("bf16", "fp32"),
    ),
    Flag("batch_size", "images of a step", default=128, short="-b", field="train.batch_size"),
    Flag(
        "epochs",
        "epochs in total, also of a resumed run",
        default=50.0,
        metavar="EPOCHS",
        short="-e",
    ),
    Flag("steps", "train so many steps instead of --epochs", default=0, short="-s"),
    Flag("distributed_bn", "batch norm statistics over all devices instead of each device", bool),
    Flag("base_lr", "learning rate for 32 images", default=3e-3, metavar="RATE"),
    Flag("lr_warmup_epoch", "length of the warm-up", default=7.0, metavar="EPOCHS"),
    Flag("k", "the cosine goes from epoch 15 to 55, times 1 + k / 10", default=0),
    Flag("weight_decay", "of kernels and biases", default=5e-4, metavar="X"),
    Flag(
        "resnet_checkpoint",
        "weights of the backbone: a TF1 checkpoint or torchvision's .pth or .safetensors; '' for "
        "random ones",
        default="/data/ssd_r34-mlperf",
        metavar="PATH",
    ),
)
_DATA = (
    Flag(
        "data_dir",
        "records train* and val*, and label_map.pbtxt unless the classes are COCO's",
        default=Path("/data/coco2017/ssd_tf_records"),
        metavar="DIR",
    ),
    Flag("use_fake_data", "repeat one batch", bool, short="-f"),
    Flag("eval_samples", "most images to score", default=5000, field="evaluation.max_examples"),
    Flag("num_examples_per_epoch", "images of an epoch", default=117266),
    Flag("max_cpus", "most threads that decode and augment", default=16),
    Flag("num_parallel_calls", "another limit of them", default=64),
    Flag("threadpool_size", "a third limit; 0: none", default=0),
)
FLAGS = (
    *(*_RUN, *_RECIPE, *_DATA),
    Flag("no_hpu", kind=bool, note="all devices that JAX finds are used"),
    Flag("vis_dataloader", kind=bool, note="TensorBoard always shows the first batch"),
    Flag(
        "use_cocoeval_cc",
        kind=bool,
        note="COCO's metrics are always computed by a compiled library",
    ),
    Flag(
        "recipe_cache",
        note="compiled programs are in stillbox's own cache, see `stillbox doctor`",
    ),
    Flag("hvd_workers", note=_LAUNCHER, hidden=True),
    Flag("num_workers_per_hls", note=_LAUNCHER, hidden=True),
    Flag("kubernetes_run", note=_LAUNCHER, hidden=True),
    Flag(
        "static",
        refusal="--use_fake_data measures a step without the input pipeline; decoded images are "
        "kept in memory in any case. The files of --static hold targets for one size of batch",
    ),
)


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuses unsupported flags, and prints notes about those with another effect here.

    Raises:
        UserError: a flag is not supported, or has no valid value.
    """
    explain_flags(arguments, FLAGS)
    for name in ("batch_size", "num_examples_per_epoch", "save_checkpoints_epochs", "max_cpus"):
        if getattr(arguments, name) <= 0:
            raise UserError(f"--{name} is {getattr(arguments, name)}", fix="give one above 0")
    last = last_epoch_of_full_rate(arguments)
    if arguments.lr_warmup_epoch > last:
        raise UserError(
            f"the warm-up ends at epoch {arguments.lr_warmup_epoch:g}, after the decay begins at "
            f"{last:g}",
            where="--lr_warmup_epoch",
            fix="shorten it, or raise --k",
        )
    if arguments.use_horovod:
        _count_processes(arguments)


def _count_processes(arguments: argparse.Namespace) -> None:
    """Turns the batch size of each process into that of the job."""
    place = find_process_info(arguments)
    if place is None:
        note("--use_horovod: one process uses all devices of this machine")
        return
    each = arguments.batch_size
    arguments.batch_size *= place.count
    note(
        f"--use_horovod: {place.count} processes with {each} images each, "
        f"{arguments.batch_size} images a step"
    )


def last_epoch_of_full_rate(arguments: argparse.Namespace) -> float:
    """Returns the epoch at which the cosine decay begins."""
    return 15 * stretch(arguments)


def stretch(arguments: argparse.Namespace) -> float:
    """Returns the factor of --k on the epochs of the schedule."""
    return float(1 + arguments.k / 10)

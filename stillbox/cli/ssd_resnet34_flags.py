"""The flags of SSD ResNet-34's original script `ssd.py`, with its names and defaults."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_option, find_process_info, note
from stillbox.errors import UserError

# Flags that request what is always done, or what does not apply here.
_SWITCHES = {
    "no_hpu": "all devices that JAX finds are used",
    "vis_dataloader": "TensorBoard always shows the first batch",
    "use_cocoeval_cc": "COCO's metrics are always computed by a compiled library",
}
_VALUES = {
    "recipe_cache": "compiled programs are in stillbox's own cache, see `stillbox doctor`",
    "hvd_workers": "it was for a launcher of the original's",
    "num_workers_per_hls": "it was for a launcher of the original's",
    "kubernetes_run": "it was for a launcher of the original's",
}
_HIDDEN = ("hvd_workers", "num_workers_per_hls", "kubernetes_run")


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
    add_option(parser, "--model_dir", Path("/tmp/ssd"), "folder of all results", "DIR")
    parser.add_argument(
        "--use_horovod", action="store_true", help="--batch_size is that of each process"
    )
    add_option(
        parser, "--profile", "0,0", "trace steps A to B of this run, or batches; 0,0: none", "A,B"
    )
    add_option(parser, "--log_step_count_steps", 1, "steps between two lines", short="-v")
    add_option(parser, "--save_summary_steps", 1, "steps between two entries for TensorBoard")
    about = "epochs between two checkpoints"
    add_option(parser, "--save_checkpoints_epochs", 5.0, about, "EPOCHS", short="-c")
    add_option(parser, "--keep_ckpt_max", 20, "newest checkpoints that are kept")


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-d",
        "--dtype",
        choices=("bf16", "fp32"),
        default="bf16",
        help="of activations in training (default: bf16)",
    )
    add_option(parser, "--batch_size", 128, "images of a step", short="-b")
    add_option(
        parser, "--epochs", 50.0, "epochs in total, also of a resumed run", "EPOCHS", short="-e"
    )
    add_option(parser, "--steps", 0, "train so many steps instead of --epochs", short="-s")
    parser.add_argument(
        "--distributed_bn",
        action="store_true",
        help="batch norm statistics over all devices instead of each device",
    )
    add_option(parser, "--base_lr", 3e-3, "learning rate for 32 images", "RATE")
    add_option(parser, "--lr_warmup_epoch", 7.0, "length of the warm-up", "EPOCHS")
    add_option(parser, "--k", 0, "the cosine goes from epoch 15 to 55, times 1 + k / 10")
    add_option(parser, "--weight_decay", 5e-4, "of kernels and biases", "X")
    about = (
        "weights of the backbone: a TF1 checkpoint or torchvision's .pth or .safetensors; '' for "
        "random ones"
    )
    add_option(parser, "--resnet_checkpoint", "/data/ssd_r34-mlperf", about, "PATH")


def _add_data(parser: argparse.ArgumentParser) -> None:
    about = "records train* and val*, and label_map.pbtxt unless the classes are COCO's"
    add_option(parser, "--data_dir", Path("/data/coco2017/ssd_tf_records"), about, "DIR")
    parser.add_argument("-f", "--use_fake_data", action="store_true", help="repeat one batch")
    add_option(parser, "--eval_samples", 5000, "most images to score")
    add_option(parser, "--num_examples_per_epoch", 117266, "images of an epoch")
    add_option(parser, "--max_cpus", 16, "most threads that decode and augment")
    add_option(parser, "--num_parallel_calls", 64, "another limit of them")
    add_option(parser, "--threadpool_size", 0, "a third limit; 0: none")


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuses unsupported flags, and prints notes about those with another effect here.

    Raises:
        UserError: a flag is not supported, or has no valid value.
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
    for name, sentence in (_SWITCHES | _VALUES).items():
        if getattr(arguments, name) not in (None, False):
            note(f"--{name}: {sentence}")


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

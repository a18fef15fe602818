"""`stillbox ssd_resnet34`: SSD ResNet-34's own command line.

Flags become changes of the recipe `ssd_resnet34`; `stillbox train`, `evaluate` and `predict` do
the same with stillbox's own options. Training resumes the run in --model_dir, up to --epochs.
"""

import argparse
import math
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from stillbox.cli.arguments import add_overrides, add_processes, find_process_info, note
from stillbox.cli.original_flags import Flag, add_flags, explain_flags, flag_changes
from stillbox.cli.overrides import set_words
from stillbox.cli.running import batch_profiler, run_training, say, score_checkpoints
from stillbox.devices.announcing import say_aside
from stillbox.devices.process import own_processors
from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import Changes, merged
from stillbox.object_storage import local_path
from stillbox.printing import count_text, printable_line
from stillbox.records.label_map import LabelMap

if TYPE_CHECKING:
    from stillbox.evaluation.scores import Scores


_LAUNCHER = "it was for a launcher of the original's"
_RUN = (
    Flag("mode", "eval scores all checkpoints of --model_dir; train_and_eval each as it is written "
         "(default: train)", default="train", choices=("train", "eval", "train_and_eval")),
    Flag("inference", "detect in one image", Path, metavar="IMAGE"),
    Flag("model_dir", "folder of all results", default=Path("/tmp/ssd"), metavar="DIR"),
    Flag("use_horovod", "--batch_size is that of each process", bool),
    Flag("profile", "trace steps A to B of this run, or batches; 0,0: none", default="0,0",
         metavar="A,B"),
    Flag("log_step_count_steps", "steps between two lines", default=1, short="-v",
         field="train.log_every"),
    Flag("save_summary_steps", "steps between two entries for TensorBoard", default=1,
         field="train.summary_every"),
    Flag("save_checkpoints_epochs", "epochs between two checkpoints", default=5.0, metavar="EPOCHS",
         short="-c"),
    Flag("keep_ckpt_max", "newest checkpoints that are kept", default=20,
         field="train.keep_checkpoints"),
)  # fmt: skip
_SCHEDULE = (
    Flag("dtype", "of activations in training (default: bf16)", default="bf16", short="-d",
         choices=("bf16", "fp32")),
    Flag("batch_size", "images of a step", default=128, short="-b", field="train.batch_size"),
    Flag("epochs", "epochs in total, also of a resumed run", default=50.0, metavar="EPOCHS",
         short="-e"),
    Flag("steps", "train so many steps instead of --epochs", default=0, short="-s"),
    Flag("distributed_bn", "batch norm statistics over all devices instead of each device", bool),
    Flag("base_lr", "learning rate for 32 images", default=3e-3, metavar="RATE"),
    Flag("lr_warmup_epoch", "length of the warm-up", default=7.0, metavar="EPOCHS"),
    Flag("k", "the cosine goes from epoch 15 to 55, times 1 + k / 10", default=0),
    Flag("weight_decay", "of kernels and biases", default=5e-4, metavar="X"),
    Flag("resnet_checkpoint",
         "weights of the backbone: a TF1 checkpoint or torchvision's .pth or .safetensors; '' for "
         "random ones", default="/data/ssd_r34-mlperf", metavar="PATH"),
)  # fmt: skip
_DATA = (
    Flag("data_dir", "records train* and val*, and label_map.pbtxt unless the classes are COCO's",
         default=Path("/data/coco2017/ssd_tf_records"), metavar="DIR"),
    Flag("use_fake_data", "repeat one batch", bool, short="-f"),
    Flag("eval_samples", "most images to score", default=5000, field="evaluation.max_examples"),
    Flag("num_examples_per_epoch", "images of an epoch", default=117266),
    Flag("max_cpus", "most threads that decode and augment", default=16),
    Flag("num_parallel_calls", "another limit of them", default=64),
    Flag("threadpool_size", "a third limit; 0: none", default=0),
)  # fmt: skip
FLAGS = (
    *(*_RUN, *_SCHEDULE, *_DATA),
    Flag("no_hpu", kind=bool, note="all devices that JAX finds are used"),
    Flag("vis_dataloader", kind=bool, note="TensorBoard always shows the first batch"),
    Flag("use_cocoeval_cc", kind=bool,
         note="COCO's metrics are always computed by a compiled library"),
    Flag(
        "recipe_cache", note="compiled programs are in stillbox's own cache, see `stillbox doctor`"
    ),
    Flag("hvd_workers", note=_LAUNCHER, hidden=True),
    Flag("num_workers_per_hls", note=_LAUNCHER, hidden=True),
    Flag("kubernetes_run", note=_LAUNCHER, hidden=True),
    Flag("static",
         refusal="--use_fake_data measures a step without the input pipeline; decoded images are "
         "kept in memory in any case. The files of --static hold targets for one size of batch"),
)  # fmt: skip


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuses unsupported flags, and prints notes about those with another effect here.

    Raises:
        UserError: a flag is not supported, or has no valid value.
    """
    explain_flags(arguments, FLAGS)
    for name in ("batch_size", "num_examples_per_epoch", "save_checkpoints_epochs", "max_cpus"):
        if getattr(arguments, name) <= 0:
            raise UserError(f"--{name} is {getattr(arguments, name)}", fix="give one above 0")
    # Steps of whole epochs; 0 steps would be a run without an end.
    if not arguments.steps and not 1 <= arguments.epochs < math.inf:
        raise UserError(f"--epochs is {arguments.epochs:g}", fix="give at least 1, or --steps")
    last = last_epoch_of_full_rate(arguments)
    if arguments.lr_warmup_epoch > last:
        problem = (
            f"the warm-up ends at epoch {arguments.lr_warmup_epoch:g}, after the decay begins at "
            f"{last:g}"
        )
        raise UserError(problem, where="--lr_warmup_epoch", fix="shorten it, or raise --k")
    if arguments.use_horovod:
        _count_processes(arguments)


def _count_processes(arguments: argparse.Namespace) -> None:
    """Turns the batch size of each process into the batch size of the job."""
    place = find_process_info(arguments)
    if place is None:
        note("--use_horovod: one process uses all devices of this machine")
        return
    each = arguments.batch_size
    arguments.batch_size *= place.count
    note(
        f"--use_horovod: {place.count} processes with {count_text(each, 'image')} each, "
        f"{count_text(arguments.batch_size, 'image')} a step"
    )


def last_epoch_of_full_rate(arguments: argparse.Namespace) -> float:
    """Returns the epoch at which the cosine decay begins."""
    return 15 * stretch(arguments)


def stretch(arguments: argparse.Namespace) -> float:
    """Returns the factor of --k on the epochs of the schedule."""
    return float(1 + arguments.k / 10)


_LAST_EPOCH_OF_DECAY = 55
_IMAGES_OF_BASE_RATE = 32
# The original adds a hundredth of the rate to its warm-up and to its cosine.
_PEAK, _FLOOR = 1.01, 0.01
_TORCH_SUFFIXES = (".pth", ".pt", ".safetensors")
_PARTS = ("backbone", "neck", "head")
_TRAINING = ("batch_size", "log_step_count_steps", "save_summary_steps", "keep_ckpt_max")


def steps_per_epoch(arguments: argparse.Namespace) -> int:
    """Returns the batches of an epoch, all of them full."""
    return math.ceil(arguments.num_examples_per_epoch / arguments.batch_size)


def training_changes(arguments: argparse.Namespace) -> Changes:
    """Returns the changes for training.

    Raises:
        UserError: there are no records or no weights.
    """
    epoch = steps_per_epoch(arguments)
    path = "train.optimizer.schedule"
    changes = {
        **flag_changes(arguments, FLAGS, only=_TRAINING),
        "train.steps": arguments.steps or int(arguments.epochs) * epoch,
        "train.precision": {"bf16": "bfloat16", "fp32": "float32"}[arguments.dtype],
        "train.checkpoint_every": max(round(arguments.save_checkpoints_epochs * epoch), 1),
        "data.repeat_first_batch": bool(arguments.use_fake_data),
        "data.workers": _workers(arguments),
        **{f"model.{part}.conv.regularizer.weight": arguments.weight_decay for part in _PARTS},
    }
    if arguments.distributed_bn:
        changes["model.backbone.conv.batch_norm.statistics"] = "global"
    return {
        **changes,
        **{f"{path}.{name}": value for name, value in _schedule(arguments, epoch)},
        **_records(arguments.data_dir, "train"),
        **_weights(arguments.resnet_checkpoint, arguments.model_dir),
    }


def evaluation_changes(arguments: argparse.Namespace) -> Changes:
    """Returns the changes for scoring.

    Raises:
        UserError: there are no records.
    """
    return {
        "evaluation.batch_size": arguments.batch_size,
        **flag_changes(arguments, FLAGS, only=("eval_samples",)),
        "data.workers": _workers(arguments),
        **_records(arguments.data_dir, "evaluation"),
    }


def _schedule(arguments: argparse.Namespace, epoch: int) -> Iterator[tuple[str, float]]:
    """Yields the fields of the cosine schedule."""
    rate = arguments.base_lr * arguments.batch_size / _IMAGES_OF_BASE_RATE
    warmup = round(arguments.lr_warmup_epoch * epoch)
    start = round(last_epoch_of_full_rate(arguments) * epoch)
    yield "learning_rate", _PEAK * rate
    yield "final_learning_rate", _FLOOR * rate
    yield "warmup_steps", warmup
    yield "hold_steps", start - warmup
    yield "total_steps", round(_LAST_EPOCH_OF_DECAY * stretch(arguments) * epoch)


def _workers(arguments: argparse.Namespace) -> int:
    bounds = [arguments.max_cpus, arguments.num_parallel_calls, own_processors()]
    return max(min(filter(None, [*bounds, arguments.threadpool_size])), 1)


def _records(folder: Path, name: str) -> Changes:
    """Returns the paths of the records, their label map and the number of its classes."""
    folder = local_path(folder, "--data_dir")
    prefix = {"train": "train", "evaluation": "val"}[name]
    patterns = [f"{prefix}*-of-*", f"{prefix}*.tfrecord", f"{prefix}*.record"]
    pattern = next((pattern for pattern in patterns if any(folder.glob(pattern))), None)
    if pattern is None:
        fix = "make them with `stillbox data convert coco`, and give their folder in --data_dir"
        raise UserError(f"there are no records {prefix}*", where=str(folder), fix=fix)
    beside = folder / "label_map.pbtxt"
    label_map = str(beside) if beside.is_file() else "coco"
    return {
        f"data.{name}.paths": [str(folder / pattern)],
        f"data.{name}.label_map": label_map,
        "model.num_classes": len(LabelMap.from_file(label_map)),
    }


def _weights(checkpoint: str, model_directory: Path) -> Changes:
    """Returns the changes for the backbone's initial weights."""
    if not checkpoint:
        note(
            "--resnet_checkpoint is empty: all layers start from random weights and are trained; "
            "on COCO that ends at an AP of about .17"
        )
        return {"train.freeze": []}
    from stillbox.checkpoints.model_directory import is_model_directory

    path = Path(checkpoint)
    exists = path.exists() or Path(f"{path}.index").is_file()
    if not exists and not is_model_directory(model_directory):
        raise UserError(
            "there are no such weights",
            where=f"--resnet_checkpoint {checkpoint}",
            fix="give a TF1 checkpoint or torchvision's resnet34 as .pth or .safetensors (see "
            "docs/weights.md), or '' to start from random weights",
        )
    start = {"train.fine_tune.checkpoint": checkpoint}
    padding = {"model.backbone.pool_padding": "symmetric"}
    return start | (padding if path.suffix in _TORCH_SUFFIXES else {})


def note_size(experiment: Experiment, arguments: argparse.Namespace) -> None:
    """Prints a note if the number of images differs from --num_examples_per_epoch."""
    from stillbox.inputs.dataset import open_dataset

    data, counted = experiment.data, arguments.num_examples_per_epoch
    images = len(open_dataset(data, data.train, experiment.model))
    if images != counted:
        note(
            f"the records hold {count_text(images, 'image')}, an epoch counts {counted:,}: "
            f"--num_examples_per_epoch {images} makes them agree"
        )


_RECIPE = "ssd_resnet34"
_RESULTS = "eval"
_SHOWN = 10
_PICTURE = Path("out.png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_flags(parser, FLAGS)
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
    changes = training_changes(arguments)
    if arguments.mode == "train_and_eval":
        every = {"train.evaluate_every": changes["train.checkpoint_every"]}
        changes = merged(changes, {**evaluation_changes(arguments), **every})
    arguments.config, arguments.overrides = _RECIPE, merged(changes, arguments.overrides)
    words = ["stillbox", "train", _RECIPE, "--model-dir", str(arguments.model_dir)]
    words += set_words(arguments.overrides)
    note(f"these flags are short for\n  {shlex.join(words)}")
    resolved = resolve(arguments.config, arguments.overrides)
    note_size(resolved.experiment, arguments)
    return run_training(resolved, arguments.model_dir, profile=arguments.profile)


def _evaluate(arguments: argparse.Namespace) -> int:
    """Scores every checkpoint of the model directory without scores."""
    from stillbox.checkpoints.model_directory import ModelDirectory
    from stillbox.evaluation.history import HISTORY, read_history
    from stillbox.experiment.resolve import changed
    from stillbox.training.watching import WatchPolicy

    directory = ModelDirectory.open(arguments.model_dir)
    changes = merged(evaluation_changes(arguments), arguments.overrides)
    experiment = changed(directory.read_experiment(say_aside), changes)

    def report(step: int, scores: "Scores") -> None:
        for name, value in scores.summary.items():
            say(f"  {name:6s} {_number(value)}")
        say(f"Current AP: {_number(scores.summary['AP'])}")

    results, patience = arguments.model_dir / _RESULTS, WatchPolicy(existing=True)
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
    from stillbox.predicting.selection import Selection
    from stillbox.records.file_list import claim_files

    claim_files(_PICTURE.parent, [_PICTURE.name])
    predictor = load(arguments.model_dir, step="latest", overrides=arguments.overrides)
    with batch_profiler(arguments.profile, arguments.model_dir, "predict") as profiler:
        # As in the original: every detection.
        everything = Selection(min_score=0, classes_per_object="all")
        (detections,) = predictor.detect(
            [arguments.inference], predictor.read, everything, observer=profiler
        )
    for detection in islice(detections, _SHOWN):
        ymin, xmin, ymax, xmax = detection.box
        corners = f"({xmin:.0f},{ymin:.0f}) ({xmax:.0f},{ymax:.0f})"
        name = printable_line(detection.name)
        print(f"{detection.score:.3f} ({detection.class_id}) {name} {corners}")
    if not len(detections):
        print("nothing found")
    detections.save(_PICTURE, min_score=0.0, max_boxes=_SHOWN)
    print(f"picture: {_PICTURE}")
    return 0

"""`stillbox ssd_resnet34`: the flags of the original's script and what they did."""

import re
import shutil

import numpy as np
import pytest
from PIL import Image

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.cli import ssd_resnet34
from stillbox.cli.main import main
from stillbox.devices.launcher import ProcessInfo
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.experiment.resolve import resolve
from stillbox.profiling.steps import ProfileSteps
from stillbox.training import loop
from stillbox.training.loop import Outcome
from stillbox.training.optimizer import build_schedule

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")

# A detector of three convolutions on 64 pixels; everything else is the recipe's.
SMALL = (
    "model.resizer={height: 64, width: 64}",
    "model.backbone={kind: mobilenet_v1, depth_multiplier: 0.125, min_depth: 8}",
    "model.neck={taps: [conv_1_pointwise, conv_2_pointwise], extra_depths: [], extra_strides: []}",
    "model.anchors={kind: ssd, num_layers: 2, scales: [0.2, 0.4]}",
    "model.head.kernel_size=1",
    "train.augmentations=[]",
    "data.cache_images=false",
    "evaluation.num_visualizations=0",
)
FLAGS = ["--data_dir", "data", "--model_dir", "run", "--resnet_checkpoint", ""]


@pytest.fixture
def here(tmp_path, monkeypatch, scenes):
    """A folder with records under the original's names: train*, val*."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for path in scenes.glob("*.record-*"):
        name, _, shard = path.name.partition(".record-")
        shutil.copy(path, tmp_path / "data" / f"{name}-{shard}.tfrecord")
    shutil.copy(scenes / "label_map.pbtxt", tmp_path / "data")
    return tmp_path


@pytest.fixture
def trained_with(monkeypatch, much_memory):
    """Takes the place of training and remembers what it was called with."""
    seen = []

    def train(experiment, directory, origins, profile, hint):
        assert not hint  # the verb has no --minutes
        seen.append((experiment, directory, profile))
        return Outcome(step=1, reason="finished", scores=None)

    monkeypatch.setattr(loop, "train", train)
    return seen


def small(*flags):
    return ["ssd.py", *FLAGS, *flags, *(word for text in SMALL for word in ("--set", text))]


def test_the_first_command_of_the_page(here, trained_with):
    command = "ssd.py -e 64 -b 128 -d bf16 --save_summary_steps 10"
    assert main([*command.split(), *FLAGS]) == 0
    ((experiment, directory, profile),) = trained_with
    train = experiment.train
    assert str(directory) == "run"
    assert profile is None
    assert train.batch_size == 128
    # ceil(117266 / 128) = 917 steps an epoch, 64 epochs.
    assert train.steps == 917 * 64 == 58_688
    assert train.checkpoint_every == 917 * 5
    assert train.precision == "bfloat16"
    assert (train.log_every, train.summary_every, train.keep_checkpoints) == (1, 10, 20)
    assert not experiment.data.evaluation.paths
    assert experiment.data.train.paths == ("data/train*-of-*",)
    assert experiment.model.num_classes == 6


def test_the_schedule_is_the_recipes_own(here, trained_with):
    assert main(["ssd.py", *FLAGS, "-b", "128"]) == 0
    recipe = resolve("ssd_resnet34").experiment
    schedule, expected = (
        trained_with[0][0].train.optimizer.schedule,
        recipe.train.optimizer.schedule,
    )
    for name in ("learning_rate", "final_learning_rate", "warmup_learning_rate"):
        assert getattr(schedule, name) == pytest.approx(getattr(expected, name))
    for name in ("warmup_steps", "hold_steps", "total_steps"):
        assert getattr(schedule, name) == getattr(expected, name)


def test_eight_times_the_batch_has_eight_times_the_rate_in_an_eighth_of_the_steps(
    here, trained_with
):
    assert main(["ssd.py", *FLAGS, "-b", "1024", "--k", "1", "--base_lr", "0.0025"]) == 0
    experiment = trained_with[0][0]
    schedule = experiment.train.optimizer.schedule
    # .0025 * 1024 / 32 = .08; 115 steps an epoch; the cosine from epoch 16.5 to 60.5.
    assert schedule.learning_rate == pytest.approx(1.01 * 0.08)
    assert schedule.final_learning_rate == pytest.approx(0.01 * 0.08)
    assert schedule.warmup_steps == 7 * 115
    assert schedule.warmup_steps + schedule.hold_steps == round(16.5 * 115)
    assert schedule.total_steps == round(60.5 * 115)


@pytest.mark.parametrize(
    ("epoch", "rate"),
    # The original's at a global batch of 1,024, 115 steps an epoch.
    [
        (1, 0.0138514),
        (7, 0.09696),
        (25, 0.0829011),
        (35, 0.04896),
        (45, 0.0150189),
        (55, 0.00096),
        (60, 0.00096),
    ],
)
def test_the_rates_of_eight_cards_equal_the_original(here, trained_with, epoch, rate):
    assert main(["ssd.py", *FLAGS, "-b", "1024"]) == 0
    schedule = build_schedule(trained_with[0][0].train.optimizer.schedule)
    assert float(schedule(epoch * 115)) == pytest.approx(rate, rel=2e-5)


def test_profiling_and_flags_of_the_machine_are_taken(here, trained_with, capsys):
    assert main(["ssd.py", *FLAGS, "--profile", "50,53", "--steps", "100"]) == 0
    experiment, _, profile = trained_with[0]
    assert experiment.train.steps == 100
    assert profile == ProfileSteps(50, 53)
    flags = "--no_hpu --recipe_cache /tmp/x --use_horovod --kubernetes_run True"
    assert main(["ssd.py", *FLAGS, *flags.split()]) == 0
    printed = capsys.readouterr().err
    for name in ("no_hpu", "recipe_cache", "use_horovod", "kubernetes_run"):
        assert f"note: --{name}: " in printed


@pytest.mark.parametrize(
    ("flags", "statistics"), [((), "per_replica"), (("--distributed_bn",), "global")]
)
def test_batch_norm_is_each_device_s_own_unless_it_is_distributed(
    here, trained_with, flags, statistics
):
    assert main(["ssd.py", *FLAGS, *flags]) == 0
    assert trained_with[0][0].model.backbone.conv.batch_norm.statistics == statistics


def test_lengths_of_epochs_are_noted_and_our_own_command_is_printed(here, trained_with, capsys):
    assert main(["ssd.py", *FLAGS]) == 0
    printed = "the records hold 10 images, an epoch counts 117,266"
    assert printed in capsys.readouterr().err
    assert main(["ssd.py", *FLAGS, "--num_examples_per_epoch", "10"]) == 0
    assert "an epoch counts" not in capsys.readouterr().err
    assert main(["ssd.py", *FLAGS]) == 0
    line = next(
        line for line in capsys.readouterr().err.splitlines() if "stillbox train ssd_r" in line
    )
    words = line.split()
    assert words[:5] == ["stillbox", "train", "ssd_resnet34", "--model-dir", "run"]
    assert "train.batch_size=128" in words


@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        (["--static"], "--static is not supported"),
        (["--batch_size", "0"], "--batch_size is 0"),
        (["--epochs", "0.5"], "--epochs is 0.5"),
        (["--lr_warmup_epoch", "16"], "after the decay begins at 15"),
        (["--data_dir", "nowhere"], "there are no records train*"),
        (["--resnet_checkpoint", "nowhere"], "there are no such weights"),
        (["--profile", "53,50"], "there are no steps from 53 to 50"),
    ],
)
def test_unsupported_flags_are_refused_with_a_remedy(here, trained_with, capsys, flags, printed):
    assert main(["ssd.py", *FLAGS, *flags]) == 2
    message = capsys.readouterr().err
    assert printed in message
    assert "fix: " in message
    assert not trained_with


def test_numbers_that_are_none_are_refused(here, trained_with, capsys):
    with pytest.raises(SystemExit):
        main(["ssd.py", *FLAGS, "--epochs", "nan"])
    assert "'nan' is no finite number" in capsys.readouterr().err
    assert not trained_with


def test_each_of_several_processes_has_the_batch(here, trained_with, capsys, monkeypatch):
    place = ProcessInfo(index=3, count=8, coordinator="127.0.0.1:9000")
    monkeypatch.setattr(ssd_resnet34, "find_process_info", lambda arguments: place)
    assert main(["ssd.py", *FLAGS, "--use_horovod", "--batch_size", "4", "--epochs", "2"]) == 0
    train = trained_with[0][0].train
    # An epoch of 117,266 images has ceil(117,266 / 32) = 3,665 steps, at the rate for 32.
    assert (train.batch_size, train.steps) == (32, 2 * 3_665)
    assert train.optimizer.schedule.learning_rate == pytest.approx(1.01 * 3e-3)
    assert "8 processes with 4 images each, 32 images a step" in capsys.readouterr().err


def test_weights_of_torch_bring_their_padding(here, trained_with):
    (here / "resnet34.pth").write_bytes(b"")
    assert main(["ssd.py", *FLAGS[:-1], "resnet34.pth"]) == 0
    experiment = trained_with[0][0]
    assert experiment.train.fine_tune.checkpoint == "resnet34.pth"
    assert experiment.model.backbone.pool_padding == "symmetric"
    assert len(experiment.train.freeze) == 2


def test_a_run_is_trained_scored_and_looked_at(here, capsys):
    flags = "-b 4 -e 2 --num_examples_per_epoch 8 --save_checkpoints_epochs 1"
    assert main(small(*flags.split())) == 0
    assert ModelDirectory.open(here / "run").steps() == (2, 4)
    capsys.readouterr()

    # Six images in batches of four: the original left two of them out.
    assert main(["ssd.py", *FLAGS, "--mode", "eval", "-b", "4"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("on 6 images") == printed.count("Current AP: ") == 2
    for step in (2, 4):
        assert f"COCO/AP value for step {step} = " in printed

    # Scores are not computed again, but printed again.
    assert main(["ssd.py", *FLAGS, "--mode", "eval", "-b", "4"]) == 0
    printed = capsys.readouterr().out
    assert "Current AP" not in printed
    assert printed.count("COCO/AP value for step") == 2

    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save("image.png")
    low = ["--set", "model.postprocessing.nms.score_threshold=0.0"]
    assert main(["ssd.py", *FLAGS, "--inference", "image.png", *low]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "picture: out.png"
    assert len(lines) == 10
    probabilities = [float(line.split()[0]) for line in lines]
    assert probabilities == sorted(probabilities, reverse=True)
    assert re.fullmatch(r"0\.\d{3} \(\d\) \w+ \(-?\d+,-?\d+\) \(-?\d+,-?\d+\)", lines[0])
    with Image.open("out.png") as picture:
        width, height = picture.size  # small images are enlarged
    assert width / height == 60 / 40


def test_more_epochs_resume_up_to_the_total(here, capsys):
    base = "-b 4 --num_examples_per_epoch 4 --save_checkpoints_epochs 1"
    assert main(small(*base.split(), "-e", "2")) == 0
    assert main(small(*base.split(), "-e", "3")) == 0
    assert ModelDirectory.open(here / "run").steps()[-1] == 3
    assert "resuming at step 2" in capsys.readouterr().err


def test_every_checkpoint_is_scored_in_the_mode_that_does_both(here, capsys):
    flags = "--mode train_and_eval -b 4 -e 2 --num_examples_per_epoch 4 -c 1"
    assert main(small(*flags.split())) == 0
    steps = [step for step, _ in read_history(here / "run" / HISTORY).evaluations]
    assert steps == [1, 2]

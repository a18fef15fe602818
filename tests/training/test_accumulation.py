"""A step over micro-batches equals that over the whole batch, but for statistics of batch norm."""

from functools import cache

import jax
import numpy as np
import pytest

from stillbox.checking.memory_estimate import estimate, sizes_of
from stillbox.devices.mesh import build_mesh
from stillbox.lowering import lowering
from stillbox.models.build import build_detector
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from stillbox.training.distillation import open_teacher
from stillbox.training.loop import train
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program
from tests.helpers import refusal
from tests.small import DENSE, DENSE_HEADS
from tests.training.eight_devices import (
    GFL,
    SSD,
    TWO_STAGES,
    experiment_of,
    first_state,
    make_batch,
    write_teacher,
)
from tests.training.test_loop import assert_same_bits, sections

FROZEN_NORM = "model.freeze_batch_norm=true"
HEADS = {
    head: (*changes, *DENSE, "train.batch_size=8", "data.train.max_boxes=4")
    for head, changes in DENSE_HEADS.items()
}
# Each divides by other sums over the images.
DETECTORS = {
    "ssd": (
        *SSD,
        "model.loss.normalize_per_image=true",
        "model.loss.normalizer=per_replica",
        "devices.replicas=2",
        "model.loss.classification={kind: sigmoid}",
        "model.loss.hard_example_miner={loss_type: classification, num_hard_examples: 20}",
        "train.gradient_clip_norm=0.5",
        "train.optimizer={kind: adamw, backbone_layer_decay: 0.8}",
        "train.freeze=[conv_0]",
        "data.pixels=uint8",
    )
}
# `gfl` is compared with a teacher, below.
OTHERS = {
    "task_aligned": HEADS["task_aligned"],
    "averaged matches": (*SSD, "model.loss.normalizer_momentum=0.9"),
    "gfl": HEADS["gfl"],
    "atss": HEADS["atss"],
}


@cache
def run(experiment, steps=2):
    """Returns metrics and arrays after the last of some steps on one batch."""
    mesh = build_mesh(
        experiment.train.batch_size,
        experiment.devices,
        jax.devices()[:1],
        parts=experiment.train.accumulation_steps,
    )
    teacher = open_teacher(experiment)
    program = train_program(plan_training(experiment, mesh, teacher))
    state = first_state(experiment, program.trainable)
    batch = make_batch(experiment)
    if experiment.data.pixels == "uint8":
        batch = batch._replace(images=batch.images.astype(np.uint8))
    state, batch = program.put_state(state), program.put_batch(batch)
    with lowering(portable=True):
        compiled, taught_by = program.lower().compile(), program.put_teacher(teacher)
    for _ in range(steps):
        state, metrics = compiled(state, batch, *taught_by)
    return metrics, state, compiled.memory_analysis().temp_size_in_bytes


def assert_same(left, other):
    """Compares metrics up to rounding, and arrays after an update."""
    assert left[0].keys() == other[0].keys()
    for name, value in left[0].items():
        np.testing.assert_allclose(other[0][name], value, rtol=5e-5, err_msg=name)
    for first, second in zip(left[1][1:], other[1][1:], strict=True):
        for expected, array in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param(changes, id=name) for name, changes in DETECTORS.items()),
        *(
            pytest.param(changes, id=name, marks=pytest.mark.slow)
            for name, changes in OTHERS.items()
        ),
    ],
)
def test_micro_batches_have_the_gradient_of_the_whole_batch(changes):
    whole, parts = (
        run(experiment_of(*changes, FROZEN_NORM, f"train.accumulation_steps={count}"))
        for count in (1, 4)
    )
    assert whole[0]["loss"] > 0
    assert_same(whole, parts)


@pytest.mark.slow
def test_two_stages_count_the_images_of_the_whole_batch():
    # All anchors are sampled. The sample of the second stage is random.
    words = (*TWO_STAGES, FROZEN_NORM, "model.proposals={sample_size: 256, positive_fraction: 1.0}")
    whole, parts = (
        run(experiment_of(*words, f"train.accumulation_steps={count}"), steps=1)[0]
        for count in (1, 4)
    )
    for name in ("objectness_loss", "proposal_localization_loss", "sampled_anchors"):
        np.testing.assert_allclose(parts[name], whole[name], rtol=2e-5, err_msg=name)
    # A mean over images, not their sum.
    np.testing.assert_allclose(parts["classification_loss"], whole["classification_loss"], rtol=0.1)


@pytest.mark.slow
def test_a_teacher_sees_the_micro_batches(tmp_path):
    changes = (*SSD, *GFL, FROZEN_NORM)
    teacher = write_teacher(tmp_path / "teacher", experiment_of(*changes))
    student = (*changes, f"train.distillation.teacher={teacher}")
    whole, parts = (
        run(experiment_of(*student, f"train.accumulation_steps={count}")) for count in (1, 2)
    )
    assert whole[0]["distillation_loss"] > 0
    assert_same(whole, parts)


def test_moving_statistics_move_once_a_micro_batch():
    experiment = experiment_of(*SSD, "train.accumulation_steps=2")
    _, state, _ = run(experiment, steps=1)
    batch, detector = make_batch(experiment), build_detector(experiment.model, seed=1)
    graph, params, stats = split_detector(detector)

    @jax.jit
    def after(stats, part):
        detector = bind_detector(graph, params, stats)
        detector(part.images, train=True)
        return read_statistics(detector)

    for first in (0, 1):
        stats = after(stats, jax.tree.map(lambda rows, n=first: rows[n::2], batch))
    for path, array in stats.items():
        np.testing.assert_allclose(state.stats[path], array, rtol=1e-4, atol=1e-5, err_msg=path)


def test_a_step_needs_less_memory_in_micro_batches():
    whole, parts = (experiment_of(*SSD, f"train.accumulation_steps={n}") for n in (1, 2))
    assert run(parts, steps=1)[2] < 0.8 * run(whole, steps=1)[2]
    sizes = sizes_of(whole.model, whole.train)
    assert sizes == sizes_of(parts.model, parts.train)
    more, less = (estimate(config, sizes, "gpu").activations for config in (whole, parts))
    assert (less.low, less.high) == (more.low / 2, more.high / 2)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_programs")
def test_two_steps_resumed_for_two_more_equal_four_bit_for_bit(tmp_path, experiment):
    settings = ["train.accumulation_steps=2", "model.head.dropout=true", "train.ema_decay=0.9"]
    train(experiment(*settings), tmp_path / "whole")
    train(experiment(*settings, "train.steps=2"), tmp_path / "parts")
    train(experiment(*settings), tmp_path / "parts")
    assert_same_bits(sections(tmp_path / "whole", 4), sections(tmp_path / "parts", 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["train.accumulation_steps=3"], "a batch of 8 (train.batch_size) cannot be divided into"),
        (["train.accumulation_steps=0"], "accumulation_steps is 0"),
        (
            [
                "train.accumulation_steps=4",
                "devices.replicas=4",
                "model.loss.normalizer=per_replica",
            ],
            "a micro-batch of 2 (8 / 4 train.accumulation_steps) cannot be divided among 4 repl",
        ),
    ],
)
def test_micro_batches_that_are_not_equal_are_refused(changes, message):
    error = refusal(experiment_of, *SSD, *changes)
    assert message in str(error)


def test_devices_share_each_micro_batch():
    experiment = experiment_of(*SSD, "train.accumulation_steps=8")
    error = refusal(build_mesh, 12, experiment.devices, jax.devices()[:1], parts=8)
    assert error.what == "a batch of 12 cannot be split evenly in 8 micro-batches over 1 device"
    assert error.fix == "use 8 or 16"

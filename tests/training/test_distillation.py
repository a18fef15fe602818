"""Learning from a teacher: the gradient, runs and their ends, and refused teachers."""

import shutil
from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.checking.advice.files import teacher_fits
from stillbox.checking.memory_estimate import estimate, sizes_of
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.packed import pack_model
from stillbox.checkpoints.trained import load_trained
from stillbox.devices.mesh import build_mesh
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.experiment.rules import find_missing
from stillbox.models.build import build_detector
from stillbox.models.detector import LossInputs, Predictions, Taught
from stillbox.models.one_stage.quality_loss import quality_loss
from stillbox.models.variables import bind_detector, split_detector
from stillbox.references import Setting
from stillbox.training.distillation import open_teacher
from stillbox.training.loop import train
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program
from stillbox.training.start import replicas_before
from tests.checking.advised import findings_of
from tests.helpers import refusal, refused
from tests.training.eight_devices import (
    GFL,
    SSD,
    experiment_of,
    make_batch,
    opinionated,
    write_teacher,
)
from tests.training.test_loop import assert_same_bits, sections


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A model directory that `experiment_of(*SSD, *GFL)` can learn from."""
    return write_teacher(tmp_path_factory.mktemp("teacher") / "model", experiment_of(*SSD, *GFL))


@pytest.fixture
def student(experiment, teacher):
    """The function from overrides to the small experiment with that teacher."""

    def make(*overrides, at=teacher):
        return experiment(*GFL, f"train.distillation.teacher={at}", *overrides, evaluated=False)

    return make


@pytest.fixture(scope="module")
def frozen():
    """A detector that computes the same in training and evaluation, its arrays, and a batch."""
    experiment = experiment_of(*SSD, *GFL, "model.freeze_batch_norm=true", "train.batch_size=2")
    batch = make_batch(experiment)
    return split_detector(build_detector(experiment.model, seed=1)), batch


def test_a_student_that_equals_its_teacher_has_nothing_to_learn_from_it(frozen):
    (graph, params, stats), batch = frozen

    @jax.jit
    def distilled(params, theirs):
        logits = bind_detector(graph, theirs, stats).box_logits(jnp.asarray(batch.images))
        taught = Taught(logits, weight=0.25, temperature=2.0)
        student = bind_detector(graph, params, stats)
        inputs = LossInputs(batch, taught=taught)
        return student.loss(inputs).terms["distillation_loss"]

    others = opinionated(params, seed=3)
    assert float(distilled(params, others)) > 1e-4
    np.testing.assert_allclose(distilled(others, others), 0.0, atol=1e-7)
    gradients = jax.jit(jax.grad(distilled, argnums=(0, 1)))
    learns, teaches = gradients(params, others)
    assert not any(np.any(gradient) for gradient in teaches.values())
    # Classes have an effect only through the weights, which have no gradient.
    moved = {path for path, gradient in learns.items() if np.any(gradient)}
    assert "head.box.kernel" in moved
    assert "head.class_.kernel" not in moved
    at_rest, _ = gradients(others, others)
    largest = max(np.abs(gradient).max() for gradient in learns.values())
    assert max(np.abs(gradient).max() for gradient in at_rest.values()) < 1e-3 * largest


def test_arrays_of_a_teacher_are_arguments_that_the_step_keeps(student):
    made = student()
    program = train_program(plan_training(made, build_mesh(4, made.devices, jax.devices()[:1])))
    lowered = program.lower()
    (state, batch, theirs), _ = jax.tree.map(lambda argument: argument.donated, lowered.args_info)
    assert all(jax.tree.leaves(state))
    assert not any(jax.tree.leaves((batch, theirs)))
    stored = open_teacher(made).stored.values()
    assert len(jax.tree.leaves(theirs)) == len(stored)
    written = lowered.as_text().splitlines()
    constants = [line for line in written if 'stablehlo.constant dense<"' in line]
    assert constants != []  # the anchors
    for kernel in (array for array in stored if array.ndim == 4):
        shape = "x".join(map(str, kernel.shape))
        assert not any(f"tensor<{shape}xf32>" in line for line in constants)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_programs")
def test_runs_resume_exactly_and_models_outlive_their_teacher(tmp_path, student, teacher):
    place = shutil.copytree(teacher, tmp_path / "teacher")
    train(student(at=place), tmp_path / "whole")
    train(student("train.steps=2", at=place), tmp_path / "parts")
    # The teacher may move to another folder, but its weights must not change.
    moved = place.rename(tmp_path / "moved")
    train(student(at=moved), tmp_path / "parts")
    whole, parts = (sections(tmp_path / name, 4) for name in ("whole", "parts"))
    assert_same_bits(whole, parts)
    _, terms = read_history(tmp_path / "whole" / HISTORY).series("distillation_loss")
    assert len(terms) == 4
    assert min(terms) > 0.0

    shutil.rmtree(moved)
    gone = refusal(train, student("train.steps=5", at=moved), tmp_path / "parts")
    assert "the teacher cannot be read" in gone.what
    assert gone.where == "train.distillation.teacher"
    changed = write_teacher(moved, experiment_of(*SSD, *GFL), seed=8)
    other = refusal(train, student("train.steps=5", at=changed), tmp_path / "parts")
    assert "the run began with another teacher" in other.what
    write_teacher(tmp_path / "later", experiment_of(*SSD, *GFL), step=2)
    later = refusal(train, student("train.steps=5", at=tmp_path / "later"), tmp_path / "parts")
    assert "there is no checkpoint 1" in later.what
    shutil.rmtree(moved)

    finished = train(student(at=moved), tmp_path / "parts")
    assert finished.reason == "step 4 of 4 is done, nothing is left"
    assert load_trained(tmp_path / "parts").step == 4
    pack_model(tmp_path / "parts", tmp_path / "parts.stillbox")
    assert load_trained(tmp_path / "parts.stillbox").step == 4


BIGGER = ("model.resizer={height: 96, width: 96}",)
MISFITS = {
    "bins": (["model.box_coder.longest=5"], [], "greatest distance is 5 (6 bins)", "longest=5"),
    "units": (["model.box_coder.units_in_anchor=4"], [], "units in an anchor", "units_in_anchor=4"),
    "coder": (["model.box_coder={kind: distances}"], [], "box coder distances", "distribution"),
    "input": (BIGGER, [], "trained at 96x96 pixels", "model.resizer"),
    "padding": (
        ["model.resizer={kind: keep_aspect_ratio, min_dimension: 64, max_dimension: 64}"],
        [],
        "padded with 0 0 0, and the model's stretched to the input",
        "model.resizer",
    ),
    "maps": ([], ["model.neck.taps=[conv_2_pointwise, conv_4_pointwise]"], "cells", "neck"),
    "anchors": (["model.anchors.scales=[0.2, 0.5]"], [], "anchors are not those", "anchors"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_teacher_of_other_distributions_is_refused(tmp_path, student, name):
    theirs, overrides, sentence, fix = MISFITS[name]
    loss = ["model.loss.distribution_weight=0"] if name == "coder" else []
    folder = write_teacher(tmp_path / "teacher", experiment_of(*SSD, *GFL, *theirs, *loss))
    made = student(*overrides, at=folder)
    error = refusal(train, made, tmp_path / "run")
    assert sentence in error.what
    assert fix in error.fix
    assert error.where == "train.distillation.teacher"
    assert not (tmp_path / "run").exists()


def test_metadata_of_other_types_are_no_traceback(tmp_path, experiment):
    taught = experiment(*GFL, f"train.distillation.teacher={tmp_path}/gone", evaluated=False)
    with refused("train.distillation.teacher"):
        open_teacher(taught, {"sha256": 7})
    run = tmp_path / "run"
    with closing(ModelDirectory.create(run, experiment="", label_map="", versions={})) as made:
        made.save(1, {}, {"replicas": "many"})
    per_replica = experiment("model.backbone.conv.batch_norm.statistics=per_replica")
    assert replicas_before(run, 1, per_replica) is None


def test_a_teacher_is_named_before_training_and_may_be_gone_afterwards(student):
    (missing,) = find_missing(student("train.distillation.teacher="))
    assert missing.path == "train.distillation.teacher"
    (bucket,) = find_missing(student("train.distillation.teacher=gs://bucket/model"))
    assert "not a local file" in bucket.what


def test_check_opens_the_teacher(tmp_path, student, teacher):
    (opened,) = findings_of(teacher_fits, student())
    assert (opened.severity, opened.path) == ("note", "train.distillation.teacher")
    assert f"opened {teacher}, step 1" in opened.what
    (absent,) = findings_of(teacher_fits, student(at=tmp_path / "nothing"))
    assert absent.severity == "warning"
    assert "no such model directory" in absent.what
    (other,) = findings_of(teacher_fits, student("model.box_coder.longest=7"))
    assert (other.severity, other.fix) == ("error", str(Setting("model.box_coder.longest", 4)))


def test_the_term_is_that_of_two_images_for_any_number_of_them():
    experiment = experiment_of(*SSD, *GFL, "train.batch_size=2")
    model, batch = experiment.model, make_batch(experiment)
    corners = np.random.default_rng(0).uniform(0, 0.5, (40, 2)).astype(np.float32)
    anchors = np.concatenate([corners, corners + 0.3], axis=1)
    draw = np.random.default_rng(1).normal
    logits, theirs = draw(size=(2, 2, 40, model.box_coder.code_size)).astype(np.float32)
    classes = draw(size=(2, 40, model.num_classes)).astype(np.float32)

    @jax.jit
    def distilled(arrays, ours, theirs, scores):
        output = quality_loss(
            model.loss,
            model,
            Predictions(ours, scores),
            anchors,
            (30, 10),
            LossInputs(arrays, taught=Taught(theirs, weight=0.25, temperature=10.0)),
        )
        return output.terms["distillation_loss"]

    given = batch, logits, theirs, classes
    once = distilled(*given)
    assert once > 0.0
    thrice = jax.tree.map(lambda rows: np.concatenate([rows] * 3), given)
    np.testing.assert_allclose(distilled(*thrice), once, rtol=1e-5)


def test_memory_of_a_teacher_is_counted(student):
    made, alone = student(), student("train.distillation=null")
    taught, plain = (sizes_of(experiment.model, experiment.train) for experiment in (made, alone))
    assert taught.parameters == plain.parameters
    # The teacher is another model of the same kind.
    assert taught.teacher == plain.parameters
    assert taught.teacher_activations == plain.activations
    more, less = (
        estimate(experiment, sizes, "gpu") for experiment, sizes in ((made, taught), (alone, plain))
    )
    assert more.device.low == less.device.low + plain.parameters
    assert more.device.high > less.device.high + plain.parameters

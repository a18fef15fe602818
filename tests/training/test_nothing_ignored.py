"""No field of data, model or training is ignored: another value changes the program or a batch.

Every field is changed, one at a time. That must change a part of a run: cause a refusal, change the
batches, fresh parameters, anchors, or a traced program. Nothing is compiled.
"""

import dataclasses
import re
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, get_args, get_origin

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.cli.overrides import changes_of
from stillbox.devices.mesh import DATA_AXIS, SPACE_AXIS
from stillbox.errors import UserError
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check, check_trainable
from stillbox.experiment.run_length import replicas_as_groups
from stillbox.experiment.updating import apply_changes
from stillbox.experiment.values import choices, field_types
from stillbox.experiment.variants import implementation_of
from stillbox.inputs.dataset import open_dataset
from stillbox.inputs.loader import EvalLoader, TrainLoader
from stillbox.lowering import lowering
from stillbox.models.build import build_detector
from stillbox.models.detector import LossInputs, Predictions, RatedPredictions, detect_function
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from stillbox.records.label_map import LabelMap
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import tfrecord_writer
from stillbox.training.loop import train
from stillbox.training.optimizer import build_optimizer
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program
from stillbox.training.start import start_run
from tests.inputs.helpers import example
from tests.small import SMALL
from tests.training.choices import BASE, BESIDE, ELSEWHERE, FEWER_LAYERS, OTHERS, UNUSED, VARIANTS

LABELS = """
item { id: 1 name: "disc" display_name: "a disc" }
item { id: 2 name: "ring" display_name: "a ring" }
item { id: 4 name: "star" display_name: "a star" }
"""


@pytest.mark.usefixtures("shared_programs")
def test_the_loop_follows_its_counters(experiment, tmp_path):
    counters = ["train.log_every=2", "train.checkpoint_every=3", "train.keep_checkpoints=1"]
    train(experiment("train.steps=7", *counters, evaluated=False), tmp_path)
    logged = [line["step"] for line in read_history(tmp_path / HISTORY).training]
    assert logged == [2, 4, 6, 7]
    assert ModelDirectory.open(tmp_path).steps() == (7,)
    train(
        experiment("train.steps=9", *counters, "train.keep_checkpoints=5", evaluated=False),
        tmp_path,
    )
    assert ModelDirectory.open(tmp_path).steps() == (7, 9)


@pytest.mark.usefixtures("shared_programs")
def test_entries_and_lines_have_counters_of_their_own(experiment, tmp_path, capfd):
    counters = ["train.log_every=2", "train.summary_every=3", "train.checkpoint_every=9"]
    train(experiment("train.steps=7", *counters, evaluated=False), tmp_path)
    kept = [line["step"] for line in read_history(tmp_path / HISTORY).training]
    assert kept == [3, 6, 7]
    shown = re.findall(r"^step (\d)/7 ", capfd.readouterr().err, re.MULTILINE)
    assert shown == ["1", "2", "4", "6", "7"]  # the first one always


@pytest.fixture(scope="module")
def plain_programs():
    """One form of every operation: the result does not depend on the platform."""
    with lowering(portable=True):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, plain_programs):
    """Records in which every field has an effect: a crowd, and four boxes with room for three."""
    folder = tmp_path_factory.mktemp("records")
    corners = [(0.1, 0.1, 0.5, 0.5), (0.4, 0.3, 0.9, 0.8), (0.0, 0.6, 0.3, 1.0), (0.5, 0, 1, 0.3)]
    labels = LabelMap.from_text(LABELS, "labels")
    for name, count in (("data", 4), ("other", 3)):
        with tfrecord_writer(folder / f"{name}.record") as write:
            for number in range(count):
                boxes, classes = corners[: number + 1], [1, 2, 4, 1][: number + 1]
                record = example(number, boxes, classes, crowds=(number,))
                write(serialize_example(record, labels))
    (folder / "labels.pbtxt").write_text(LABELS)
    (folder / "swapped.pbtxt").write_text(LABELS.replace('"disc"', '"hoop"'))
    yield folder
    # Detectors and open files of a hundred experiments.
    for kept in (base, original, made_of):
        kept.cache_clear()


def changed(experiment, overrides, folder):
    texts = [text.replace("{folder}", str(folder)) for text in overrides]
    return apply_changes(experiment, changes_of(texts), {})


def small():
    return resolve("demo_scenes", changes_of(SMALL)).experiment


@cache
def base(folder, variant=None):
    experiment = changed(small(), (*BASE, *(FEWER_LAYERS if variant is None else ())), folder)
    if variant is not None:
        experiment = changed(experiment, [f"{variant.strip()}={VARIANTS[variant]}"], folder)
    experiment = changed(experiment, BESIDE.get(variant, ()), folder)
    # If a base were refused, every change of it would seem to have an effect.
    check(experiment, {})
    return experiment


class Made:
    """The parts of a run; each is made on its first use."""

    def __init__(self, experiment: schema.Experiment) -> None:
        self.experiment = experiment
        check(experiment, {})
        check_trainable(experiment, {})
        data, model = experiment.data, experiment.model
        self.dataset = open_dataset(data, data.train, model)
        self.evaluation = open_dataset(data, data.evaluation, model)

    def batches(self):
        train, data = self.experiment.train, self.experiment.data
        loader = TrainLoader(
            self.dataset,
            augmentations=train.augmentations,
            batch_size=train.batch_size,
            seed=data.seed,
            shuffle=data.train.shuffle,
            repeat_first_batch=data.repeat_first_batch,
            workers=0,
            pixels=data.pixels,
            reduced_decoding=data.reduced_decoding,
        )
        some = [loader.batch(step) for step in range(6)]
        every = list(EvalLoader(self.evaluation, batch_size=2, workers=0))
        cached = self.dataset.cache is None
        return repr((loader.steps, cached)), *(a.tobytes() for b in some + every for a in b)

    @cached_property
    def trainable(self):
        return self.program(1).trainable

    @cached_property
    def started(self):
        return start_run(self.experiment, self.trainable, Path("nowhere"), None)

    def state(self):
        return sorted(self.trainable), as_bytes(self.started.state)

    @cached_property
    def detector(self):
        seed, dtype = self.experiment.train.seed, np.dtype(self.experiment.train.precision)
        model = replicas_as_groups(self.experiment.model, len(self.batch.records), 2)
        return build_detector(model, seed=seed, dtype=dtype)

    def parameters(self):
        _, params, stats = split_detector(self.detector)
        return self.detector.anchors.tobytes(), as_bytes((params, stats))

    def optimizer(self):
        layers = self.experiment.model.backbone.layers
        optimizer = build_optimizer(self.experiment.train, layers)
        paths = [f"backbone.{layer}.kernel" for layer in (layers[0], layers[-1])]
        paths += ["head.box.kernel", "neck.conv.bias", "neck.conv.norm.scale", "neck.scale_0"]
        value = {path: np.ones(2, np.float32) for path in paths}
        return traced(optimizer.update, value, optimizer.init(value), value)

    def loss(self):
        anchors, batch = self.detector.anchors, self.batch
        count, slots = len(batch.records), self.experiment.model.num_classes
        slots += self.experiment.model.background_class
        code_size = self.experiment.model.box_coder.code_size
        predictions = Predictions(
            np.zeros((count, len(anchors), code_size), np.float32),
            np.zeros((count, len(anchors), slots), np.float32),
        )
        model = self.experiment.model
        if isinstance(model.head, schema.AtssHead):
            quality = np.zeros((count, len(anchors)), np.float32)
            predictions = RatedPredictions(*predictions, quality)

        def loss(predictions, batch, step):
            inputs = LossInputs(batch, self.detector.initial_loss_state(), step, replicas=2)
            function, sizes = implementation_of(model.loss), self.detector.level_sizes
            return function(model.loss, model, predictions, anchors, sizes, inputs)

        return traced(loss, predictions, batch, np.int32(5))

    def training(self):
        def run(params, stats, images):
            detector = bind_detector(graph, params, stats)
            predictions = detector(images, train=True, dropout_key=jax.random.key(0))
            return predictions, detector.regularization(), read_statistics(detector)

        graph, params, stats = split_detector(self.detector)
        return traced(run, params, stats, self.batch.images)

    def detection(self):
        graph, params, stats = split_detector(self.detector)
        detect = detect_function(graph)
        return traced(detect, params, stats, self.batch.images, self.batch.true_sizes)

    def step(self):
        return traced(self.program(1).function, self.started.state, self.batch)

    def placement(self):
        program = self.program(4)
        return repr((program.state, program.batch))

    def program(self, rows):
        """The step on an abstract mesh of `rows` devices or groups that share an image."""
        parts = self.experiment.devices.spatial_partitions
        mesh = AbstractMesh((rows, parts), (DATA_AXIS, SPACE_AXIS))
        return train_program(plan_training(self.experiment, mesh))

    @cached_property
    def batch(self):
        return TrainLoader(self.dataset, batch_size=4, workers=0).batch(0)


# The most likely part comes first: later parts are made only if it is unchanged.
PARTS = {
    "data": ("batches", "state"),
    "train.augmentations": ("batches",),
    "train.batch_size": ("batches",),
    "train.optimizer": ("optimizer", "state"),
    "train": ("state", "step"),
    "devices": ("placement", "step"),
    "model.resizer": ("batches",),
    "model.loss": ("loss",),
    "model.matcher": ("loss",),
    "model.box_coder": ("loss", "detection"),
    "model.postprocessing": ("detection",),
    "model": ("parameters", "training", "detection", "loss"),
}

# The last part that a field of this name changed: it is the first for the same field of another
# section.
SHOWED: dict[str, str] = {}


def parts_for(path):
    return next(parts for prefix, parts in PARTS.items() if path.startswith(prefix))


def as_bytes(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), np.asarray(leaf).tobytes()) for path, leaf in leaves]


def traced(function, *arguments):
    """The program as text, without addresses in memory, and its constants."""
    program = jax.make_jaxpr(function)(*arguments)
    constants = [np.asarray(constant).tobytes() for constant in program.consts]
    return re.sub(r"0x[0-9a-f]+", "", str(program)), constants


@cache
def original(folder, variant, part):
    return getattr(made_of(folder, variant), part)()


@cache
def made_of(folder, variant):
    return Made(base(folder, variant))


def leaves(value, path=""):
    """Yields path, type and value of every field that is not a section."""
    for name, hint in field_types(type(value)).items():
        inner, field = f"{path}.{name}" if path else name, getattr(value, name)
        if dataclasses.is_dataclass(field):
            yield from leaves(field, inner)
        elif isinstance(field, tuple) and field and dataclasses.is_dataclass(field[0]):
            for index, item in enumerate(field):
                yield from leaves(item, f"{inner}.{index}")
        else:
            yield inner, hint, field


def other_values(path, hint, value):
    """Yields other values of the field, as YAML."""
    members = [member for member in choices(hint) if member is not type(None)]
    if path in OTHERS:
        yield OTHERS[path]
    elif get_origin(members[0]) is Literal:
        yield from (option for option in get_args(members[0]) if option != value)
    elif isinstance(value, bool):
        yield str(not value).lower()
    elif isinstance(value, int):
        yield from (str(value + 1), str(max(value - 1, 0)), str(2 * value + 3))
    elif isinstance(value, float):
        others = (value * 0.7, value * 1.5 + 0.2, 0.05, 0.95)
        yield from (f"{number:.6f}" for number in others if number != value)
    elif isinstance(value, tuple):
        # An empty list is filled in one of the variants.
        items = [2 * item if isinstance(item, int) else item * 0.9 for item in value]
        yield str(items or [0.1, 0.3, 0.6])


def shows(folder, variant, path, text):
    """Whether a change is refused or changes a part of a run; cheap parts come first."""
    try:
        other = Made(changed(base(folder, variant), [f"{path}={text}"], folder))
        name = path.rpartition(".")[2]
        for part in sorted(parts_for(path), key=lambda part: part != SHOWED.get(name)):
            if getattr(other, part)() != original(folder, variant, part):
                SHOWED[name] = part
                return True
    except UserError:
        return True
    return False


def is_elsewhere(path):
    return any(path == entry or path.startswith(f"{entry}.") for entry in ELSEWHERE)


def silent(folder, variant, prefix=""):
    """Returns the paths below `prefix` where a change has no effect."""
    return [
        path
        for path, hint, value in leaves(base(folder, variant))
        if path.startswith(prefix)
        and not is_elsewhere(path)
        and (variant, path) not in UNUSED
        and not (value is None and path in VARIANTS)
        and not any(shows(folder, variant, path, text) for text in other_values(path, hint, value))
    ]


def test_the_same_experiment_twice_shows_no_difference(folder):
    again = Made(base(folder))
    for part in {part for parts in PARTS.values() for part in parts}:
        assert getattr(again, part)() == original(folder, None, part), part


@pytest.mark.parametrize("prefix", ["data", "model", "train", "devices"])
def test_no_field_is_ignored(folder, prefix):
    assert silent(folder, None, prefix) == []


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_field_of_the_other_choices_is_ignored(folder, variant):
    assert silent(folder, variant, variant.strip()) == []


def test_every_section_of_the_schema_is_tested(folder):
    seen = set()
    for variant in (None, *VARIANTS):
        todo = [base(folder, variant)]
        while todo:
            section = todo.pop()
            seen.add(type(section))
            fields = [getattr(section, field.name) for field in dataclasses.fields(section)]
            items = [i for f in fields for i in (f if isinstance(f, tuple) else (f,))]
            todo += [item for item in items if dataclasses.is_dataclass(item)]
    classes = {item for item in vars(schema).values() if isinstance(item, type)}
    sections = set(filter(dataclasses.is_dataclass, classes))
    # Tests of each augmentation: tests/inputs/augment/test_every_augmentation.py.
    sections -= {*schema.Augmentation.variants.values(), schema.FixedAspectCrop}
    # Families, and the common fields of their members.
    sections -= {cls for cls in sections if cls.__subclasses__() and not hasattr(cls, "kind")}
    sections -= {schema.Range, schema.Items, schema.Outside}
    # Other blocks, mostly in the same network: tests/models/test_mobile_extractors.py.
    sections -= {schema.MobileNetV3Large, schema.MobileNetEdgeTpu}
    # tests/checkpoints/test_object_names.py.
    sections -= {schema.MobileNetMulti}
    sections -= {*schema.MobileDet.__subclasses__(), schema.InceptionV3}
    # Sections of two-stage detectors: test_nothing_ignored_two_stages.py.
    sections -= {schema.FasterRcnn, schema.RPN, schema.RoIHead, schema.InceptionV2}
    # tests/models/backbones/test_csp.py, tests/models/test_necks.py.
    sections -= {schema.Csp, schema.Pan}
    # tests/models/backbones/test_inception.py.
    sections -= {schema.InceptionResNetV2}
    sections -= {*schema.RoiCrop.variants.values(), *schema.BoxHead.variants.values()}
    # Without early stopping or a teacher their sections are not there.
    assert sections - seen == {schema.EarlyStopping, schema.Distillation}

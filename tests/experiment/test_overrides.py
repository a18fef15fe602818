import pytest

from stillbox.experiment import schema
from stillbox.experiment.updating import apply_overrides
from tests.helpers import refusal as user_error

START = schema.Experiment(
    train=schema.Training(
        augmentations=(schema.RandomHorizontalFlip(), schema.SsdRandomCrop()),
        optimizer=schema.Momentum(schedule=schema.CosineSchedule(total_steps=20000)),
    )
)


def overridden(*overrides):
    return apply_overrides(START, overrides, {})


def refusal(override):
    caught = user_error(overridden, override)
    assert caught.where == f"--set {override}"
    return caught


def test_values_take_the_type_of_their_field():
    experiment = overridden(
        "train.batch_size=8",
        "train.gradient_clip_norm=1e-4",
        "train.regularization=false",
        "train.precision=bfloat16",
        "train.ema_decay=0.5",
        "data.train.label_map=2024",
        "name=C:\\runs: first",
    )
    assert experiment.train.batch_size == 8
    assert experiment.train.gradient_clip_norm == 1e-4
    assert experiment.train.regularization is False
    assert experiment.train.precision == "bfloat16"
    assert experiment.train.ema_decay == 0.5
    assert experiment.data.train.label_map == "2024"
    assert experiment.name == "C:\\runs: first"


def test_lists_are_yaml_lists_or_one_bare_value():
    experiment = overridden(
        "data.train.paths=a-?????-of-00010.record",
        "data.evaluation.paths=[b.record, c.record]",
        "model.pixels.std=[1, 2.5, 3]",
        "train.freeze=[]",
    )
    assert experiment.data.train.paths == ("a-?????-of-00010.record",)
    assert experiment.data.evaluation.paths == ("b.record", "c.record")
    assert experiment.model.pixels.std == (1.0, 2.5, 3.0)
    assert experiment.train.freeze == ()


def test_kinds_have_their_defaults_or_keep_what_was_set():
    experiment = overridden("model.similarity=ioa", "train.augmentations=[random_horizontal_flip]")
    assert experiment.model.similarity == schema.IoaSimilarity()
    assert experiment.train.augmentations == (schema.RandomHorizontalFlip(),)
    # The kind that is there already keeps its values.
    assert overridden("train.optimizer=momentum").train.optimizer == START.train.optimizer
    experiment = overridden("train.optimizer.kind=adam")
    assert experiment.train.optimizer == schema.Adam()
    experiment = overridden("train.optimizer.kind=adam", "train.optimizer.epsilon=1")
    assert experiment.train.optimizer == schema.Adam(epsilon=1.0)
    assert overridden("train.optimizer.kind=momentum") == START


def test_optional_sections_are_switched_on_and_off():
    experiment = overridden("train.early_stopping={patience: 3}")
    assert experiment.train.early_stopping == schema.EarlyStopping(patience=3)
    experiment = overridden("train.early_stopping={}", "train.early_stopping=null")
    assert experiment.train.early_stopping is None
    experiment = overridden("model.loss.hard_example_miner.iou_threshold=0.99")
    assert experiment.model.loss.hard_example_miner == schema.HardExampleMiner(iou_threshold=0.99)


def test_elements_of_a_list_are_addressed_by_number():
    experiment = overridden(
        "train.augmentations.0.probability=0.3", "train.augmentations.1.operations.2.random_coef=0"
    )
    flip, crop = experiment.train.augmentations
    assert flip == schema.RandomHorizontalFlip(probability=0.3)
    assert [operation.random_coef for operation in crop.operations] == [
        0.15,
        0.15,
        0.0,
        *[0.15] * 4,
    ]
    assert overridden("model.pixels.mean.1=3").model.pixels.mean == (127.5, 3.0, 127.5)


def test_a_later_override_wins_and_a_text_can_be_emptied():
    assert overridden("train.steps=1", "train.steps=2").train.steps == 2
    assert overridden("data.train.label_map=x", "data.train.label_map=").data.train.label_map == ""


def test_origins_follow_what_is_set():
    origins = {
        "train.optimizer.momentum": "p.config:5:1",
        "train.optimizer.schedule.total_steps": "p.config:6:1",
        "train.augmentations.0.probability": "p.config:7:1",
        "train.steps": "p.config:8:1",
    }
    overrides = ["train.optimizer.kind=adam", "train.steps=3", "train.augmentations=[]"]
    apply_overrides(START, overrides, origins)
    assert origins == {
        "train.optimizer.kind": "--set train.optimizer.kind=adam",
        "train.steps": "--set train.steps=3",
        "train.augmentations": "--set train.augmentations=[]",
    }


@pytest.mark.parametrize(
    ("override", "message", "fix"),
    [
        ("train.batchsize=8", "train has no field 'batchsize'", "did you mean 'batch_size'?"),
        ("trian.steps=8", "the experiment has no field 'trian'", "did you mean 'train'?"),
        ("batch_size=8", "no field 'batch_size'", "'train.batch_size' or 'evaluation.batch_size'"),
        ("train.steps=many", "train.steps is a whole number, not 'many'", None),
        ("train.steps=1.5", "train.steps is a whole number, not 1.5", None),
        ("train.steps=true", "train.steps is a whole number, not True", None),
        ("train.steps=", "train.steps is a whole number, not null", None),
        ("train.regularization=1", "is true or false, not 1", None),
        ("train.steps.x=1", "train.steps is a whole number, not a section", None),
        ("train.optimizer.schedule.gamma=1", "(kind cosine) has no field 'gamma'", "valid here"),
        ("train.augmentations.2.probability=1", "has no element 2", "it has 2, counted from 0"),
        ("train.augmentations=[{kind: flip}]", "has no kind 'flip'", "random_horizontal_flip"),
        ("data.train.paths=[a-?????-of-00010]", "not YAML", "in quotes"),
        ("train.steps", "a path, an equals sign and a value", "--set train.batch_size=8"),
        ("=5", "a path, an equals sign and a value", None),
        ("train..steps=5", "a path, an equals sign and a value", None),
        ("train=!!python/name:os.system", "train is a section", None),
    ],
)
def test_what_does_not_fit_is_refused_with_the_option_and_the_remedy(override, message, fix):
    error = refusal(override)
    assert message in error.what
    assert fix is None or fix in error.fix

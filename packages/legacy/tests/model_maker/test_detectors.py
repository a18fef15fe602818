"""Training, scores and exports of small networks."""

import pytest

from stillbox.api import load_model
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.errors import UserError
from stillbox.experiment.resolve import changed
from stillbox.training.loop import Outcome
from stillbox_legacy.model_maker import detectors, mediapipe_model_maker, tflite_model_maker
from stillbox_legacy.model_maker.tflite_model_maker.config import ExportFormat, QuantizationConfig
from tests.helpers import refused

lite, mobile = tflite_model_maker.object_detector, mediapipe_model_maker.object_detector


@pytest.fixture
def data(annotated, tmp_path):
    paths = str(annotated / "images"), str(annotated / "Annotations")
    return lite.DataLoader.from_pascal_voc(*paths, ["small", "large"], cache_dir=str(tmp_path))


def spec_in(folder, **arguments):
    name = "efficientdet_lite0"
    return tflite_model_maker.model_spec.get(name, model_dir=str(folder), **arguments)


def test_the_experiment_of_a_specification(data, tmp_path, small_networks):
    spec = spec_in(tmp_path, moving_average_decay=0.9)
    spec.config.lr_warmup_epoch = 2
    experiment = spec.experiment(data.records, data.records, epochs=3, batch_size=4)
    train = experiment.train
    # Two whole batches of ten images.
    assert (train.steps, train.batch_size, train.checkpoint_every) == (6, 4, 2)
    assert train.evaluate_every == 5 * 2
    schedule = train.optimizer.schedule
    assert schedule.learning_rate == pytest.approx(0.08 * 4 / 64)
    assert schedule.warmup_learning_rate == pytest.approx(0.008 * 4 / 64)
    assert (schedule.warmup_steps, schedule.total_steps) == (4, 6)
    assert (train.ema_decay, train.precision, train.freeze) == (0.9, "float32", ())
    assert experiment.model.num_classes == 2
    assert experiment.data.evaluation.annotations == ""
    assert [augmentation.kind for augmentation in train.augmentations] == [
        "random_horizontal_flip",
        "random_scale_crop_and_pad_to_square",
    ]


def test_only_what_is_not_random_is_frozen(data, tmp_path, small_networks, capsys):
    spec = spec_in(tmp_path)
    spec.uri = "efficientnet_lite0"
    experiment = spec.experiment(data.records, None, 1, 4)
    assert experiment.train.freeze == ("^backbone",)
    assert experiment.train.fine_tune.checkpoint == "efficientnet_lite0"
    assert "does not freeze neck: its initial weights are random" in capsys.readouterr().err
    spec.config.var_freeze_expr = None
    assert spec.experiment(data.records, None, 1, 4).train.freeze == ()


@pytest.mark.parametrize("path", ["/home/o'brien/weights.npz", "a, b}"])
def test_a_path_of_weights_has_any_character(tmp_path, path):
    spec = spec_in(tmp_path)
    spec.uri = path
    overrides, _ = spec._weights(spec.recipe)
    assert changed(spec.recipe, overrides).train.fine_tune.checkpoint == path


@pytest.mark.parametrize(
    ("steps", "decay"),
    # .97 leaves 2 % after 134 steps, and .99 1e-4 after 916.
    [(134, 0.9), (500, 0.97), (917, 0.99)],
)
def test_batch_norms_settle_within_short_runs(
    data, tmp_path, small_networks, monkeypatch, steps, decay
):
    """EfficientDet's decay of .99 leaves a quarter of the first variances after 134 steps."""
    trained = []

    def train(experiment, *_, **__):
        trained.append(experiment)
        return Outcome(step=steps, reason="done", scores=None)

    monkeypatch.setattr(detectors, "train", train)
    experiment = spec_in(tmp_path).experiment(data.records, None, epochs=1, batch_size=4)
    detectors.train_run(changed(experiment, {"train.steps": steps}), tmp_path)
    model = trained[0].model
    for path in ("backbone.conv", "neck.conv", "head.conv"):
        assert model.convolutions()[path].batch_norm.decay == decay


@pytest.mark.slow
def test_the_same_call_does_not_train_again(data, tmp_path, small_networks, no_charts, capsys):
    spec = spec_in(tmp_path / "runs")
    first = lite.create(data, spec, data, epochs=1, batch_size=4, train_whole_model=True)
    assert ModelDirectory.open(first.directory).steps()[-1] == 2
    capsys.readouterr()
    again = lite.create(data, spec, data, epochs=1, batch_size=4, train_whole_model=True)
    assert again.directory == first.directory
    assert "trained before, with the same data and settings" in capsys.readouterr().err
    metrics = first.evaluate(data)
    assert metrics == again.evaluate(data, batch_size=2)
    assert list(metrics)[-2:] == ["AP_/small", "AP_/large"]
    with pytest.raises(UserError, match="not what this detector was exported to"):
        first.evaluate_tflite(str(first.directory / "experiment.yaml"), data)
    config = first.model_spec.config
    assert (config.num_classes, config.label_map.as_dict()) == (2, {1: "small", 2: "large"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"export_format": ExportFormat.TFJS}, "use TFLITE, SAVED_MODEL, LABEL"),
        ({"quantisation_config": None}, "'quantization_config'"),
        ({"quantization_config": "int8"}, "is no configuration"),
    ],
)
def test_exports_without_a_counterpart(data, tmp_path, arguments, message):
    model = lite.ObjectDetector(spec_in(tmp_path), data.label_map, data)
    model.directory = tmp_path
    with pytest.raises(UserError, match=message):
        model.export(str(tmp_path), **arguments)


def test_labels_alone(data, tmp_path):
    model = lite.ObjectDetector(spec_in(tmp_path), {1: "a", 3: "b"}, data)
    model.export(str(tmp_path / "out"), export_format=[ExportFormat.LABEL])
    assert (tmp_path / "out/labels.txt").read_text() == "a\n???\nb\n"


def test_what_cannot_be_trained_is_refused(data, tmp_path):
    with refused("batch_size", 64):
        lite.create(data, spec_in(tmp_path))
    with pytest.raises(UserError, match="do_train=False"):
        lite.create(data, spec_in(tmp_path), do_train=False)
    with refused("train"):
        lite.ObjectDetector(spec_in(tmp_path), data.label_map).evaluate(data)


def test_a_stopped_run_is_no_detector(data, tmp_path, monkeypatch):
    """Ctrl-C ends a run with a checkpoint; what follows in the notebook must not go on."""
    stopped = Outcome(step=1, reason="stopped by SIGINT at step 1", scores=None, interrupted=2)
    monkeypatch.setattr(detectors, "train", lambda *arguments, **options: stopped)
    with refused("", "SIGINT"):
        lite.create(data, spec_in(tmp_path), epochs=1, batch_size=4)


def test_integers_are_measured_on_the_training_data(data, tmp_path):
    model = lite.ObjectDetector(spec_in(tmp_path), data.label_map, data)
    export = model._quantization("default")
    assert (export.quantize, export.input_type, export.steps) == ("int8", "image_tensor", 500)
    assert export.calibration == data.records
    assert model._quantization(None).input_type == "raw_image_tensor"
    kinds = [
        model._quantization(config)[:2]
        for config in (
            QuantizationConfig.for_dynamic(),
            QuantizationConfig.for_float16(),
            QuantizationConfig(optimizations=[]),
        )
    ]
    floats = "raw_image_tensor"
    assert kinds == [("dynamic", floats), ("float16", floats), ("none", floats)]


@pytest.fixture
def images(annotated, tmp_path):
    return mobile.Dataset.from_coco_folder(str(annotated), cache_dir=str(tmp_path / "cache"))


def options(folder, model="MOBILENET_V2", **hparams):
    hyperparameters = mobile.HParams(
        export_dir=str(folder), **({"batch_size": 4, "epochs": 1} | hparams)
    )
    return mobile.ObjectDetectorOptions(mobile.SupportedModels[model], hparams=hyperparameters)


def detector(images, chosen):
    spec = mobile.SupportedModels.get(chosen.supported_model)
    options = mobile.ModelOptions(l2_weight_decay=1e-4)
    return mobile.ObjectDetector(spec, images.label_names, chosen.hparams, options)


def test_the_experiment_of_hyperparameters(images, tmp_path):
    chosen = options(
        tmp_path, "MOBILENET_V2_I320", epochs=10, cosine_decay_epochs=20, cosine_decay_alpha=0.1
    )
    experiment = detector(images, chosen)._experiment(images, images)
    schedule = experiment.train.optimizer.schedule
    assert (experiment.train.steps, schedule.total_steps, schedule.warmup_steps) == (20, 40, 2)
    assert schedule.learning_rate == pytest.approx(0.3 * 4 / 256)
    assert schedule.final_learning_rate == pytest.approx(0.03 * 4 / 256)
    assert experiment.model.resizer.input_size == (320, 320)
    assert (experiment.model.neck.max_level, experiment.model.anchors.max_level) == (6, 6)
    assert experiment.model.backbone.conv.regularizer.weight == 1e-4
    assert not experiment.data.train.shuffle
    assert list(experiment.model.normalization.mean) == [127.5] * 3


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"class_weights": {1: 2.0}}, "classes of a detector have no weights"),
        ({"repeat": True}, "the length of an epoch is open"),
        ({"epochs": 0}, "the run has no step"),
        ({"batch_size": 11}, "fewer than a batch of 11"),
    ],
)
def test_wrong_hyperparameters(images, tmp_path, hparams, message):
    with pytest.raises(UserError, match=message):
        mobile.ObjectDetector.create(images, images, options(tmp_path, **hparams))


@pytest.mark.slow
def test_training_scores_and_training_for_integers(
    images, tmp_path, small_networks, no_charts, capsys
):
    chosen = options(tmp_path / "out", "MOBILENET_MULTI_AVG")
    model = mobile.ObjectDetector.create(images, images, chosen)
    assert "MobileNet v2 with the same input, 256x256, is trained" in capsys.readouterr().err
    loss, metrics = model.evaluate(images, batch_size=3)
    assert loss[3] == pytest.approx(loss[1] + 50 * loss[2])
    assert loss[0] > loss[3]
    assert metrics["AP"] >= 0
    assert "Recall AR@10 ByCategory/1" in metrics
    with pytest.raises(UserError, match="is no Dataset"):
        model.export_model("a.tflite", QuantizationConfig.for_int8("photos"))
    floats = model._run()
    model.quantization_aware_training(images, images, mobile.QATHParams(batch_size=5, epochs=1))
    integers = model._run()
    trained = load_model(integers).experiment.train
    assert (trained.quantization.delay, trained.steps) == (0, 2)
    schedule = trained.optimizer.schedule
    assert (schedule.decay_steps, schedule.decay_factor) == (8, 0.96)
    qat_loss, _ = model.evaluate(images)
    assert qat_loss[0] == qat_loss[3]
    with pytest.raises(UserError, match="restore_float_ckpt first"):
        model.quantization_aware_training(images, images, mobile.QATHParams())
    with pytest.raises(UserError, match="has its own quantisation"):
        model.export_model(quantization_config=QuantizationConfig.for_float16())
    model.restore_float_ckpt()
    assert model._run() == floats

"""Imports of weights into a detector, and their report."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from stillbox.checkpoints import checkpoint as checkpoint_format
from stillbox.checkpoints.array_files import NpzFile, write_npz
from stillbox.checkpoints.import_report import ImportReport, Mismatch
from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.checkpoints.names import reference_names
from stillbox.errors import UserError
from stillbox.experiment import schema
from tests.checkpoints.detectors import build, random_arrays, read, ssd_mobilenet_shapes
from tests.checkpoints.tf_writer import write_checkpoint
from tests.checkpoints.torch_writer import state_dict, write_zip
from tests.helpers import refused

KERNEL = "backbone.conv_0.kernel"
NAME = "FeatureExtractor/MobilenetV1/Conv2d_0/weights"


def _model(classes=20):
    return schema.OneStage(num_classes=classes)


def _shapes(classes=20):
    return ssd_mobilenet_shapes(classes=classes, multiplier=0.25)


def _reference_arrays(shapes, scope="detection"):
    """Random weights under the original's names."""
    structs = {path: np.empty(shape) for path, shape in shapes.items()}
    names = reference_names(_model(), structs, scope=scope)
    return random_arrays({name: shapes[path] for path, name in names.items()})


def _import(detector, path, *, classes=20, scope="detection", heads=False, least=0.5, **options):
    options = {"for_training": True, "scope": scope, "load_heads": heads} | options
    options = ImportOptions(min_loaded=least, **options)
    return import_weights(detector, _model(classes), path, options)


@pytest.fixture
def detector():
    return build(_shapes())


def test_a_detection_checkpoint_is_loaded_completely(tmp_path, detector):
    arrays = _reference_arrays(_shapes())
    write_checkpoint(tmp_path / "model.ckpt", arrays)
    report = _import(detector, tmp_path / "model.ckpt", heads=True, least=1.0)
    assert len(report.loaded) == report.wanted == 199
    assert not report.missing and not report.mismatched and not report.skipped
    for path, name in report.loaded.items():
        assert np.array_equal(read(detector, path), arrays[name]), path


def test_without_heads_only_the_feature_extractor_is_taken(tmp_path, detector):
    write_checkpoint(tmp_path / "model.ckpt", _reference_arrays(_shapes()))
    report = _import(detector, tmp_path / "model.ckpt")
    # 199 less a kernel and a bias of two heads on six maps.
    assert len(report.loaded) == 199 - 24
    assert set(report.skipped.values()) == {"head not asked for"}
    assert np.all(read(detector, "head.map_0.box.kernel") == 7)


def test_a_classifier_loads_the_backbone_and_skips_its_logits(tmp_path, detector):
    arrays = _reference_arrays(_shapes(), scope="classification")
    arrays["MobilenetV1/Logits/Conv2d_1c_1x1/biases"] = np.zeros(1001, np.float32)
    bars = {name.replace("/", "|"): array for name, array in arrays.items()}
    np.savez(tmp_path / "w.npz", **bars)
    report = _import(detector, tmp_path / "w.npz", scope="classification", least=1.0)
    assert len(report.loaded) == 135
    assert report.skipped == {"MobilenetV1/Logits/Conv2d_1c_1x1/biases": "classifier's logits"}
    assert np.all(read(detector, "neck.extra_2_1x1.kernel") == 7)


def test_optimizer_slots_and_counters_are_skipped_with_their_reason(tmp_path, detector):
    arrays = _reference_arrays(_shapes())
    extra = {f"{NAME}/{slot}": arrays[NAME] for slot in ("Momentum", "RMSProp", "RMSProp_1")}
    extra["global_step"] = np.array(7, np.int64)
    extra[f"{NAME}/ExponentialMovingAverage"] = arrays[NAME] + 1
    extra["Mystery/weights"] = np.zeros(3, np.float32)
    write_checkpoint(tmp_path / "model.ckpt", arrays | extra)
    report = _import(detector, tmp_path / "model.ckpt", heads=True)
    reasons = {name: report.skipped[name] for name in extra}
    assert reasons == {
        f"{NAME}/Momentum": "optimizer slot",
        f"{NAME}/RMSProp": "optimizer slot",
        f"{NAME}/RMSProp_1": "optimizer slot",
        f"{NAME}/ExponentialMovingAverage": "moving average",
        "global_step": "training counter",
        "Mystery/weights": "no such parameter in this model",
    }
    assert "3 optimizer slot" in report.render()
    assert np.array_equal(read(detector, KERNEL), arrays[NAME])
    # Moving averages are taken where they are preferred.
    report = _import(detector, tmp_path / "model.ckpt", prefer_ema=True)
    assert report.loaded[KERNEL] == f"{NAME}/ExponentialMovingAverage"
    assert report.skipped[NAME] == "its moving average was taken"
    assert np.array_equal(read(detector, KERNEL), arrays[NAME] + 1)


def test_an_array_of_another_shape_is_not_read(tmp_path, detector, monkeypatch):
    sizes = []
    monkeypatch.setattr(NpzFile, "_read", lambda self, name, entry: sizes.append(entry.shape))
    kernel = np.zeros((3, 3, 3, 20_000), np.uint8)
    write_npz(tmp_path / "w.npz", {NAME.replace("/", "|"): kernel, "b/unasked": np.ones(9)})
    with refused("w.npz", "[3, 3, 3, 20000]"):
        _import(detector, tmp_path / "w.npz")
    assert not sizes


def test_heads_for_other_classes_stay_fresh_and_the_report_says_so(tmp_path, detector):
    write_checkpoint(tmp_path / "model.ckpt", _reference_arrays(_shapes(classes=90)))
    report = _import(detector, tmp_path / "model.ckpt", heads=True)
    # The class kernel and bias of six maps; the box heads fit.
    assert len(report.mismatched) == 12
    assert report.notes == (
        "the class head in the file has 91 logits a box, this model's has 21: "
        "heads of another shape keep their fresh weights",
    )
    assert "note: the class head" in report.render()
    assert np.all(read(detector, "head.map_0.class_.kernel") == 7)
    assert np.any(read(detector, "head.map_0.box.kernel") != 7)


def test_half_precision_weights_become_float32(tmp_path, detector):
    arrays = {
        name: array.astype(jnp.bfloat16) for name, array in _reference_arrays(_shapes()).items()
    }
    write_checkpoint(tmp_path / "model.ckpt", arrays)
    _import(detector, tmp_path / "model.ckpt")
    assert read(detector, KERNEL).dtype == np.float32
    assert np.array_equal(read(detector, KERNEL), arrays[NAME].astype(np.float32))


def test_weights_under_our_own_paths_are_loaded(tmp_path, detector):
    arrays = random_arrays(_shapes())
    write_npz(tmp_path / "params.npz", arrays)
    report = _import(detector, tmp_path / "params.npz", heads=True, least=1.0)
    assert len(report.loaded) == 199
    assert np.array_equal(read(detector, KERNEL), arrays[KERNEL])


def test_a_file_without_any_match_is_refused_and_changes_nothing(tmp_path, detector):
    write_checkpoint(tmp_path / "model.ckpt", {"resnet/conv1/weights": np.zeros(3, np.float32)})
    with refused("model.ckpt", 175, "0%") as caught:
        _import(detector, tmp_path / "model.ckpt", least=0.0)
    assert "resnet/conv1/weights" in str(caught.value)
    assert np.all(read(detector, KERNEL) == 7)


def test_too_small_a_share_is_refused_and_changes_nothing(tmp_path, detector):
    arrays = _reference_arrays(_shapes())
    some = {name: arrays[name] for name in sorted(arrays) if "Conv2d_1_" in name}
    write_checkpoint(tmp_path / "model.ckpt", some)
    # Depthwise and pointwise with five arrays each: 10 / 175 = 5.7 %.
    with refused("model.ckpt", 10, 175, "5%"):
        _import(detector, tmp_path / "model.ckpt")
    assert np.all(read(detector, "backbone.conv_1_pointwise.kernel") == 7)
    assert len(_import(detector, tmp_path / "model.ckpt", least=0.05).loaded) == 10


def test_the_wrong_scope_is_guessed(tmp_path, detector):
    write_checkpoint(tmp_path / "model.ckpt", _reference_arrays(_shapes(), "classification"))
    with pytest.raises(UserError, match=r"train\.fine_tune\.scope=classification"):
        _import(detector, tmp_path / "model.ckpt")


@pytest.mark.parametrize(
    ("scope", "classes", "advice"),
    [
        ("classification", 20, "train a detector from it first"),
        ("detection", 7, "give a config with the classes that the weights were trained for"),
    ],
)
def test_without_training_no_field_of_it_is_advised(tmp_path, detector, scope, classes, advice):
    write_checkpoint(tmp_path / "model.ckpt", _reference_arrays(_shapes(classes), scope))
    with pytest.raises(UserError, match=advice) as caught:
        _import(detector, tmp_path / "model.ckpt", heads=True, least=1.0, for_training=False)
    assert "fine_tune" not in caught.value.fix


def test_an_import_of_another_width_shows_a_shape(tmp_path, detector):
    wide = ssd_mobilenet_shapes(classes=20, multiplier=0.5)
    write_checkpoint(tmp_path / "model.ckpt", _reference_arrays(wide))
    with refused("model.ckpt", "[3, 3, 3, 16]", "depth_multiplier"):
        _import(build(ssd_mobilenet_shapes(classes=20)), tmp_path / "model.ckpt")


def test_gamma_of_a_batch_norm_without_scale_is_reported(tmp_path):
    shapes = {path: s for path, s in _shapes().items() if not path.endswith("norm.scale")}
    detector = build(shapes)
    write_checkpoint(tmp_path / "model.ckpt", _reference_arrays(_shapes()))
    report = _import(detector, tmp_path / "model.ckpt")
    assert (
        list(report.skipped.values()).count("gamma, but this model's batch norm has no scale") == 35
    )


def test_what_skip_matches_keeps_its_fresh_values(tmp_path, detector):
    write_checkpoint(tmp_path / "model.ckpt", _reference_arrays(_shapes()))
    # By the file's name and by ours: a kernel with four arrays of batch norm, and six class heads
    # of a kernel and a bias.
    skip = (r"^FeatureExtractor/MobilenetV1/Conv2d_0/", r"^head\..*class_")
    report = _import(detector, tmp_path / "model.ckpt", heads=True, least=1.0, skip=skip)
    assert len(report.loaded) == report.wanted == 199 - 5 - 12
    assert np.all(read(detector, KERNEL) == 7)
    assert report.skipped[NAME] == "train.fine_tune.skip matches it"
    assert list(report.skipped.values()) == ["train.fine_tune.skip matches it"] * 17
    with refused("train.fine_tune.skip", "Conv_0/"):
        _import(detector, tmp_path / "model.ckpt", skip=("Conv_0/",))


@dataclass(frozen=True, kw_only=True)
class _NamelessNeck(schema.SsdExtraLayers, kind="nameless_neck"):
    pass


# Otherwise it would be part of the schema in all tests of this process.
del schema.Neck.variants["nameless_neck"]


def _import_with_own_neck(detector, path, **options):
    model = replace(_model(), neck=_NamelessNeck())
    options = {"for_training": True, "load_heads": False} | options
    options = ImportOptions(min_loaded=0.5, **options)
    return import_weights(detector, model, path, options)


def test_a_tf1_checkpoint_is_refused_for_a_part_without_a_name_table(tmp_path, detector):
    write_checkpoint(tmp_path / "model.ckpt", _reference_arrays(_shapes()))
    with refused("model.ckpt", "TF1", "nameless_neck") as caught:
        _import_with_own_neck(detector, tmp_path / "model.ckpt")
    assert r"train.fine_tune.skip=['^neck\.']" in caught.value.fix
    with refused("model.ckpt"):
        _import_with_own_neck(detector, tmp_path / "model.ckpt", for_training=False)
    assert np.all(read(detector, KERNEL) == 7)
    report = _import_with_own_neck(detector, tmp_path / "model.ckpt", skip=(r"^neck\.",))
    assert len(report.loaded) == report.wanted == 135


def test_a_part_without_a_name_table_is_loaded_under_our_own_paths(tmp_path, detector):
    arrays = random_arrays(_shapes())
    write_npz(tmp_path / "params.npz", arrays)
    assert len(_import_with_own_neck(detector, tmp_path / "params.npz").loaded) == 175
    path = "neck.extra_2_1x1.kernel"
    assert np.array_equal(read(detector, path), arrays[path])
    # A file of other names.
    np.savez(tmp_path / "w.npz", **{"neck/extra": np.zeros(3, np.float32)})
    with refused("w.npz", "nameless_neck"):
        _import_with_own_neck(detector, tmp_path / "w.npz")


def _write_directory(path, arrays):
    path.mkdir()
    checkpoint_format.write_checkpoint(path, 1, {"params": arrays}, {})


# Files of every format may have our own paths.
WRITERS = {
    "w.ckpt": write_checkpoint,
    "w.npz": write_npz,
    "w.safetensors": lambda path, arrays: save_file(arrays, path),
    "w.pth": lambda path, arrays: write_zip(path, state_dict(arrays)),
    "1": _write_directory,
}


@pytest.mark.parametrize("name", WRITERS)
def test_weights_that_are_not_finite_are_refused_by_name(name, tmp_path, detector):
    arrays = random_arrays(_shapes())
    for value in (np.nan, np.inf):
        bad = arrays | {KERNEL: np.full_like(arrays[KERNEL], 1)}
        bad[KERNEL].flat[:2] = value
        folder = tmp_path / str(value)
        folder.mkdir()
        WRITERS[name](folder / name, bad)
        with refused("", 2, 432) as caught:
            _import(detector, folder / name)
        assert KERNEL in caught.value.what
        assert np.all(read(detector, KERNEL) == 7)


def test_several_arrays_that_are_not_finite_are_counted(tmp_path, detector):
    arrays = random_arrays(_shapes())
    large = {name: array.astype(np.float64) * 1e300 for name, array in arrays.items()}
    # What is not taken may hold anything.
    large |= {name: array for name, array in arrays.items() if "conv_1" not in name}
    large["head.map_0.box.bias"] = np.full((12,), np.nan)
    write_npz(tmp_path / "w.npz", large)
    with refused("w.npz", 46):
        _import(detector, tmp_path / "w.npz")


def test_the_report_counts_and_lists_arrays():
    report = ImportReport(
        path="model.ckpt",
        loaded={"backbone.conv_0.kernel": "Conv2d_0/weights"},
        skipped={"Conv2d_0/weights/Momentum": "optimizer slot", "global_step": "training counter"},
        missing={f"neck.{n}": f"Extra_{n}/weights" for n in range(7)},
        mismatched=(Mismatch("head.map_0.box.bias", "Box/biases", (12,), (24,)),),
        notes=("look here",),
    )
    # 1 loaded, 7 missing and 1 of another shape are 9.
    assert report.summary() == (
        "1 of 9 wanted arrays loaded, 7 missing, 1 of another shape, 2 not wanted"
    )
    assert report.loaded_share == 1 / 9
    assert ImportReport("a.npz", {}, {}, {}, ()).loaded_share == 0
    assert report.render().splitlines() == [
        "weights from model.ckpt",
        "  loaded          1 of 9 wanted arrays",
        "  missing         7",
        "                    Extra_0/weights",
        "                    Extra_1/weights",
        "                    Extra_2/weights",
        "                    Extra_3/weights",
        "                    Extra_4/weights",
        "                    and 2 more",
        "  other shape     1",
        "                    Box/biases: [24] in the file, [12] wanted",
        "  not wanted      2",
        "                       1 optimizer slot",
        "                       1 training counter",
        "  note: look here",
    ]

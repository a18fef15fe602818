"""An export appears whole and compared, or not at all."""

import errno
from dataclasses import replace

import numpy as np
import pytest
from jax.export import default_export_platform

from stillbox.errors import UserError
from stillbox.evaluation.results import RawDetections
from stillbox.experiment.resolve import changed
from stillbox.exporting import export as exporting
from stillbox.exporting.backend import ExportBackend
from stillbox.exporting.export import export_model
from stillbox.exporting.images import choose_images
from stillbox.exporting.manifest import MANIFEST, Manifest, Written, add_files
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.verification import Choices, agree, choices_of, verify
from stillbox.predicting.backend import Prepared
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.references import Parameter
from tests.helpers import refused
from tests.inputs.helpers import example, write

IMAGE = np.zeros((100, 200, 3), np.uint8)


class Fixed:
    """A backend with the same detections in every image."""

    batch_sizes, class_names, source, max_detections = None, {}, "test", 100
    tiling = None

    def __init__(self, *rows):
        self.rows = rows

    def prepare(self, image, where=None):
        return Prepared(image, image.shape[:2], image.shape[:2])

    def run(self, images):
        boxes = np.array([row[:4] for row in self.rows], np.float64).reshape(-1, 4)
        scores = np.array([row[4] for row in self.rows])
        detections = RawDetections(boxes, scores, np.array([row[5] for row in self.rows], np.int64))
        return [detections for _ in images]


OWL = (10, 20, 30, 40, 0.9, 1)
MOUSE = (50, 60, 70, 80, 0.5, 2)
LAST = (0, 0, 9, 9, 0.1, 2)


def test_differences_within_the_tolerances_are_reported():
    near = (10.25, 20, 30, 40, 0.9005, 1)
    result = verify(Fixed(near, MOUSE, LAST), Fixed(OWL, MOUSE, LAST), [IMAGE, IMAGE])
    assert (result.images, result.detections) == (2, 6)
    assert result.max_box_difference == 0.25
    assert result.max_score_difference == pytest.approx(0.0005)


@pytest.mark.parametrize(
    "other",
    [
        (10.6, 20, 30, 40, 0.9, 1),  # more than half a pixel
        (10, 20, 30, 40, 0.9011, 1),  # a score more than 0.001 away
        (10, 20, 30, 40, 0.9, 2),  # another class
    ],
)
def test_a_difference_beyond_a_tolerance_is_refused_with_its_place(other):
    with refused("verification of the export", "checkpoint", 1, "0.9000"):
        verify(Fixed(other, MOUSE, LAST), Fixed(OWL, MOUSE, LAST), [IMAGE])


def test_a_detection_of_the_artefact_alone_is_refused():
    with refused("verification of the export", "artefact", 1):
        verify(Fixed(OWL, MOUSE, LAST), Fixed(MOUSE, LAST), [IMAGE])


def test_the_last_detection_may_fall_to_either_side_of_the_end():
    other_last = (90, 90, 99, 99, 0.1004, 3)
    artefact, checkpoint = Fixed(OWL, other_last), Fixed(OWL, LAST)
    with refused("verification of the export", "checkpoint", 2):
        verify(artefact, checkpoint, [IMAGE])
    checkpoint.max_detections = 2  # both lists are full
    assert verify(artefact, checkpoint, [IMAGE]).detections == 1


def test_a_detection_at_the_score_threshold_may_be_missing():
    assert verify(Fixed(OWL), Fixed(OWL, LAST), [IMAGE], score_threshold=0.0995).detections == 1


# The second overlaps the first and the third, which do not overlap each other, by more than .3.
_BOXES = np.array([[0, 0, 10, 10], [0, 4, 10, 14], [0, 8, 10, 18], [0, 40, 10, 50]], np.float64)
CROWD = Choices(
    boxes=_BOXES,
    shown=_BOXES,
    scores=np.array([[0.5], [0.5004], [0.5], [0.4]]),
    class_ids=np.array([1]),
    iou_threshold=0.3,
)
FIRST, MIDDLE, THIRD, FAR = (
    (*box, score, 1) for box, score in zip(CROWD.boxes, CROWD.scores[:, 0], strict=True)
)


@pytest.mark.parametrize(
    "rows, explained",
    [
        ((FIRST, THIRD, FAR), True),  # of equal scores another was first
        ((FIRST, FAR), False),  # the third is missing, and nothing suppresses it
        ((FIRST, THIRD), False),  # nothing suppresses the one that is far away
        (((0, 1, 10, 11, 0.5, 1), THIRD, FAR), False),  # a box that the checkpoint lacks
        (((*FIRST[:4], 0.45, 1), THIRD, FAR), False),  # a score that it lacks
        ((FIRST, THIRD, FAR, (*FAR[:4], 0.4, 9)), False),  # a class that it lacks
        ((MIDDLE, THIRD, FAR), False),  # the first of two that overlap is there
        ((), False),
    ],
)
def test_equal_scores_let_suppression_choose_other_boxes(rows, explained):
    artefact, checkpoint = Fixed(*rows), Fixed(MIDDLE, FAR)
    with refused("verification of the export", "alone"):
        verify(artefact, checkpoint, [IMAGE])
    if explained:
        result = verify(artefact, checkpoint, [IMAGE], choices=lambda image: CROWD)
        assert (result.detections, result.ties) == (1, 3)
        assert "3 others are a choice among equal scores" in result.render()
    else:
        with pytest.raises(UserError, match="alone finds"):
            verify(artefact, checkpoint, [IMAGE], choices=lambda image: CROWD)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clip_first": True},
        {"change_coordinate_frame": False},
        {"clip": False, "max_candidates_per_class": 5},
        {"combined": True, "change_coordinate_frame": False},
    ],
)
def test_a_checkpoint_finds_what_suppression_may_choose(model, images, changes):
    fields = {f"model.postprocessing.nms.{name}": value for name, value in changes.items()}
    model = replace(model, experiment=changed(model.experiment, fields))
    checkpoint = CheckpointBackend(model)
    choices = choices_of(ExportProgram(model, ExportSettings()), checkpoint)(images[0])
    detections = checkpoint.run([checkpoint.prepare(images[0])])[0]
    end = detections.scores[-1]
    assert len(detections.scores) > 10
    assert choices.allow(detections, end)
    assert not choices.allow(detections._replace(boxes=detections.boxes + 0.75), end)
    assert not choices.allow(detections._replace(scores=detections.scores - 0.002), end)


@pytest.mark.parametrize(
    "changes", [{"soft_sigma": 0.5}, {"class_agnostic": True}, {"clip_margin": 2.0}]
)
def test_other_suppression_has_to_find_the_same(model, changes):
    fields = {f"model.postprocessing.nms.{name}": value for name, value in changes.items()}
    model = replace(model, experiment=changed(model.experiment, fields))
    program = ExportProgram(model, ExportSettings())
    assert choices_of(program, CheckpointBackend(model)) is None


def test_only_the_scores_of_a_blank_image_are_compared():
    elsewhere = (0, 0, 50, 50, 0.9004, 1)
    result = verify(Fixed(elsewhere), Fixed(OWL), [], blank=[IMAGE])
    assert (result.images, result.detections) == (1, 0)
    assert result.max_score_difference == pytest.approx(0.0004)
    with refused("verification of the export", "100x200", "0.9000", 0):
        verify(Fixed(), Fixed(OWL), [], blank=[IMAGE])


def test_a_quantised_artefact_has_to_find_sure_detections():
    moved = (12, 22, 32, 42, 0.7, 1)
    result = agree(Fixed(moved), Fixed(OWL, LAST), [IMAGE, IMAGE])
    assert (result.images, result.detections, result.found) == (2, 2, 2)
    with refused(Parameter("quantize"), 0, 1):
        agree(Fixed((*OWL[:5], 2)), Fixed(OWL), [IMAGE])


FAINT = (10, 20, 30, 40, 0.29, 1)


def test_without_sure_detections_the_best_scores_are_compared():
    result = agree(Fixed((50, 60, 70, 80, 0.25, 1)), Fixed(FAINT, LAST), [IMAGE])
    # The class of LAST has .1, and the artefact lacks it.
    assert (result.detections, result.max_score_difference) == (0, pytest.approx(0.1))
    assert "no detection with a score of 0.3 or more" in result.render()
    assert "within 0.1, and boxes were not compared" in result.render()
    assert "0 of 0" not in result.render()


@pytest.mark.parametrize(
    "rows",
    [(), ((*FAINT[:4], 0.9, 1),), ((*FAINT[:5], 2),), (FAINT, (*MOUSE[:4], 0.8, 5))],
)
def test_a_quantised_artefact_with_other_scores_is_refused_without_sure_detections(rows):
    with refused(Parameter("quantize")):
        agree(Fixed(*rows), Fixed(FAINT), [IMAGE])


def test_scores_below_the_end_of_a_list_are_within_it():
    result = agree(Fixed(), Fixed(FAINT), [IMAGE], score_threshold=0.25)
    assert result.max_score_difference == pytest.approx(0.04)


def test_nothing_is_verified_where_neither_finds_anything():
    result = agree(Fixed(), Fixed(), [IMAGE, IMAGE])
    assert (result.detections, result.max_score_difference) == (0, None)
    assert "in which neither finds anything: nothing is verified" in result.render()


def test_a_comparison_without_detections_is_reported():
    assert "neither finds anything" in verify(Fixed(), Fixed(), [IMAGE]).render()


@pytest.fixture
def wrong_format(monkeypatch):
    """A format with an artefact that has no detections."""

    def write(program, folder, calibration):
        (folder / "model.bin").write_bytes(b"x")
        return Written(files={"model.bin": "nothing"})

    def load(folder, manifest):
        shape = {"detection_boxes": (1, 1, 4), "num_detections": (1,)}
        names = "detection_boxes", "detection_scores", "detection_classes", "num_detections"
        return lambda images: {name: np.zeros(shape.get(name, (1, 1))) for name in names}

    monkeypatch.setattr(exporting, "find_writer", lambda form: write)
    monkeypatch.setattr("stillbox.exporting.backend.find_loader", lambda form, runtime: load)


def test_nothing_is_left_of_an_artefact_that_differs(model, images, tmp_path, wrong_format):
    with refused("verification of the export", "checkpoint", "alone"):
        export_model(model, tmp_path / "out", ExportSettings(format="stablehlo"), images)
    assert list(tmp_path.iterdir()) == []


def test_two_exports_to_one_folder_do_not_both_succeed(model, images, tmp_path, monkeypatch):
    said = []

    def write(program, folder, calibration):
        # A second one begins while the first is being written.
        with pytest.raises(UserError) as caught:
            export_model(model, tmp_path / "out", ExportSettings(), images)
        said.append(str(caught.value))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exporting, "find_writer", lambda form: write)
    with refused("out", tmp_path):
        export_model(model, tmp_path / "out", ExportSettings(), images)
    assert said[0].startswith(f"{tmp_path}/out: another process is writing it at this moment")
    assert list(tmp_path.iterdir()) == []


def test_an_old_export_stays_until_the_new_one_is_verified(model, images, tmp_path, wrong_format):
    settings = ExportSettings(format="stablehlo")
    old = tmp_path / "out"
    old.mkdir()
    manifest = Manifest(settings=settings, files={}, input_size=(64, 64), resizer={}, source="old")
    manifest.write(old)
    with pytest.raises(UserError, match="there is an export already"):
        export_model(model, old, settings, images)
    with refused("verification of the export", "alone"):
        export_model(model, old, settings, images, overwrite=True)
    assert Manifest.read(old) == manifest


SAME = agree(Fixed(OWL), Fixed(OWL), [IMAGE])


@pytest.fixture
def exported_up_to(model, images, tmp_path, wrong_format, monkeypatch):
    """The function that exports a detector that does not shrink images.

    It returns the export, the sizes that it was compared on, and the lines that were said.
    """

    def export(canvas):
        sizes, said = [], []

        def compare(artefact, checkpoint, images, *, blank, **options):
            sizes.extend(image.shape[:2] for image in (*images, *blank))
            return SAME

        monkeypatch.setattr(exporting, "verify", compare)
        changes = {"model.resizer": {"kind": "identity", "canvas": canvas}}
        small = replace(model, experiment=changed(model.experiment, changes))
        settings = ExportSettings(format="stablehlo", any_size=True)
        exported = export_model(small, tmp_path / "out", settings, images, say=said.append)
        return exported, sizes, said

    return export


# None of the blank images fits the first, one of them the second.
@pytest.mark.parametrize("canvas", [(48, 64), (64, 64)])
def test_an_export_is_compared_on_what_fits_its_canvas(exported_up_to, canvas):
    _, sizes, said = exported_up_to(canvas)
    assert sizes == [canvas]
    assert said[0] == "3 images left out: larger than the canvas of model.resizer"


def test_the_limits_of_an_export_are_compared_if_its_records_are_there(exported_up_to):
    _, _, said = exported_up_to((48, 64))
    # Pictures of the scenes are larger than this canvas.
    assert any("10 of 10 images to train on, 6 of 6 images to score on" in line for line in said)
    assert any(line.split()[:1] == ["canvas"] for line in said)


def test_the_limits_of_a_detector_without_its_records_are_not_compared(model, tmp_path):
    absent = {"data.train.paths": ["nowhere/*"], "data.evaluation.paths": ["nowhere/*"]}
    program = ExportProgram(
        replace(model, experiment=changed(model.experiment, absent)), ExportSettings()
    )
    assert exporting.limits_of(program).read == ()


@pytest.mark.parametrize(
    ("settings", "searched"),
    [
        ({"format": "tflite"}, [2000]),
        ({"format": "tflite", "max_detections": 200}, [4000]),
        ({"format": "tflite", "postprocess": "detection_op"}, []),
        ({"format": "onnx"}, []),
    ],
)
def test_an_artefact_without_loops_searches_some_anchors_alone(model, settings, searched):
    program = ExportProgram(model, ExportSettings(**settings))
    rows = exporting.limits_of(program).rows
    assert [row.value for row in rows if row.name == "anchors searched"] == searched


def test_an_export_of_any_size_names_an_image_that_does_not_fit(exported_up_to):
    backend = ExportBackend(exported_up_to((48, 64))[0].folder)
    assert backend.prepare(IMAGE[:48, :64]).true_size == (48, 64)
    with refused("a.jpg", "49x64") as caught:
        backend.prepare(IMAGE[:49, :64], where="a.jpg")
    assert caught.value.where == "a.jpg"


@pytest.mark.parametrize("form", ["saved_model", "frozen_graph", "stablehlo"])
def test_a_program_for_other_machines_alone_is_refused(model, tmp_path, form):
    settings = ExportSettings(format=form, platforms=("rocm",))
    with refused(Parameter("platforms")) as caught:
        export_model(model, tmp_path / "out", settings, [])
    assert caught.value.about == Parameter("platforms")
    assert caught.value.fix == f"add {default_export_platform()}, on which it is compared"
    assert not list(tmp_path.iterdir())


def test_an_output_that_is_a_link_stays_one(model, tmp_path, wrong_format, monkeypatch):
    monkeypatch.setattr("stillbox.exporting.export._verify", lambda *arguments: SAME)
    (tmp_path / "disk/old").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "disk/old")
    for overwrite in (False, True):
        export_model(model, tmp_path / "out", ExportSettings(), [], overwrite=overwrite)
        assert (tmp_path / "out").is_symlink()
        assert (tmp_path / "disk/old" / MANIFEST).is_file()
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["old"]


def test_a_folder_with_something_else_is_never_replaced(model, images, tmp_path):
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(UserError, match="this is not an empty folder"):
        export_model(model, tmp_path, ExportSettings(), images, overwrite=True)
    assert (tmp_path / "diary.txt").exists()


def test_files_beside_an_export_stay_when_it_is_replaced(
    model, tmp_path, wrong_format, monkeypatch
):
    monkeypatch.setattr("stillbox.exporting.export._verify", lambda *arguments: SAME)
    out = tmp_path / "out"
    export_model(model, out, ExportSettings(), [])
    names = sorted(path.name for path in out.iterdir())
    for name in ("diary.txt", "own/q.txt", "mine"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    (out / "added").mkdir()
    (out / "added/ckpt-0.index").touch()
    add_files(out, "added", "mine")
    Manifest.read(out).verify()
    export_model(model, out, ExportSettings(), [], overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "diary.txt", "own"])
    assert (out / "own/q.txt").read_text() == "mine"
    (out / MANIFEST).write_text("{}")  # nobody knows what it wrote
    with pytest.raises(UserError, match="does not say which files were written with it"):
        export_model(model, out, ExportSettings(), [], overwrite=True)
    assert (out / "diary.txt").exists()


def test_a_manifest_of_a_later_version_is_refused(tmp_path):
    (tmp_path / MANIFEST).write_text('{"version": 3}')
    with pytest.raises(UserError, match="a later stillbox"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    "settings, name",
    [
        ({"format": "tensorrt"}, "format"),
        ({"input_type": "jpeg"}, "input_type"),
        ({"signature": "detection"}, "signature"),
        ({"format": "onnx", "input_type": "tf_example"}, "input_type"),
        ({"quantize": "int8"}, "quantize"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, name):
    with pytest.raises(UserError) as refusal:
        ExportSettings(**settings).checked()
    assert refusal.value.about == Parameter(name)


INTEGERS = ExportSettings(format="tflite", quantize="int8")


@pytest.mark.parametrize(
    ("settings", "use"),
    [(ExportSettings(), "compared on"), (INTEGERS, "compared and calibrated on")],
    ids=["float", "int8"],
)
def test_unusable_records_of_the_evaluation_are_skipped(model, tmp_path, settings, use):
    broken, small = example(0, encoded=b"no image"), example(1, size=(20, 30))
    records = write(tmp_path, [broken, small])
    changes = {
        "data.evaluation.paths": list(records.paths),
        "data.evaluation.label_map": records.label_map,
    }
    said = []
    chosen = choose_images(changed(model.experiment, changes), [], settings, said.append)
    assert [image.shape for image in chosen] == [(20, 30, 3)]
    assert said == [f"{use} 1 image of the evaluation set"]


NOWHERE = {"data.evaluation.paths": ["nowhere/*"]}


def test_integers_are_calibrated_on_images_of_training_never_on_drawn_scenes(model):
    absent = changed(model.experiment, NOWHERE)
    said = []
    assert len(choose_images(absent, [], ExportSettings(), said.append)) == 4
    training = choose_images(absent, [], INTEGERS, said.append)
    assert "compared on drawn scenes, since no image of the evaluation set" in said[0]
    assert f"calibrated on {len(training)} images of the training set" in said[1]
    absent = changed(absent, {"data.train.paths": ["nowhere/*"]})
    with pytest.raises(UserError, match="the records of training, to calibrate on") as caught:
        choose_images(absent, [], INTEGERS, said.append)
    assert "images=" in caught.value.fix

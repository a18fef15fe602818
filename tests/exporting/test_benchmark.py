"""Measures a model in every runtime; a missing or failing runtime is a row.

All but the last tests run the tasks in this process, most of them with invented figures.
"""

import shutil
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest

import stillbox
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.evaluation.runtimes import BENCHMARK, RuntimeRow, read_runtimes
from stillbox.exporting import backend
from stillbox.exporting.backend import RUNTIME_PACKAGES, find_loader
from stillbox.exporting.benchmarking import runner, subjects
from stillbox.exporting.benchmarking.runner import benchmark, compare
from stillbox.exporting.benchmarking.subjects import BenchmarkSettings
from stillbox.exporting.benchmarking.tasks import (
    ExportTask,
    Measured,
    MeasureTask,
    TaskError,
    artefact_bytes,
    run_apart,
)
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.settings import FORMATS, ExportSettings
from stillbox.extras import NotInstalledError, install_command
from stillbox.references import worded
from tests.evaluation.builders import result
from tests.exporting.programs import Counting, Killed, Raising, Refusing
from tests.helpers import refusal

pytestmark = pytest.mark.usefixtures("shared_programs")

QUICK = BenchmarkSettings(formats=("stablehlo",), warmup=0, repeats=3, min_score=0)


@pytest.fixture(scope="module")
def exported(trained_once, tmp_path_factory):
    """A StableHLO export of the trained model."""
    folder = tmp_path_factory.mktemp("exported") / "stablehlo"
    return stillbox.export(trained_once, folder, format="stablehlo").folder


FOUND = result("a", [[0, 0, 10, 10]], [0.9])
MEASURED = Measured(
    version="1.2",
    bytes=1000,
    load_seconds=0.5,
    memory_bytes=2000,
    seconds=(0.01, 0.02, 0.03),
    resizing=(0.001, 0.001, 0.001),
    scores={"AP": 0.25},
    results=[FOUND],
)


@pytest.fixture
def performed(monkeypatch, exported):
    """The tasks, which do not run: `exported` is every export, figures are always the same."""
    tasks = []

    def run(task, progress, **options):
        tasks.append(task)
        if isinstance(task, ExportTask):
            shutil.copytree(exported, task.folder)
            return None
        return replace(MEASURED, scores=MEASURED.scores if task.experiment else {})

    monkeypatch.setattr(runner, "run_apart", run)
    return tasks


def in_this_process(task, progress, **options):
    """Performs a task as its process would."""
    return task.perform(progress)


def test_a_model_and_its_export_are_measured(monkeypatch, trained_once, exported, tmp_path):
    monkeypatch.setattr(runner, "run_apart", in_this_process)
    table, page, interrupted = benchmark(
        trained_once, settings=QUICK, exports=exported.parent, output=tmp_path / "out"
    )
    assert not interrupted
    assert [row.name for row in table.rows] == ["checkpoint", "stablehlo"]
    check_figures(table, trained_once, tmp_path)
    assert read_runtimes(tmp_path / "out" / BENCHMARK) == table
    assert "<h2>Runtimes</h2>" in page.read_text()


def check_figures(table, model, folder):
    scored = stillbox.evaluate(model, output=folder / "report").summary
    checkpoint, *exports = table.rows
    for row in table.rows:
        assert row.state == "measured"
        assert row.scores["AP"] == pytest.approx(scored["AP"], abs=1e-3)
        assert row.runs == 3
        assert 0 <= row.resizing_ms < row.p50_ms <= row.p99_ms
        assert row.load_seconds > 0
    for row in exports:
        assert row.bytes > checkpoint.bytes > 1000
        # Detections have scores in close succession, and pixels of an export are whole numbers.
        assert row.compared >= row.found >= 0.9 * row.compared > 10
        assert row.score_difference < 1e-3


@pytest.mark.parametrize(
    "form, files, nbytes",
    [
        ("saved_model", ("saved_model/saved_model.pb", "saved_model/variables/index"), 20),
        ("saved_model", ("saved_model.pb", "variables/index"), 20),
        ("onnx", ("model.onnx", "model_raw.onnx"), 10),
        ("tflite", ("model.tflite", "index.html"), 10),
        ("stablehlo", ("model.stablehlo", "experiment.yaml"), 10),
    ],
    ids=["saved_model", "tpu", "onnx", "tflite", "stablehlo"],
)
def test_the_size_is_that_of_the_files_of_the_runtime(tmp_path, form, files, nbytes):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(10))
    assert artefact_bytes(tmp_path, form) == nbytes


def test_an_export_of_another_format_is_named(monkeypatch, tmp_path):
    half = subjects.Export("half", tmp_path / "half", subjects.Variant("tflite", "float16"))
    subject = subjects.Subject(
        name="owls",
        experiment=stillbox.api.as_experiment("ssd_resnet34"),
        checkpoint=None,
        exports=(half,),
        makes=False,
    )
    monkeypatch.setattr(subjects, "find_subject", lambda *given, **options: subject)
    table = benchmark(tmp_path, settings=replace(QUICK, scored=False), output=tmp_path).table
    assert not table.rows
    assert any(note.startswith(f"{half.folder} is not measured: ") for note in table.notes)


def test_a_missing_runtime_and_a_failing_format_are_rows(
    performed, monkeypatch, trained_once, tmp_path
):
    def run(task, progress, **options):
        if isinstance(task, ExportTask):
            raise TaskError("its process was killed by SIGSEGV")
        return MEASURED

    monkeypatch.setattr(runner, "run_apart", run)
    monkeypatch.setattr(subjects, "find_spec", lambda name: None if name != "jax" else object())
    settings = replace(QUICK, formats=("onnx", "stablehlo"))
    table = benchmark(trained_once, settings=settings, output=tmp_path).table
    assert [(row.name, row.runtime, row.state, row.message) for row in table.rows[1:]] == [
        ("onnx", "onnxruntime", "not installed", install_command("onnx")),
        ("onnx", "openvino", "not installed", install_command("openvino")),
        ("onnx", "openvino_default", "not installed", install_command("openvino")),
        ("stablehlo", "jax", "failed", "its process was killed by SIGSEGV"),
    ]


def test_a_checkpoint_that_cannot_be_loaded_ends_the_benchmark(monkeypatch, trained_once, tmp_path):
    def run(task, progress, **options):
        raise UserError("the weights do not fit", fix="take others")

    monkeypatch.setattr(runner, "run_apart", run)
    error = refusal(benchmark, trained_once, settings=QUICK, output=tmp_path)
    assert error.what == "the weights do not fit"


def test_without_its_checkpoint_an_export_is_measured_all_the_same(
    performed, monkeypatch, trained_once, exported, tmp_path
):
    def run(task, progress, **options):
        if task.source != exported:
            raise TaskError("its process was killed by SIGKILL")
        return MEASURED

    monkeypatch.setattr(runner, "run_apart", run)
    table = benchmark(trained_once, settings=QUICK, exports=exported.parent, output=tmp_path).table
    assert [(row.state, row.compared) for row in table.rows] == [
        ("failed", None),
        ("measured", None),
    ]


def test_existing_exports_are_used_and_new_ones_kept(performed, trained_once, exported, tmp_path):
    kept = tmp_path / "kept"
    shutil.copytree(exported, kept / "mine")
    output = tmp_path / "out"
    made = benchmark(trained_once, settings=QUICK, exports=kept, output=output).table
    assert [row.name for row in made.rows] == ["checkpoint", "mine (stablehlo)"]
    assert [task.source for task in performed[1:]] == [kept / "mine"]
    shutil.rmtree(kept)
    benchmark(trained_once, settings=QUICK, exports=kept, output=output)
    assert Manifest.read(kept / "stablehlo").settings.format == "stablehlo"
    benchmark(trained_once, settings=QUICK, output=output)
    assert isinstance(performed[-2], ExportTask)
    assert not performed[-1].source.exists()


def test_an_export_in_a_model_directory_is_run_where_it_is_named_alone(
    performed, trained_once, exported, tmp_path
):
    model = shutil.copytree(trained_once, tmp_path / "model")
    folder = model / "export"
    shutil.copytree(exported, folder / "stablehlo")
    table = benchmark(model, settings=QUICK).table
    assert [type(task) for task in performed] == [MeasureTask, ExportTask, MeasureTask]
    assert performed[2].source != folder / "stablehlo"
    assert any(f"exports={folder} takes those" in worded(note) for note in table.notes)
    assert (model / "benchmark" / BENCHMARK).is_file()
    said = []
    benchmark(model, settings=QUICK, exports=folder, say=said.append)
    assert performed[4].source == folder / "stablehlo"
    assert f"{folder}/stablehlo: an export, a program that runs with your rights" in said


def test_an_export_of_another_checkpoint_is_not_measured(
    performed, trained_once, exported, tmp_path
):
    shutil.copytree(exported, tmp_path / "mine")
    table = benchmark(
        trained_once, step=1, settings=QUICK, exports=tmp_path, output=tmp_path / "out"
    ).table
    assert [row.name for row in table.rows] == ["checkpoint", "stablehlo"]
    assert table.rows[1].state == "measured"
    assert table.notes[0].startswith(
        f"{tmp_path}/mine is not measured: it was made from {trained_once}, "
    )


@pytest.mark.parametrize("whole", [False, True], ids=["export", "folder"])
def test_an_export_leads_to_its_checkpoint(performed, trained_once, exported, tmp_path, whole):
    source = exported.parent if whole else exported
    table = benchmark(source, settings=QUICK, output=tmp_path).table
    assert table.model == f"{trained_once}, step 2"
    assert [row.name for row in table.rows] == ["checkpoint", "stablehlo"]
    assert performed[0].source.step == 2
    assert table.rows[1].found == table.rows[1].compared == 1


def test_an_export_without_its_checkpoint_is_measured_alone(
    performed, exported, tmp_path, monkeypatch
):
    monkeypatch.setattr(subjects, "find_model", lambda *_: None)
    table = benchmark(exported, settings=QUICK, output=tmp_path).table
    (row,) = table.rows
    assert (row.name, row.state, row.compared) == ("stablehlo", "measured", None)
    assert "compared with nothing" in table.notes[0]


def test_without_records_nothing_is_scored_and_scenes_are_drawn(performed, trained_once, tmp_path):
    table = benchmark(
        trained_once,
        overrides=changes_of(["data.evaluation.paths=[]"]),
        settings=QUICK,
        output=tmp_path,
    ).table
    assert all(row.scores == {} for row in table.rows)
    assert len(performed[0].images) == 16
    notes = "\n".join(table.notes)
    assert "nothing is scored: data.evaluation.paths: the experiment names no records" in notes
    assert "measured on drawn scenes" in notes


def test_integers_need_images_to_calibrate_on(performed, trained_once, tmp_path):
    settings = replace(QUICK, formats=("tflite_int8",))
    changes = ["data.train.paths=nowhere/*"]
    table = benchmark(
        trained_once, overrides=changes_of(changes), settings=settings, output=tmp_path
    ).table
    row = table.rows[1]
    if row.state != "not installed":
        assert (row.name, row.state) == ("tflite_int8", "failed")
        assert worded(row.message).endswith("give some tens of typical images with images=")


def test_a_limit_scores_fewer_images_with_a_note(performed, trained_once, tmp_path):
    table = benchmark(trained_once, settings=replace(QUICK, limit=2), output=tmp_path).table
    assert {task.experiment.evaluation.max_examples for task in performed[::2]} == {2}
    assert any("the first 2 of 6 images" in note for note in table.notes)


def test_an_interrupted_run_has_the_rows_so_far(performed, trained_once, tmp_path):
    def progress(name):
        if name.startswith("stablehlo"):
            raise KeyboardInterrupt
        return nullcontext(lambda done, total: None)

    table, _, interrupted = benchmark(
        trained_once, settings=QUICK, output=tmp_path, progress=progress
    )
    assert interrupted
    assert [row.name for row in table.rows] == ["checkpoint"]
    assert table.notes[-1] == "stopped before all was measured"
    assert read_runtimes(tmp_path / BENCHMARK) == table


@pytest.mark.parametrize(
    "change, message",
    [
        ({"formats": ("onxn",)}, "did you mean 'onnx'?"),
        ({"repeats": 0}, "repeats: 0 is out of range"),
        ({"threads": 10**6}, "threads: 1000000 is out of range"),
        ({"min_score": 1.5}, "min_score: 1.5 is out of range"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(trained_once, tmp_path, change, message):
    error = refusal(benchmark, trained_once, settings=BenchmarkSettings(**change), output=tmp_path)
    assert message in str(error)


def test_an_empty_folder_is_refused(tmp_path):
    assert "model directory" in str(refusal(benchmark, tmp_path, output=tmp_path / "out"))


BOX, FAR = [0, 0, 10, 10], [50, 50, 90, 90]


@pytest.mark.parametrize(
    "mine, wanted",
    [
        (([BOX, FAR], [0.9, 0.5]), (2, 2, 0.0, 0.0)),
        (([[0, 0, 10, 12], FAR], [0.8, 0.5]), (2, 2, 2.0, 0.1)),
        (([FAR], [0.5]), (2, 1, 0.0, 0.0)),  # one is missing
        (([[0, 0, 10, 30], FAR], [0.9, 0.5]), (2, 1, 0.0, 0.0)),  # one is elsewhere
        (([], []), (2, 0, None, None)),
        # Each has its own pair, the one that overlaps most.
        (([[0, 0, 10, 11], BOX], [0.9, 0.9]), (2, 1, 0.0, 0.0)),
    ],
    ids=["same", "near", "missing", "elsewhere", "none", "nearest"],
)
def test_the_difference_to_a_checkpoint(mine, wanted):
    checkpoint = [result("a", [BOX, FAR, BOX], [0.9, 0.5, 0.1])]
    row = compare(RuntimeRow(), checkpoint, [result("a", *mine)], 0.3)
    figures = (row.compared, row.found, row.box_difference, row.score_difference)
    assert figures == pytest.approx(wanted)


def test_detections_of_another_class_are_not_found():
    checkpoint, other = result("a", [BOX], [0.9], [1]), result("a", [BOX], [0.9], [2])
    assert compare(RuntimeRow(), [checkpoint], [other], 0.0).found == 0


@pytest.mark.parametrize(
    "form, runtime", [(form, runtime) for form in FORMATS for runtime in backend.runtimes_of(form)]
)
def test_a_missing_runtime_has_the_text_of_its_loader(monkeypatch, tmp_path, form, runtime):
    package, extra = RUNTIME_PACKAGES[runtime]
    if not extra:
        pytest.skip("it is always there")
    monkeypatch.setitem(sys.modules, package, None)
    manifest = Manifest(
        settings=ExportSettings(format=form), files={}, input_size=(1, 1), resizer={}, source=""
    )
    error = refusal(find_loader(form, runtime), tmp_path, manifest)
    assert isinstance(error, NotInstalledError)
    assert error.fix == install_command(extra)


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_a_sentence():
    done = []
    with pytest.raises(TaskError) as caught:
        run_apart(Killed(), lambda *counts: done.append(counts))
    assert done == [(1, 2)]
    assert str(caught.value) == (
        "its process was killed by SIGKILL (is there enough memory?); its last line: so far all is "
        "well"
    )


@pytest.mark.slow
def test_other_ends_of_a_process():
    with pytest.raises(TaskError, match=r"^its process was killed by SIGSEGV; its last line: so"):
        run_apart(Killed(signal.SIGSEGV), lambda *counts: None)
    with pytest.raises(UserError, match=r"^here: it is wrong\n  fix: mend it$"):
        run_apart(Refusing(), lambda *counts: None)
    with pytest.raises(TaskError, match=r"^LookupError: nothing here$"):
        run_apart(Raising(), lambda *counts: None)
    assert run_apart(Counting(), lambda *counts: None, threads=1) == 1


@pytest.mark.slow
def test_every_format_in_a_process_of_its_own(trained_once, tmp_path):
    seen = set()

    def progress(name):
        return nullcontext(lambda done, total: seen.add(name))

    settings = replace(QUICK, formats=("onnx", "stablehlo"), threads=1)
    table = benchmark(
        trained_once, settings=settings, output=tmp_path / "out", progress=progress
    ).table
    check_figures(table, trained_once, tmp_path)
    rows = [(row.name, row.runtime.split()[0]) for row in table.rows]
    assert rows == [
        ("checkpoint", "jax"),
        ("onnx", "onnxruntime"),
        ("onnx", "openvino"),
        ("onnx", "openvino_default"),
        ("stablehlo", "jax"),
    ]
    assert seen == {", ".join(row) for row in rows}
    assert table.machine["threads"] == "1"

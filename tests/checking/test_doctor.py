"""`stillbox doctor`: pairs of versions known not to work, broken machines, files that changed."""

import logging
import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from stillbox.checking import accelerators, doctor, installed
from stillbox.checking.accelerators import idle_accelerators
from stillbox.checking.doctor import Examination, bad_pairs, examine
from stillbox.cli.main import main
from stillbox.experiment.known_weights import known_weights
from stillbox.exporting.manifest import MANIFEST, Manifest
from stillbox.exporting.settings import ExportSettings
from tests.checkpoints.detectors import age, reseal

SOUND = {"jax": "0.10.0", "jaxlib": "0.10.0"}


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        ({}, None),
        ({"jax": "0.10.2", "jaxlib": "0.10.2"}, None),
        ({"jaxlib": "0.10.2"}, "jax 0.10.0 and jaxlib 0.10.2 are not of one release"),
    ],
)
def test_known_bad_pairs_are_named_and_good_ones_are_not(versions, problem):
    problems = bad_pairs(SOUND | versions)
    if problem is None:
        assert problems == []
    else:
        assert len(problems) == 1
        assert problem in problems[0]


def test_the_report_has_facts_and_ends_with_the_verdict(monkeypatch):
    assert Examination(["jax 1"], []).text() == "jax 1\n\n=> nothing wrong was found"
    assert Examination(["jax 1"], ["a", "b"]).text() == "jax 1\n\n=> a\n=> b"
    text = examine().text()
    for part in ("stillbox ", "Python 3.", "jaxlib", "devices: 1 x cpu", "processors: ", "GiB"):
        assert part in text


def test_devices_that_do_not_start_are_a_problem(monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'cuda':\n  no driver")

    monkeypatch.setattr(doctor.jax, "devices", fail)
    examination = examine()
    assert "devices: none" in examination.lines
    assert any("backend 'cuda': no driver" in line for line in examination.problems)


def test_the_memory_of_accelerators_is_reported(monkeypatch):
    card = SimpleNamespace(
        platform="gpu", device_kind="H200", memory_stats=lambda: {"bytes_limit": 100 * 2**30}
    )
    monkeypatch.setattr(doctor.jax, "devices", lambda: [card, card])
    assert "devices: 2 x gpu (H200), 100.00 GiB each" in examine().lines


def test_extras_and_weights_are_there_or_say_what_they_would_give(monkeypatch, tmp_path):
    monkeypatch.setattr(installed, "find_spec", lambda module: module in ("onnxruntime",) or None)
    monkeypatch.setattr(installed, "homes", lambda module: "Python 3.13" * (module == "tensorflow"))
    lines = list(installed.extra_lines())
    assert lines[0] == "extras: onnx"
    assert "[NAME]" in lines[1]
    absent = {line.split()[0]: line for line in lines[2:]}
    assert set(absent) == set(installed._EXTRAS) - {"onnx"}
    assert [name for name, line in absent.items() if "Python 3.13" in line] == ["tf"]
    monkeypatch.setattr(
        installed, "find_weights", lambda name: tmp_path if name == "efficientnet_lite0" else None
    )
    here, how, *others = installed.weight_lines()
    assert here == "weights: efficientnet_lite0"
    assert "stillbox weights get NAME" in how
    assert sum(line.startswith("  ") for line in others) == len(others)
    text = "\n".join(others)
    assert all(f"  {name}: " in text for name in set(known_weights()) - {"efficientnet_lite0"})


def test_the_extras_are_those_of_the_package(monkeypatch):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    of_developers = {"all", "audit", "dev", "proof", "saved_model", "site"}
    named = set(project["project"]["optional-dependencies"]) - of_developers
    assert set(installed._EXTRAS) == named


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """The function from packages, files, programs and errors of JAX to what is found."""

    def look(packages=(), files=(), programs=(), errors=None, said=(), platforms=("cpu",)):
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).touch()
        monkeypatch.setattr(accelerators, "_installed", lambda: list(packages))
        monkeypatch.setattr(accelerators.shutil, "which", lambda name: name in programs or None)
        monkeypatch.setattr(accelerators, "backend_errors", lambda: errors or {})
        return idle_accelerators(platforms, said, tmp_path)

    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return look


CUDA = "jax-cuda13-plugin"
DRIVER = "proc/driver/nvidia/version"


@pytest.mark.parametrize(
    ("here", "cause"),
    [
        ({"packages": [CUDA]}, "has none of /dev/nvidia"),
        ({"packages": ["jax-cuda12-pjrt"]}, "has none of /dev/nvidia"),
        ({"files": ["dev/nvidia0"]}, "install stillbox with '.[cuda]'"),
        ({"files": [DRIVER]}, "install stillbox with '.[cuda]'"),
        ({"programs": ["nvidia-smi"]}, "install stillbox with '.[cuda]'"),
        ({"packages": [CUDA], "files": [DRIVER]}, "give the container its devices"),
        (
            {"packages": [CUDA], "files": ["dev/nvidia0"], "errors": {"cuda": "no\n such  ABI"}},
            "JAX has no such device: no such ABI",
        ),
        (
            {"packages": [CUDA], "files": ["dev/nvidia0"], "said": ["xla_cuda13 is too old"]},
            "xla_cuda13 is too old",
        ),
        ({"packages": [CUDA], "files": ["dev/nvidia0"]}, "it did not start"),
        ({"packages": ["libtpu"]}, "has none of /dev/accel"),
        ({"files": ["dev/accel0"]}, "install stillbox with '.[tpu]'"),
        ({"files": ["dev/vfio/0"]}, "install stillbox with '.[tpu]'"),
        (
            {"packages": ["libtpu"], "files": ["dev/accel0"], "errors": {"tpu": "lock held"}},
            "lock held",
        ),
    ],
)
def test_an_accelerator_that_jax_does_not_have_is_a_problem_with_its_cause(machine, here, cause):
    (said,) = machine(**here)
    assert said.startswith(("NVIDIA GPU: there is ", "TPU: there is "))
    assert cause in said
    everything = ("cpu", "gpu", "tpu")
    assert machine(**here, platforms=everything) == []


@pytest.mark.parametrize("value", ["", "-1"])
def test_variables_that_hide_an_accelerator_are_its_cause(machine, monkeypatch, value):
    here = {"packages": [CUDA], "files": ["dev/nvidia0"], "errors": {"cuda": "no device"}}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert "CUDA_VISIBLE_DEVICES hides every device" in machine(**here)[0]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert "JAX_PLATFORMS is cpu; unset it" in machine(**here)[0]


def test_a_machine_without_a_trace_of_an_accelerator_is_sound(machine):
    # The accelerators of other makers lie in /dev/accel, the control device of vfio beside it.
    files = ["dev/accel/accel0", "dev/vfio/vfio", "dev/nvidiactl.txt"]
    assert machine(packages=["jax", "nvidia-ml-py"], files=files) == []


def test_the_causes_that_jax_logs_are_heard_and_end_in_the_report(machine, monkeypatch, tmp_path):
    def start():
        try:
            raise RuntimeError("cuSPARSE is too old")
        except RuntimeError:
            logging.getLogger("jax._src.xla_bridge").exception("Error calling xla_cuda13")
        return [SimpleNamespace(platform="cpu", device_kind="cpu", memory_stats=lambda: None)]

    machine(packages=[CUDA], files=["dev/nvidia0"])
    look = accelerators.idle_accelerators
    monkeypatch.setattr(doctor.jax, "devices", start)
    monkeypatch.setattr(doctor, "idle_accelerators", lambda *arguments: look(*arguments, tmp_path))
    assert any("xla_cuda13 cuSPARSE is too old" in line for line in examine().problems)


def test_an_unsupported_python_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 15, 0))
    assert any("3.11 to 3.14" in line for line in examine().problems)


@pytest.fixture
def directory(trained_once, tmp_path):
    return shutil.copytree(trained_once, tmp_path / "model")


@pytest.fixture
def export(trained_once, tmp_path):
    folder = tmp_path / "export"
    (folder / "saved_model").mkdir(parents=True)
    (folder / "saved_model" / "saved_model.pb").write_bytes(b"program")
    for name in ("experiment.yaml", "label_map.pbtxt"):
        shutil.copy(trained_once / name, folder)
    Manifest(
        settings=ExportSettings(), files={"saved_model": "the model"}, input_size=(64, 64),
        resizer={}, source="test",
    ).write(folder)  # fmt: skip
    return folder


@pytest.fixture
def examined(capsys):
    """Returns the exit code, the state of each file, and the verdict."""

    def run(folder):
        code = main(["doctor", str(folder)])
        out, err = capsys.readouterr()
        rows = re.findall(r"^  (ok|changed|missing|unknown) +(\S+)", out, re.MULTILINE)
        return code, {name: state for state, name in rows}, out[out.rfind("\n\n") :] + err

    return run


def test_a_sound_model_directory_is_ok(directory, examined):
    code, states, verdict = examined(directory)
    assert (code, verdict) == (0, "\n\n=> nothing wrong was found\n")
    of_checkpoints = {name: state for name, state in states.items() if "checkpoints/" in name}
    assert set(of_checkpoints.values()) == {"ok"}
    assert {f"checkpoints/{step}/{name}" for step in (1, 2) for name in (
        "checkpoint.json", "params.npz", "optimizer.npz", "experiment.yaml", "versions.json"
    )} <= of_checkpoints.keys()  # fmt: skip
    assert states["experiment.yaml"] == "unknown"


def test_every_change_of_a_model_directory_is_listed(directory, examined):
    old, newest = (directory / "checkpoints" / step for step in "12")
    shutil.copy(old / "params.npz", newest / "params.npz")
    shutil.copy(newest / "ema.npz", old / "params.npz")
    (newest / "stats.npz").unlink()
    (newest / "notes\x1b[31m").touch()
    (old / "experiment.yaml").write_text("name: other\n")
    code, states, verdict = examined(directory)
    assert code == 1
    assert states["checkpoints/2/params.npz"] == states["checkpoints/1/params.npz"] == "changed"
    assert states["checkpoints/1/experiment.yaml"] == "changed"
    assert states["checkpoints/2/stats.npz"] == "missing"
    assert states["checkpoints/2/notes\\x1b[31m"] == "unknown"
    assert states["checkpoints/2/optimizer.npz"] == "ok"
    assert (
        f"=> {newest}: not as they were written: params.npz (changed), stats.npz (missing); copy it"
    ) in verdict


def test_other_files_of_a_model_directory_are_looked_at(directory, examined):
    (directory / "best.json").write_text("[]")
    assert "best.json is damaged; delete it" in examined(directory)[2]
    (directory / "best.json").unlink()
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\n")
    code, _, verdict = examined(directory)
    assert code == 1
    assert "metrics.jsonl:" in verdict
    assert "damaged, and left out of the history" in verdict


def test_a_manifest_is_examined_too(directory, examined):
    (directory / "checkpoints" / "1" / "checkpoint.json").unlink()
    path = directory / "checkpoints" / "2" / "checkpoint.json"
    path.write_text(path.read_text().replace('"step": 2', '"step": 3', 1))
    code, states, verdict = examined(directory)
    assert code == 1
    assert states["checkpoints/1/checkpoint.json"] == "missing"
    assert states["checkpoints/2/checkpoint.json"] == "changed"
    assert "checkpoint.json: the file was changed after it was written" in verdict


def test_a_manifest_without_sensible_fields_is_wrong(directory, export, examined):
    shutil.rmtree(directory / "checkpoints" / "1")
    reseal(directory / "checkpoints" / "2", format=7)
    assert examined(directory)[0] == 1
    reseal(export, MANIFEST, input_size=[0, 0])
    code, _, verdict = examined(export)
    assert code == 1
    assert "input_size is not of sides from 1" in verdict


def test_one_checkpoint_is_examined_and_files_without_checksums_are_unknown(directory, examined):
    code, states, _ = examined(directory / "checkpoints" / "2")
    assert (code, states["params.npz"]) == (0, "ok")
    for step in "12":
        age(directory / "checkpoints" / step)
    code, states, _ = examined(directory)
    assert code == 0
    assert states["checkpoints/2/params.npz"] == "unknown"


def test_an_export_is_examined_also_in_its_default_place(directory, export, examined):
    code, states, _ = examined(export)
    assert code == 0
    assert states == dict.fromkeys(
        ("export.json", "experiment.yaml", "label_map.pbtxt", "saved_model/saved_model.pb"), "ok"
    )
    (export / "saved_model" / "saved_model.pb").write_bytes(b"Program")
    place = shutil.copytree(export, directory / "export" / "saved_model")
    code, states, verdict = examined(directory)
    assert code == 1
    assert states["export/saved_model/saved_model/saved_model.pb"] == "changed"
    assert f"=> {place}: not as they were written: saved_model/saved_model.pb" in verdict


def test_a_folder_that_is_both_or_neither_is_wrong(directory, export, examined, tmp_path):
    shutil.copytree(export, directory, dirs_exist_ok=True)
    code, _, verdict = examined(directory)
    assert code == 1
    assert "is an export too" in verdict
    (tmp_path / "photo.jpg").touch()
    assert examined(tmp_path)[0] == 2
    assert examined(tmp_path / "nowhere")[0] == 2

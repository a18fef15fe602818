"""What a message tells people to install comes from where stillbox came, not from elsewhere."""

import json
import pickle
import re
import shlex
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stillbox import __version__, extras
from stillbox.errors import UserError
from stillbox.extras import NotInstalledError, homes, import_extra, install_command
from tests.helpers import refused

ROOT = Path(__file__).resolve().parents[1]
WHEEL = f"stillbox-{__version__}-py3-none-any.whl"
LEGACY_WHEEL = f"stillbox_legacy-{__version__}-py3-none-any.whl"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Acts as if the package came from elsewhere: `direct_url.json` of PEP 610, or None."""

    def act(origin):
        class Distribution:
            def read_text(self, name):
                assert name == "direct_url.json"
                return origin and json.dumps(origin)

        monkeypatch.setattr(extras, "_SOURCE", tmp_path)
        monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())

    return act


def asked_for(extra):
    """Returns what the command installs."""
    before, _, after = install_command(extra).partition(" install ")
    assert re.search(r"pip$", before)
    return shlex.split(after)


def test_a_source_folder_is_installed_again():
    assert asked_for("tpu") == ["-e", f"{ROOT}[tpu]"]


def test_a_wheel_is_installed_again(installed, tmp_path):
    wheel = tmp_path / "a folder" / WHEEL
    wheel.parent.mkdir()
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert asked_for("onnx") == [f"{wheel}[onnx]"]
    wheel.unlink()
    assert asked_for("onnx") == [f"stillbox[onnx]=={__version__}"]


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (
            {"url": f"https://files.example/{WHEEL}", "archive_info": {}},
            f"stillbox[ray] @ https://files.example/{WHEEL}",
        ),
        (
            {"url": "https://git.example/box", "vcs_info": {"vcs": "git", "commit_id": "00ff"}},
            "stillbox[ray] @ git+https://git.example/box@00ff",
        ),
        (None, f"stillbox[ray]=={__version__}"),
    ],
)
def test_addresses_and_indexes_are_asked_again(installed, origin, requirement):
    installed(origin)
    assert asked_for("ray") == [requirement]


def test_the_pip_of_this_environment_is_called(monkeypatch):
    monkeypatch.setattr(extras.shutil, "which", lambda name: "/usr/bin/pip")
    assert install_command("tf").startswith(f"{sys.executable} -m pip install ")
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert install_command("tf").startswith(f"uv pip install --python {sys.executable} ")
    beside = Path(sys.executable).with_name("pip")
    monkeypatch.setattr(extras.shutil, "which", lambda name: str(beside))
    assert install_command("tf").startswith("pip install ")


def test_the_message_of_an_absent_package():
    with pytest.raises(UserError, match="no-such-package is not installed") as refusal:
        import_extra("no_such_package", "ray")
    assert refusal.value.fix == install_command("ray")
    # As a worker of Ray sends it.
    sent = pickle.loads(pickle.dumps(refusal.value))
    assert (type(sent), sent.fix) == (NotInstalledError, refusal.value.fix)
    assert str(sent) == str(refusal.value)


@pytest.mark.parametrize(
    ("module", "system", "machine", "there"),
    [
        ("litert_converter", "Windows", "AMD64", False),
        ("litert_converter", "Linux", "aarch64", False),
        ("litert_converter", "Darwin", "arm64", True),
        ("libtpu", "Linux", "aarch64", False),
        ("jax_cuda13_plugin", "Windows", "AMD64", False),
        ("onnxruntime", "Windows", "AMD64", True),
    ],
)
def test_a_package_without_wheels_says_where_it_has_them(
    monkeypatch, module, system, machine, there
):
    monkeypatch.setattr(extras.platform, "system", lambda: system)
    monkeypatch.setattr(extras.platform, "machine", lambda: machine)
    assert bool(homes(module)) is not there
    error = extras.not_installed(module, "tf")
    assert (error.fix == install_command("tf")) is there
    assert there or (f"{system} on {machine}" in error.what and homes(module) in error.fix)


@pytest.mark.parametrize(("minor", "there"), [(13, True), (14, False)])
def test_tensorflow_has_no_wheels_for_the_newest_python(monkeypatch, minor, there):
    monkeypatch.setattr(extras.sys, "version_info", (3, minor, 0))
    assert bool(homes("tensorflow")) is not there


def test_a_package_that_is_broken_is_not_called_absent(monkeypatch, tmp_path):
    (tmp_path / "broken_package.py").write_text("raise ImportError('libGL.so.1 is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    with refused(None, "libGL.so.1") as refusal:
        import_extra("broken_package", "tf")
    assert "-c 'import broken_package'" in refusal.value.fix


def texts():
    for pattern in ("*.md", "docs/**/*.md", "stillbox/**/*.py", "benchmarks/*"):
        for path in ROOT.glob(pattern):
            if path.suffix in (".md", ".py") and path.name != "CHANGELOG.md":
                yield path, path.read_text(encoding="utf-8")


def test_no_page_and_no_message_asks_an_index_for_stillbox():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements_found = []
    for path, text in texts():
        for requirement in re.findall(
            r"pip install (?:-e )?'?(\.[^\s'`]*|[^\s'`]*stillbox[^\s'`]*)", text
        ):
            if requirement in (".", "stillbox"):  # the latter in a warning
                continue
            file, extra = re.fullmatch(r"(.*?)(?:\[(\w+)\])?", requirement).groups()
            assert file in (".", f"./{WHEEL}", f"./{LEGACY_WHEEL}"), path
            assert extra is None or extra in project["optional-dependencies"], path
            requirements_found.append(requirement)
    assert len(requirements_found) > 10


def pins(file):
    """Returns the versions and the number of hashes of each package that a file pins."""
    pins_by_name = {}
    for entry in re.split(r"\n(?=\w)", (ROOT / file).read_text()):
        if match := re.match(r"([\w.-]+)==([^\s;]+)", entry):
            pins_by_name.setdefault(match[1], []).append((match[2], entry.count("--hash=sha256:")))
    return pins_by_name


def required(project, extra):
    """Yields the requirements of an extra, and of the extras that it contains."""
    for line in project["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name != "stillbox":
            yield requirement
        else:
            for inner in requirement.extras:
                yield from required(project, inner)


def test_every_extra_is_pinned_with_hashes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    checked = set()
    for extra in project["optional-dependencies"]:
        pinned = pins("constraints.txt")
        assert all(hashes for versions in pinned.values() for _, hashes in versions)
        for requirement in [*map(Requirement, project["dependencies"]), *required(project, extra)]:
            versions = pinned[canonicalize_name(requirement.name)]
            assert all(version in requirement.specifier for version, _ in versions), requirement
            checked.add(requirement.name)
    assert {"jax", "tensorflow-cpu", "ray", "mlflow", "wandb"} <= checked

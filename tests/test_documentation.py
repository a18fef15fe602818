"""README.md and docs/*.md show what works: every command on them is run here.

The commands of a page run in order, in a folder of its own that holds what the page takes for
granted (`documented_folder.py`). They run through the entry point of the command line in this
process, so that compiled programs are shared. Four things are changed, and nothing else:

- `stillbox train`, `model_main`, `ssd.py`, `main.py` and `stillbox evaluate` with `--weights` get
  `--set` overrides behind the page's, which make the model small and the run some steps long
  (`TINY`). Training the same model directory again goes on for two more steps, and a trace is as
  short.
- `stillbox data scenes` draws some images instead of hundreds.
- `stillbox weights get` is not run, which asks a registry: its weights have to be known.
- What is in `NOT_RUN` is not run but checked in another way. Verbs of stillbox-legacy are run where
  it is installed.

Blocks of YAML and Python are executed too; text and JSON show output.
"""

import functools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from stillbox.cli.main import main
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.evaluation.history import read_history
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check
from stillbox.experiment.schema import Experiment, FasterRcnn, IdentityResizer
from stillbox.experiment.updating import apply_changes
from stillbox.experiment.yaml_config import read_yaml
from stillbox.training.start import _FREE_TO_CHANGE
from tests.documented_folder import PICKED_TINY, RETINANET_TINY, SSD_RESNET34_TINY, TINY
from tests.helpers import is_absent

pytestmark = pytest.mark.usefixtures("shared_programs")

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
}

# Page -> what of the prepared folder its commands make themselves.
RUN_HERE = {
    "README.md": ("runs",),
    "CONTRIBUTING.md": (),
    "CHANGELOG.md": (),
    "docs/README.md": (),
    "docs/models.md": (),
    "docs/dependencies.md": (),
    "docs/flows.md": (),
    "docs/performance.md": (),
    "docs/releasing.md": (),
    "docs/security.md": (),
    "docs/checking.md": (),
    "docs/failures.md": (),
    "docs/heads.md": (),
    "docs/tutorial.md": ("runs",),
    "docs/trials.md": (),
    "docs/training.md": ("runs",),
    "docs/evaluation.md": (),
    "docs/predicting.md": (),
    "docs/api.md": (),
    "docs/export.md": (),
    "docs/browser.md": (),
    "docs/weights.md": (),
    "docs/coming_from_the_object_detection_api.md": ("runs",),
    "docs/model_maker.md": (),
    "docs/ssd_resnet34.md": ("runs",),
    "docs/retinanet.md": ("runs",),
}
RUN_ELSEWHERE = {
    "docs/model_garden.md": "packages/legacy/tests/model_garden/test_command_line.py",
    "docs/coco.md": "tests/cli/test_data_pages.py",
    "docs/data.md": "tests/cli/test_data_pages.py",
    "docs/experiment.md": "tests/experiment/test_recipes.py",
    "docs/images.md": "tests/experiment/test_augmentations.py",
    "docs/fields.md": "tests/tools/test_tools.py",
    "docs/pipeline_config.md": "tests/tools/test_tools.py",
    "docs/params_dict.md": "tests/tools/test_tools.py",
    "docs/parts.md": "tests/test_parts.py",
    "docs/edge.md": "tests/exporting/test_tflite_detection_op.py",
    "docs/frigate.md": "tests/exporting/test_frigate.py",
    "docs/chips.md": "tests/exporting/test_raw.py",
    "docs/serving.md": "tests/serving/test_app.py",
    "docs/scaling.md": "tests/scaling/test_documentation.py",
    "docs/devices.md": "tests/devices/test_documentation.py",
    "docs/object_storage.md": "tests/test_local_s3.py",
    **{
        f"docs/launchers/{name}.md": "tests/devices/test_documentation.py"
        for name in (
            "eight_gpus",
            "gke",
            "mpirun",
            "one_gpu",
            "slurm",
            "tpu_pod_slice",
            "tpu_vm",
        )
    },
    **{
        f"docs/launchers/{name}.md": "tests/devices/test_launcher.py"
        for name in ("container", "jobset", "ray", "skypilot")
    },
    "docs/accelerators.md": "tests/checking/ahead_of_time/test_targets.py",
    "docs/gpu_verdicts.md": "tests/tools/test_tools.py",
    "docs/tpu_verdicts.md": "tests/tools/test_tools.py",
}
# What they say is compared with the program that makes them.
MADE_BY_PROGRAMS = {"docs/fields.md", "docs/pipeline_config.md", "docs/params_dict.md"}
PROGRAMS_RUN_ELSEWHERE = {"docs/evaluation.md": "tests/evaluation/test_coco.py"}
LANGUAGES = {"sh", "console", "yaml", "python", "text", "json", "toml", "nginx", "caddy"}
COMMAND = re.compile(r"^(\$ )?(stillbox|make|pip|uv|python\S*) ", re.MULTILINE)

# `make` would run this test again, `pip` and `uv` would change the environment that it runs in,
# `npm` needs a network, `python3` serves without end, and TensorBoard is not installed. `make`
# targets and the page that is served must exist; TensorBoard's folder must hold events.
NOT_RUN = {"make", "pip", "uv", "npm", "python3", "tensorboard", "xprof"}
# tests/test_extras.py reads what is installed: the folder of the source, or the wheel.
NOT_RUN_PIP = re.compile(
    r"(pip )?install ((--constraint|--build-constraints) constraints\.txt )*"
    r"(-e packages/legacy|(-e \.|\./stillbox[-_].*\.whl)(\[\w+\])?)"
)


def blocks(page):
    """Returns language and content of every fenced block of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)


def make_targets():
    return set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture
def folder(documented_folder, tmp_path, monkeypatch):
    """Makes the folder of a page current."""

    def enter(page):
        shutil.copytree(documented_folder, tmp_path, dirs_exist_ok=True)
        monkeypatch.chdir(tmp_path)
        for made_by_page in RUN_HERE[page]:
            shutil.rmtree(made_by_page, ignore_errors=True)

    return enter


@pytest.fixture
def shell(monkeypatch, capsys, no_installed_weights):
    """Runs command lines as the docstring of this file says."""
    monkeypatch.setenv("COLUMNS", "200")
    trained, picked = Counter(), set()

    def small(words):
        overrides = []
        if words[0] == "train":
            directory = words[words.index("--model-dir") + 1]
            trained[directory] += 1
            if words[1] == "--data":
                picked.add(directory)
            tiny = PICKED_TINY if directory in picked else TINY
            overrides = [*tiny, f"train.steps={2 * trained[directory]}"]
        elif words[0].startswith("model_main"):
            (directory,) = (w.partition("=")[2] for w in words if w.startswith("--model_dir="))
            trains = not any(word.startswith("--checkpoint_dir") for word in words)
            trained[directory] += trains
            overrides = [*TINY, f"train.steps={2 * max(trained[directory], 1)}"]
        elif words[0] == "ssd.py" and not {"eval", "--inference"} & set(words):
            directory = words[words.index("--model_dir") + 1]
            trained[directory] += 1
            overrides = [*SSD_RESNET34_TINY, f"train.steps={2 * trained[directory]}"]
        elif words[0] == "main.py":
            (directory,) = (w.partition("=")[2] for w in words if w.startswith("--model_dir="))
            trained[directory] += not {"--mode=eval", "--mode=predict"} & set(words)
            overrides = [*RETINANET_TINY, f"train.steps={2 * trained[directory]}"]
        elif "--weights" in words:
            overrides = TINY
        if words[:2] == ["data", "scenes"]:
            words += ["--train", "12", "--val", "6"]
        if "--profile" in words:
            words[words.index("--profile") + 1] = "1,2"
        return [*words, *(word for override in overrides for word in ("--set", override))]

    def run(line):
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while "=" in words[0]:
            monkeypatch.setenv(*words.pop(0).split("=", 1))
        program, *words = words
        if program in NOT_RUN:
            check_not_run(program, words)
            return
        if program == "python":
            subprocess.run([sys.executable, ROOT / words[0], *words[1:]], check=True)
            return
        assert program == "stillbox", line
        if words[:2] == ["weights", "get"]:
            assert words[2] in known_weights()
            return
        if is_absent(words[0]):
            return
        target = words[words.index(">") + 1] if ">" in words else None
        words = words[: words.index(">")] if target else words
        # As bash: a pattern that matches nothing stays as it is.
        words = [match for word in words for match in matches(word) or [word]]
        capsys.readouterr()
        code = main(small(words))
        said = capsys.readouterr()
        assert code == 0, f"{line}\n{said.err}"
        if target:
            Path(target).write_text(said.out)

    return run


def matches(pattern):
    return sorted(map(str, Path().glob(pattern))) if set("*?") & set(pattern) else []


def check_not_run(program, words):
    if program == "make":
        assert set(words) <= make_targets()
    elif program in ("pip", "uv"):
        assert NOT_RUN_PIP.fullmatch(" ".join(words))
    elif program == "npm":
        assert words[:2] == ["install", "--prefix"]
        version = re.search(r'^VERSION = "(.*)"', (ROOT / "docs/browser/page.py").read_text(), re.M)
        assert words[3:] == [f"@litertjs/core@{version[1]}"]
    elif program == "python3":
        assert words[:3] == ["-m", "http.server", "--directory"]
        assert (Path(words[3]) / "index.html").is_file()
    else:
        logs = {"tensorboard": "events.*", "xprof": "plugins/profile/*/*.xplane.pb"}
        assert list(Path(words[words.index("--logdir") + 1]).glob(logs[program]))


def slow_if_long(page):
    """test_official_models.py and test_ssd_resnet34.py run most commands of two pages."""
    marks = [pytest.mark.slow] if page in ("docs/retinanet.md", "docs/ssd_resnet34.md") else []
    return pytest.param(page, marks=marks)


def run_yaml(text):
    """Writes the file that a block's first line names; it must be a sound experiment."""
    if name := re.match(r"# (\S+\.yaml)\n", text):
        Path(name[1]).write_text(text)
        resolve(name[1])
        return
    reading = read_yaml(text, "example.yaml")
    check(reading.experiment, reading.origins)


def lacks_package(program):
    """Whether a program needs a package of the extra `proof` that is not installed."""
    return "import trackers" in program and find_spec("trackers") is None


@pytest.mark.parametrize("page", [slow_if_long(page) for page in RUN_HERE])
def test_everything_on_the_page_runs(page, folder, shell, request):
    # The charts of a report are drawn once; what is on them: tests/evaluation/test_report.py.
    if page != "README.md":
        request.getfixturevalue("no_charts")
    to_run = [block for block in blocks(page) if block[0] in ("sh", "console", "yaml", "python")]
    if not to_run:
        return
    folder(page)
    for language, text in to_run:
        if language == "yaml":
            run_yaml(text)
        elif (
            language == "python" and not lacks_package(text) and page not in PROGRAMS_RUN_ELSEWHERE
        ):
            exec(compile(text, page, "exec"), {})
        elif language in ("sh", "console"):
            for line in text.replace("\\\n", " ").splitlines():
                if line and not line.startswith("#"):
                    shell(line)
    if page == "docs/training.md":
        every_key_of_the_history_is_explained()
    if page == "docs/predicting.md":
        the_prediction_shown_is_like_a_real_one()


def every_key_of_the_history_is_explained():
    lines = map(json.loads, Path("runs/owls/metrics.jsonl").read_text().splitlines())
    assert read_history("runs/owls/metrics.jsonl").evaluations
    for key in {key for line in lines for key in line}:
        assert f"`{key}`" in PAGES["docs/training.md"], key


def the_prediction_shown_is_like_a_real_one():
    assert main(["predict", "runs/owls", "photos/owl_1.jpg", "--min-score", "0"]) == 0
    real = json.loads(Path("predictions/predictions.json").read_text())[0]
    (shown,) = (json.loads(text) for name, text in blocks("docs/predicting.md") if name == "json")
    assert shown.keys() == real.keys()
    assert shown["detections"][0].keys() == real["detections"][0].keys()
    assert shown["detections"][0]["box"].keys() == real["detections"][0]["box"].keys()


def test_every_page_is_run_here_or_elsewhere():
    assert set(PAGES) == RUN_HERE.keys() | RUN_ELSEWHERE.keys()
    for page, test in (*RUN_ELSEWHERE.items(), *PROGRAMS_RUN_ELSEWHERE.items()):
        assert f'"{Path(page).name}"' in (ROOT / test).read_text(), test


def test_every_page_is_in_the_sidebar_of_the_site():
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]
    assert sorted(listed) == sorted(pages)


def test_every_dependency_and_extra_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", requirement)[0] for requirement in project["dependencies"]]
    rows = re.findall(r"^\| (.+?) \|", PAGES["docs/dependencies.md"], re.MULTILINE)
    assert [row for row in rows if row in names] == names
    extras = [extra for row in rows for extra in re.findall(r"`(\w+)`", row)]
    assert extras == list(project["optional-dependencies"])


@pytest.mark.parametrize("page", RUN_HERE)
def test_no_command_hides_in_a_block_that_is_not_run(page):
    for language, text in blocks(page):
        assert language in LANGUAGES
        if language in ("text", "json"):
            assert not COMMAND.search(text)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    # The site consists of the pages below docs.
    root = ROOT / "docs" if page.startswith("docs/") else ROOT
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.is_file() and file.resolve().is_relative_to(root), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in slugs, target


def inline_code(page):
    prose = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", prose)


@pytest.mark.parametrize("page", PAGES)
def test_commands_inside_sentences_exist(page):
    for text in inline_code(page):
        if target := re.fullmatch(r"make (\w+)", text):
            assert target[1] in make_targets(), text
        verb = re.match(r"stillbox ((?:data )?[a-z_0-9]+(?:\.py)?)", text)
        if verb and not is_absent(verb[1].split()[0]):
            with pytest.raises(SystemExit) as caught:
                main([*verb[1].split(), "--help"])
            assert caught.value.code == 0, text


@functools.cache
def bases():
    """Experiments with different kinds at their choices, because fields belong to kinds."""
    names = (
        "ssd_mobilenet_v1_bccd",
        "demo_scenes",
        "ssd_mobilenet_v1_fpn_640x640",
        "ssd_resnet34",
        "retinanet",
    )
    kinds = ["model.resizer.kind=keep_aspect_ratio", "train.early_stopping={patience: 1}"]
    recipes = [
        resolve(name, changes_of(more)).experiment
        for name in names
        for more in ([], [*kinds, STOPS])
    ]
    return [*recipes, Experiment(model=FasterRcnn(resizer=IdentityResizer(canvas=(64, 64))))]


STOPS = "train.evaluate_every=1"
FIELD = re.compile(r"(?:.*--set '?)?((?:data|model|train|evaluation)(?:\.[a-z_0-9]+)+)(?:=.*)?")


@pytest.mark.parametrize("page", sorted(PAGES.keys() - MADE_BY_PROGRAMS))
def test_fields_inside_sentences_exist(page):
    for text in inline_code(page):
        match = FIELD.fullmatch(text)
        if match and not match[1].endswith((".json", ".txt", ".yaml", ".onnx", ".tflite", ".py")):
            assert any(has_field(experiment, match[1]) for experiment in bases()), text


def has_field(experiment, path):
    try:
        apply_changes(experiment, changes_of([f"{path}=null"]), {})
    except UserError as error:
        return "has no field" not in str(error)
    return True


def test_what_may_change_in_a_run_is_listed_in_full():
    begins = "These fields may change when a run is resumed"
    (section,) = re.findall(rf"^{begins}.*?\n\n", PAGES["docs/training.md"], re.DOTALL | re.M)
    listed = set(re.findall(r"`([a-z_.]+)`", section)) - {"train.fine_tune.checkpoint"}
    assert listed == set(_FREE_TO_CHANGE)


@pytest.mark.parametrize("page", PAGES)
def test_no_path_of_one_machine_is_shown(page):
    assert not re.search(r"(?<![\w.])/(work|root|home|tmp|Users)/", PAGES[page])

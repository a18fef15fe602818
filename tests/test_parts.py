"""Parts of users: docs/parts.md, and a detector of another kind, which goes through every verb.

That detector needs `Detector`'s interface alone. The files of the page are written and its
commands run in a process of their own: in this process, its kinds would be members of their
families in every later test.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stillbox
from stillbox.cli.main import main
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.yaml_config import to_yaml
from stillbox.records.source import ExampleSource
from stillbox.references import Parameter
from tests.helpers import refused
from tests.records.builders import image_bytes
from tests.small import EVERY_DETECTION, small_experiment, small_overrides

# One worker runs these tests one after the other: the kind is registered meanwhile.
pytestmark = pytest.mark.xdist_group("one_box")

PARTS = str(Path(__file__).with_name("one_box.py"))


def sets(scenes, *overrides):
    words = [
        word
        for word in small_overrides(scenes)
        if not word.startswith(("model.", "train.evaluate_every"))
    ]
    model = ("model.kind=one_box", "model.num_classes=6")
    size = ("model.resizer.height=64", "model.resizer.width=64")
    words += [*model, *size, "train.evaluate_every=2", *overrides]
    return [part for word in words for part in ("--set", word)]


@pytest.fixture(scope="module", autouse=True)
def registered_for_this_module_only():
    """Later tests find the families as the package defines them."""
    yield
    schema.Model.variants.pop("one_box", None)
    sys.modules.pop("one_box", None)


@pytest.fixture(scope="module")
def trained(scenes, tmp_path_factory):
    directory = tmp_path_factory.mktemp("one_box") / "model"
    words = ["train", "demo_scenes", "--import", PARTS, "--model-dir", str(directory)]
    assert main([*words, *sets(scenes)]) == 0
    return directory


def test_a_config_of_it_is_printed_and_read_again(scenes, capsys, tmp_path):
    assert main(["config", "demo_scenes", "--import", PARTS, *sets(scenes)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"imports: [{json.dumps(PARTS)}]\n") or f"imports: [{PARTS}]" in text
    path = tmp_path / "own.yaml"
    path.write_text(text)
    assert (
        resolve(path).experiment
        == resolve("demo_scenes", changes_of(sets(scenes)[1::2])).experiment
    )


def test_it_is_checked(scenes, capsys):
    main(["check", "demo_scenes", "--import", PARTS, *sets(scenes)])
    assert "Traceback" not in capsys.readouterr().err


def test_a_range_of_its_own_is_checked(scenes, capsys):
    words = ["config", "demo_scenes", "--import", PARTS, *sets(scenes, "model.cells=0")]
    assert main(words) == 2
    assert "model.cells is 0\n  fix: give a value of at least 1" in capsys.readouterr().err


def test_it_trains_with_its_own_losses_and_is_scored_on_the_way(trained):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    for line in steps:
        assert line["loss"] == pytest.approx(
            line["box_loss"] + line["class_loss"] + line["regularization_loss"]
        )
    assert [line["step"] for line in lines if "evaluation" in line] == [2, 4]


def test_the_state_of_its_loss_is_kept_in_checkpoints(trained):
    state = np.load(trained / "checkpoints" / "4" / "loss.npz")
    assert [state[name] for name in state.files] == [4.0]


def test_a_run_of_it_is_resumed(trained, scenes, tmp_path, capsys):
    words = ["train", "demo_scenes", "--import", PARTS, "--model-dir", str(trained)]
    # A process that makes batches imports the parts too.
    assert main([*words, *sets(scenes, "train.steps=6", "data.processes=1")]) == 0
    assert "resuming at step 4" in capsys.readouterr().err


def test_another_run_starts_from_its_weights(trained, scenes, tmp_path, capsys):
    checkpoint = f"train.fine_tune.checkpoint={trained}"
    scope = "train.fine_tune.scope=detection"
    words = ["train", "demo_scenes", "--import", PARTS, "--model-dir", str(tmp_path / "model")]
    assert main([*words, *sets(scenes, checkpoint, scope, "train.steps=1")]) == 0
    assert "fine-tuning from" in capsys.readouterr().err


def test_it_is_evaluated(trained, tmp_path, capsys):
    assert main(["evaluate", str(trained), "--output", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "report.html").is_file()


def test_it_predicts_one_box_for_each_image(trained, scenes):
    image = np.full((40, 80, 3), 100, np.uint8)
    (detections,) = stillbox.load(trained).predict([image], **EVERY_DETECTION)
    assert detections.boxes.shape == (1, 4)


def test_it_is_exported_without_raw_boxes(trained, scenes, tmp_path):
    image = str(next((scenes / "images/val").iterdir()))
    folder = tmp_path / "out"
    words = ["export", str(trained), "--format", "stablehlo", "--images", image]
    assert main([*words, "--platforms", "cpu", "--output", str(folder)]) == 0
    assert len(stillbox.load(folder).predict(image, **EVERY_DETECTION)) == 1
    assert main([*words, "--max-detections", "3", "--output", str(tmp_path / "three")]) == 2


def test_anchors_of_it_are_refused(scenes, capsys):
    assert main(["anchors", "demo_scenes", "--import", PARTS, *sets(scenes)]) == 2
    assert "a model of kind one_box has no anchors" in capsys.readouterr().err


def test_a_model_directory_says_which_parts_it_needs(trained):
    """Without --import, nothing of the file is run."""
    words = [sys.executable, "-m", "stillbox.cli.main", "config", str(trained / "experiment.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "model has no kind 'one_box': it was written with parts of" in done.stderr
    assert f"fix: --import {PARTS}" in done.stderr


def test_a_missing_file_of_parts_is_refused():
    with refused(Parameter("import"), "absent.py"):
        stillbox.import_parts(["absent.py"])


def test_a_faulty_file_of_parts_is_refused_with_its_line(tmp_path):
    path = tmp_path / "faulty_parts.py"
    path.write_text("first = 1\nraise ValueError('no')\n")
    with pytest.raises(UserError, match=r"faulty_parts\.py:2: .* ValueError: no"):
        stillbox.import_parts([str(path)])
    assert "faulty_parts" not in sys.modules


# One worker runs these tests one after the other: the kind is registered meanwhile.

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS.joinpath("parts.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]
RUN = """\
import json, shlex, sys
from stillbox.cli.main import main
for command in json.load(sys.stdin):
    print(">", main(shlex.split(command)[1:]), flush=True)
"""


def write_pets(folder):
    """Four images with a dog each, in the format of the page."""
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.png").write_bytes(image_bytes(height=40, width=60 + number))
        (folder / f"{number}.boxes").write_text("a dog: 6 4 36 24\nno box\n")
    (folder / "lost.boxes").write_text("a dog: 6 4 36 24\n")


@pytest.fixture(scope="module")
def done(scenes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "tiny.yaml").write_text(to_yaml(small_experiment(scenes, "train.steps=2")))
    (folder / "short.steps").write_text("demo_scenes 100\n")
    write_pets(folder / "pets")
    words = [sys.executable, "-c", RUN]
    text = json.dumps(COMMANDS)
    run = subprocess.run(words, input=text, capture_output=True, text=True, cwd=folder, check=False)
    return folder, run


def test_the_page_has_a_loss_an_augmentation_a_backbone_a_reader_and_a_data_format():
    assert list(FILES) == ["charbonnier.py", "invert.py", "plain.py", "steps.py", "sidecars.py"]
    assert len(COMMANDS) == 5


def test_every_command_of_the_page_does_what_it_says(done):
    _, run = done
    codes = [line for line in run.stdout.splitlines() if line.startswith("> ")]
    # `check` returns 1 for its findings, which the small experiment has.
    assert codes[0] in ("> 0", "> 1"), run.stderr
    assert codes[1:] == ["> 0", "> 0", "> 0", "> 0"], run.stderr


def test_the_model_directory_of_the_page_names_its_parts_and_was_trained_with_them(done):
    folder, _ = done
    text = (folder / "runs/plain/experiment.yaml").read_text()
    assert sorted(re.findall(r"(\w+\.py)", text.splitlines()[0])) == sorted(list(FILES)[:3])
    with np.load(folder / "runs/plain/checkpoints/2/params.npz") as arrays:
        assert "backbone.conv_3.kernel" in arrays.files


def test_the_reader_of_the_page_reads_its_file(done):
    _, run = done
    assert re.search(r"^  steps: 100 ", run.stdout, re.MULTILINE)
    assert re.search(r"^name: short$", run.stdout, re.MULTILINE)


def test_the_data_format_of_the_page_is_converted(done):
    folder, run = done
    assert "format: boxes in files beside the images\n" in run.stdout
    assert "classes: 1: a dog\n" in run.stdout
    for problem in ("line without four numbers", "image file is missing"):
        assert re.search(rf"^note: \d x {problem}", run.stdout, re.MULTILINE)
    source = ExampleSource([f"{folder}/pets-records/val.record-*"], None)
    assert len(source) == 1
    example = source.example(0)
    width = example.width
    np.testing.assert_array_equal(
        example.boxes, np.float32([[4 / 40, 6 / width, 24 / 40, 36 / width]])
    )


def run_installed(place, text, words):
    """Runs a command beside an installed package; its entry point is a module with the text."""
    (place / "own_parts.py").write_text(text)
    information = place / "own_parts-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[stillbox.parts]\nown = own_parts\n")
    code = f"import sys; sys.path.append({str(place)!r}); from stillbox.cli.main import main"
    return subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit(main({words!r}))"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_entry_point_makes_a_data_format_available_without_import(done, tmp_path):
    folder, _ = done
    words = ["data", "convert", str(folder / "pets"), "--output", str(tmp_path / "records")]
    run = run_installed(tmp_path, FILES["sidecars.py"], words)
    assert run.returncode == 0, run.stderr
    assert "format: boxes in files beside the images\n" in run.stdout


def test_an_entry_point_makes_parts_available_without_import(done, tmp_path):
    folder, _ = done
    words = ["config", str(folder / "tiny.yaml"), "--set", "model.loss.localization=charbonnier"]
    run = run_installed(tmp_path, FILES["charbonnier.py"], words)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("imports: [own_parts]\n")
    assert re.search(r"kind: charbonnier .*\n +epsilon: 0\.001", run.stdout)

"""No command replaces a file that this program did not write."""

import shutil

import pytest

from stillbox.records.files import files_below
from tests.predicting.test_video import write_video

pytestmark = pytest.mark.usefixtures("shared_programs", "no_charts")
MINE = b"somebody's own"


@pytest.fixture
def inputs(scenes, trained_once, tmp_path):
    """What the commands read, by name."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, source in enumerate(sorted((scenes / "images/val").iterdir())[:2]):
        shutil.copy(source, folder / f"{number}.jpg")
    write_video(tmp_path / "clip.avi")
    return {
        "MODEL": trained_once,
        "PHOTOS": folder,
        "VIDEO": tmp_path / "clip.avi",
        "RECORDS": f"{scenes}/val.record-*",
        "LABELS": scenes / "label_map.pbtxt",
        "JSON": scenes / "annotations/val.json",
        "IMAGES": scenes / "images/val",
        "DATA": scenes,
        "TRAIN": f"{scenes}/train.record-*",
    }


COMMANDS = {
    "predict": "predict MODEL PHOTOS --output OUT",
    "predict a video": "predict MODEL VIDEO --output OUT",
    "predict labels": "predict MODEL PHOTOS --labels yolo --crops --min-score 0.001 --output OUT",
    "evaluate": "evaluate MODEL --output OUT --overwrite --set evaluation.num_visualizations=1 "
    "--set evaluation.pictures_directory=shown",
    "evaluate all": "evaluate MODEL --step all --output OUT --set evaluation.num_visualizations=1",
    "compare": "compare MODEL MODEL --samples 5 --output OUT",
    "audit": "data audit DATA --model MODEL --number 3 --labels cvat --output OUT",
    "anchors": "anchors demo_scenes TRAIN --output OUT",
    "augmentations": "data augmentations demo_scenes TRAIN --images 1 --output OUT/a.png",
    "check": "data check RECORDS --label-map LABELS --page OUT/check.html",
    "tile": "data tile RECORDS --name t --output OUT --tile 64 --overwrite",
    "convert": "data convert coco --annotations JSON --images IMAGES --name t --output OUT "
    "--overwrite",
    **{
        form: f"data export {form} RECORDS --label-map LABELS --output OUT"
        for form in ("yolo", "coco", "voc", "cvat", "label_studio")
    },
    "scenes": "data scenes --train 2 --val 1 --output OUT --overwrite",
    "save": "weights save MODEL --to OUT/w.npz",
    "save tf1": "weights save MODEL --to OUT/model.ckpt",
    "replace": "weights save MODEL --to OUT/w.npz --overwrite",
    "replace safetensors": "weights save MODEL --to OUT/w.safetensors --overwrite",
    "replace tf1": "weights save MODEL --to OUT/model.ckpt --overwrite",
    "pack": "pack MODEL OUT/packed --overwrite",
    "export": "export MODEL --format stablehlo --output OUT --overwrite",
    "train": "train demo_scenes --model-dir OUT",
}
# A second run adds to the first, or is refused.
ONCE = (
    "predict labels",
    "audit",
    "yolo",
    "coco",
    "voc",
    "cvat",
    "label_studio",
    "save",
    "save tf1",
)


@pytest.fixture
def run(stillbox, settings, inputs):
    """The function from a command of the table and its folder to its answer."""

    def answer(name, folder):
        folder.mkdir(exist_ok=True)
        words = [str(inputs.get(word, word)) for word in COMMANDS[name].split()]
        changes = settings("train.steps=2") if "demo_scenes" in words else ()
        return stillbox(*(word.replace("OUT", str(folder)) for word in words), *changes)

    return answer


@pytest.mark.parametrize("name", COMMANDS)
def test_somebodys_file_stays_and_a_run_replaces_its_own(run, tmp_path, name):
    folder = tmp_path / "own"
    run(name, folder).ended()
    for number, path in enumerate(files_below(folder)):
        file = tmp_path / f"other{number}" / path
        file.parent.mkdir(parents=True)
        file.write_bytes(MINE)
        code, out, err = run(name, tmp_path / f"other{number}")
        assert file.read_bytes() == MINE, path
        assert code == 0 or (code == 2 and not out and "fix: " in err), path
    run(name, folder).ended(2 if name in ONCE else 0)

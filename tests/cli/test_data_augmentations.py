"""`stillbox data augmentations`: a picture of what training sees."""

from PIL import Image


def test_the_configs_augmentations_are_shown(stillbox, settings, here):
    code, out, _ = stillbox(
        "data", "augmentations", "demo_scenes", *settings(), "--images", 2, "--epochs", 3
    )
    assert code == 0
    assert out == "picture: augmentations.png\n"
    with Image.open(here / "augmentations.png") as sheet:
        assert sheet.width == 4 * 368 + 8


def test_every_operation_of_autoaugment_on_other_records(stillbox, settings, scenes, here):
    words = [f"{scenes}/val.record*", "--label-map", scenes / "label_map.pbtxt"]
    unnamed = settings("data.train.paths=[]", "data.train.label_map=")
    words += ["--operations", 8, "--images", 1, "--output", "out/sheet.jpg", *unnamed]
    assert (
        stillbox("data", "augmentations", "demo_scenes", *words).out == "picture: out/sheet.jpg\n"
    )
    with Image.open(here / "out/sheet.jpg") as sheet:
        assert sheet.width == 9 * 308 + 8
        usual = sheet.tobytes()
    mean = "train.augmentations=[{kind: autoaugment, policy: v2, contrast: mean}]"
    stillbox("data", "augmentations", "demo_scenes", *words, "--set", mean)
    with Image.open(here / "out/sheet.jpg") as sheet:
        assert sheet.tobytes() != usual


def test_numbers_out_of_range_are_refused(refused, settings, here):
    def saying(*words):
        return refused("data", "augmentations", "demo_scenes", *settings(), *words)

    assert "--images: there is nothing to show" in saying("--images", 0)
    assert "--epochs: there is nothing to show" in saying("--epochs", 0)
    assert "--operations: there is no level 11" in saying("--operations", 11)
    assert "no picture format has the ending '.gif'" in saying("--output", "a.gif")
    assert "no label map" in saying("--set", "data.train.label_map=")

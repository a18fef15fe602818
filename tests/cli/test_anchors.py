"""`stillbox anchors`: tables, a picture, and values that cover more."""

import json


def test_the_training_records_are_looked_at_and_a_picture_is_left(stillbox, settings, here):
    code, out, _ = stillbox("anchors", "demo_scenes", *settings())
    assert code == 0
    assert "recall .5" in out
    assert "picture: anchors/anchors.png" in out
    assert (here / "anchors/anchors.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((here / "anchors/anchors.json").read_text())["records"] == 10


def test_other_records_take_the_place_of_the_configs(stillbox, settings, scenes, here):
    words = ["--label-map", scenes / "label_map.pbtxt", "--output", "out", "--json"]
    unnamed = settings("data.train.paths=[]", "data.train.label_map=")
    _, out, _ = stillbox("anchors", "demo_scenes", f"{scenes}/val.record*", *words, *unnamed)
    assert json.loads(out)["records"] == 6
    assert (here / "out/anchors.png").is_file()


def test_a_limit_is_said(stillbox, settings, here):
    out = stillbox("anchors", "demo_scenes", *settings(), "--limit", "4").out
    assert "4 of 10 records read." in out


def test_unusable_arguments_are_refused(refused, settings, here):
    assert "there are no records" in refused("anchors", "ssd_mobilenet_v1_300x300")
    assert "a limit is not negative" in refused(
        "anchors", "demo_scenes", *settings(), "--limit", "-1"
    )

import pytest

from stillbox.errors import UserError
from stillbox.records.label_map import LabelMap, LabelMapItem


def ids(text):
    return {item.name: item.id for item in LabelMap.from_text(text)}


@pytest.mark.parametrize(
    "text",
    [
        "item { id: 1 name: 'a' } item { id: 2 name: \"b\" }",
        "item: { id: 1 name: 'a' }\nitem: < id: 2 name: 'b' >",
        "item {\n  name: 'a',\n  id: 1,\n}\n,item { id: 2; name: 'b'; }",
        "# classes\nitem { id: 1 # the first\n name: 'a' } item { id: 0x2 name: 'b' }",
        "item{id:1 name:'a'}item{id:2 name:'b'}",
        "item { id: 2 name: 'b' } item { id: 1 name: 'a' }",
        "item { id: 1 name: 'a' keypoints { id: 4 label: 'nose' } }"
        " item { id: 2 name: 'b' ancestor_ids: [1, 2] frequency: COMMON instance_count: 3 }",
        "\r\nitem {\r\n id: 1\r\n name: 'a'\r\n}\r\nitem { id: 2 name: 'b' }\r\n",
    ],
)
def test_the_ways_of_writing_a_map(text):
    assert ids(text) == {"a": 1, "b": 2}


def test_gaps_and_order():
    label_map = LabelMap.from_text("item { id: 90 name: 'z' } item { id: 3 name: 'a' }")
    assert [item.id for item in label_map] == [3, 90]
    assert (len(label_map), label_map.max_id) == (2, 90)
    assert 3 in label_map
    assert 4 not in label_map


def test_strings_are_unescaped_and_neighbours_joined():
    text = r"""item { id: 1 name: 'a\'b' "\"c\"" display_name: '\303\274 \x41\n' }"""
    (item,) = LabelMap.from_text(text)
    assert (item.name, item.display_name) == (
        'a\'b"c"',
        "\N{LATIN SMALL LETTER U WITH DIAERESIS} A\n",
    )


def test_display_name_alone_is_name_too():
    label_map = LabelMap.from_text("item { id: 1 display_name: 'cat' }")
    assert label_map.id_of("cat") == label_map.id_of("cat", use_display_name=True) == 1
    assert label_map.text_of(1) == "cat"


def test_lookup_by_name_and_by_display_name():
    label_map = LabelMap.from_text("item { id: 18 name: '/m/0bt9lr' display_name: 'dog' }")
    assert label_map.id_of("/m/0bt9lr") == 18
    assert label_map.id_of("dog") is None
    assert label_map.id_of("dog", use_display_name=True) == 18
    assert label_map.name_of(18) == "dog"
    assert label_map.text_of(18) == "/m/0bt9lr"
    assert label_map.name_of(19) == "class 19"


def test_background_with_id_0_is_ignored():
    assert ids("item { id: 0 name: 'background' } item { id: 1 name: 'a' }") == {"a": 1}


def test_a_label_map_survives_its_text_form():
    label_map = LabelMap(
        (LabelMapItem(1, 'it\'s \\ a "name"\n', "\N{SNOWMAN}"), LabelMapItem(4, "plain"))
    )
    assert LabelMap.from_text(label_map.to_text()) == label_map


def test_ids_from_names():
    assert [(i.id, i.name) for i in LabelMap.from_names(["b", "a"])] == [(1, "b"), (2, "a")]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("item { id: 0 name: 'dog' }", 1, "'dog' has id 0"),
        ("item { name: 'a'\nid: 99999999999 }", 2, "99999999999 is not an int32"),
        ("item { name: 'a'\nid: " + "9" * 5000 + " }", 2, "is not an int32"),
        ("item { name: 'a'\nid: 1e400 }", 2, "1e400 is not an int32"),
        ("item {\n" * 200_000, 101, "nested deeper than 100 levels"),
        ("item { id: -1 name: 'dog' }", 1, "'dog' has id -1"),
        ("item { id: 1 name: 'a' }\nitem { id: 1 name: 'b' }", 2, "id 1 belongs to 'a' and to 'b'"),
        ("item { id: 1 name: 'a' }\n\nitem { id: 2 name: 'a' }", 3, "'a' has two ids, 1 and 2"),
        ("item { name: 'a' }", 1, "the item has no id"),
        ("item { id: 1 }", 1, "neither name nor display_name"),
        ("item {\n id: 1 nmae: 'a' }", 2, "no field 'nmae'\n  fix: did you mean 'name'"),
        ("item {\n id: one name: 'a' }", 2, "one is not an int32"),
        ("item {\n id: 'a' }", 2, "'a' is not an int32"),
        ("item {\n id: 1.5 name: 'a' }", 2, "1.5 is not an int32"),
        ("item { id: 1\n name: dog }", 2, "dog is not a string\n  fix: text in quotes"),
        ("item { id: 1\n name 'dog' }", 2, "where ':' or '{' after name"),
        ("item { id: 1\n name: 'dog\n' }", 2, "the string that starts here has no end"),
        ("item { id: 1 id: 2 name: 'a' }", 1, "id is set again"),
        ("item { id: 1 name: 'a'", 1, "never closed"),
        ("item { id: 1 keypoints { id: 4", 1, "never closed"),
        ("items { id: 1 name: 'a' }", 1, "no field 'items'\n  fix: did you mean 'item'"),
        ("item id: 1", 1, "':' or '{' after item"),
        ("cat\ndog", 2, "after cat should stand\n  fix: write one `item {"),
    ],
)
def test_errors_name_the_line(text, line, words):
    with pytest.raises(UserError) as raised:
        LabelMap.from_text(text, "my.pbtxt")
    assert str(raised.value).startswith(f"my.pbtxt:{line}:")
    assert words in str(raised.value)
    assert "fix: " in str(raised.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "item { id: 0 name: 'background' }"])
def test_a_map_without_classes_is_refused(text):
    with pytest.raises(UserError, match="the label map has no"):
        LabelMap.from_text(text)


def test_a_file_is_named_in_the_message(tmp_path):
    path = tmp_path / "map.pbtxt"
    path.write_bytes(b"item { id: 1 name: '\xff\xfe' }")
    with pytest.raises(UserError, match=r"map\.pbtxt:1:21: byte 0xff is not UTF-8"):
        LabelMap.from_file(path)
    with pytest.raises(
        UserError, match=r"there is no such label map.*\n.*did you mean 'map.pbtxt'"
    ):
        LabelMap.from_file(tmp_path / "mapp.pbtxt")
    with pytest.raises(UserError, match=r"there is no such label map"):
        LabelMap.from_file(tmp_path / "nowhere" / "map.pbtxt")


def test_a_byte_order_mark_is_ignored(tmp_path):
    path = tmp_path / "map.pbtxt"
    path.write_bytes(b"\xef\xbb\xbfitem { id: 1 name: 'a' }")
    assert LabelMap.from_file(path).id_of("a") == 1


def test_coco_is_built_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coco").mkdir()  # where the images lie: no file
    coco = LabelMap.from_file("coco")
    # The 80 classes of COCO 2017 have ids up to 90.
    gaps = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
    assert {item.id for item in coco} == set(range(1, 91)) - gaps
    named = {1: "person", 13: "stop sign", 44: "bottle", 64: "potted plant", 90: "toothbrush"}
    assert named.items() <= coco.names.items()
    # A record's class text is COCO's name, whichever of the two names it is matched with.
    assert coco.id_of("hair drier") == coco.id_of("hair drier", use_display_name=True) == 89
    assert coco.where == "built-in label map coco"
    # A conversion of COCO writes the same map.
    assert LabelMap.from_text(coco.to_text()) == coco


def test_a_file_has_precedence_over_a_built_in_map(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coco").write_text("item { id: 1 name: 'owl' }")
    assert dict(LabelMap.from_file("coco").names) == {1: "owl"}


def test_a_misspelt_built_in_name_gives_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no such label map\n  fix: did you mean 'coco'"):
        LabelMap.from_file("cocoo")
    # In a folder of its own it would be a file.
    with pytest.raises(UserError, match=r"fix: give the path of a .pbtxt file, or .*: coco"):
        LabelMap.from_file("maps/coco")

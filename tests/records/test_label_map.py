import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records.label_map import (
    ClassSlots,
    LabelMap,
    LabelMapItem,
    assign_slots,
    required_classes,
)
from tests.helpers import refused


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
    assert [(i.id, i.name) for i in LabelMap.from_names(["b", "a"])] == [(1, "b"), (2, "a")]
    # The background with id 0 is ignored.
    assert ids("item { id: 0 name: 'background' } item { id: 1 name: 'a' }") == {"a": 1}


def test_strings_are_unescaped_and_neighbours_joined():
    text = r"""item { id: 1 name: 'a\'b' "\"c\"" display_name: '\303\274 \x41\n' }"""
    (item,) = LabelMap.from_text(text)
    assert item.name == 'a\'b"c"'
    assert item.display_name == "\N{LATIN SMALL LETTER U WITH DIAERESIS} A\n"
    written = LabelMap(
        (LabelMapItem(1, 'it\'s \\ a "name"\n', "\N{SNOWMAN}"), LabelMapItem(4, "plain"))
    )
    assert LabelMap.from_text(written.to_text()) == written


def test_lookup_by_name_and_by_display_name():
    label_map = LabelMap.from_text("item { id: 18 name: '/m/0bt9lr' display_name: 'dog' }")
    assert label_map.id_of("/m/0bt9lr") == 18
    assert label_map.id_of("dog") is None
    assert label_map.id_of("dog", use_display_name=True) == 18
    assert label_map.name_of(18) == "dog"
    assert label_map.text_of(18) == "/m/0bt9lr"
    assert label_map.name_of(19) == "class 19"
    # A display name alone is the name too.
    label_map = LabelMap.from_text("item { id: 1 display_name: 'cat' }")
    assert label_map.id_of("cat") == label_map.id_of("cat", use_display_name=True) == 1
    assert label_map.text_of(1) == "cat"


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
    with refused("label map"):
        LabelMap.from_text(text)


def test_a_file_is_named_in_the_message(tmp_path):
    path = tmp_path / "map.pbtxt"
    path.write_bytes(b"\xef\xbb\xbfitem { id: 1 name: 'a' }")  # a byte order mark is ignored
    assert LabelMap.from_file(path).id_of("a") == 1
    path.write_bytes(b"item { id: 1 name: '\xff\xfe' }")
    with refused("map.pbtxt:1:21", "0xff", "UTF-8"):
        LabelMap.from_file(path)
    with refused("mapp.pbtxt", "map.pbtxt"):
        LabelMap.from_file(tmp_path / "mapp.pbtxt")
    with refused("nowhere/map.pbtxt"):
        LabelMap.from_file(tmp_path / "nowhere" / "map.pbtxt")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the label map has no item"),
        (b"item { id: 1 name: 'do", r":1:20: the string that starts here has no end"),
        (bytes(range(256)), ":2:118: byte 0x80 is not UTF-8"),
        (bytes(100), ":1:1: unexpected character"),
        (b"item { id: 1 name: 'd\0g' }", ":1:20: the string has a NUL byte"),
        ("item { id: 1 name: 'a' }".encode("utf-16"), ":1:1: the file is UTF-16"),
        (None, "has 1,073,741,824 bytes; such a file has 4,194,304 at most"),
    ],
)
def test_damaged_files_are_refused(content, said, tmp_path):
    path = tmp_path / "map.pbtxt"
    with path.open("wb") as file:
        if content is None:
            file.truncate(2**30)
        else:
            file.write(content)
    with pytest.raises(UserError, match=said):
        LabelMap.from_file(path)


@pytest.mark.parametrize("path", ["x" * 300, "a/" * 3000, "a\0b", "a\0/b", "\udc80", "", "/", "~"])
def test_what_can_be_no_file_is_refused(path):
    with pytest.raises(UserError):
        LabelMap.from_file(path)


def test_a_nul_byte_of_a_name_is_an_escape():
    # protobuf.dev, Text Format Language Specification, String Literals: an octal escape.
    read = LabelMap.from_text(r"item { id: 1 name: 'd\0g' display_name: 'x\0001' }")
    assert read.id_of("d\0g") == 1 and read.name_of(1) == "x\0" + "1"
    assert LabelMap.from_text(read.to_text()) == read


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


def test_a_misspelt_built_in_name_gives_the_nearest_and_a_file_has_precedence(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with refused("cocoo"):
        LabelMap.from_file("cocoo")
    # In a folder of its own it would be a file.
    with refused("maps/coco", ".pbtxt"):
        LabelMap.from_file("maps/coco")
    (tmp_path / "coco").write_text("item { id: 1 name: 'owl' }")
    assert dict(LabelMap.from_file("coco").names) == {1: "owl"}


# Out of order on purpose; 2 and 4 are gaps.
SHAPES = LabelMap((LabelMapItem(5, "star"), LabelMapItem(1, "disc"), LabelMapItem(3, "ring")), "m")


def indices_of(slots, *ids):
    return slots.index_of(np.array(ids, np.int32)).tolist()


def ids_of(slots, *indices):
    return slots.id_of(np.array(indices, np.int32)).tolist()


@pytest.mark.parametrize(
    ("rule", "ids", "indices"),
    [("label_map_id", (1, 2, 3, 4, 5, 6), [4, 0, 2]), ("contiguous", (1, 3, 5), [2, 0, 1])],
)
def test_slots_keep_gaps_or_follow_the_order_of_the_ids(rule, ids, indices):
    slots = assign_slots(SHAPES, len(ids), rule)
    assert slots.ids == ids
    assert indices_of(slots, 5, 1, 3) == indices
    assert ids_of(slots, *indices) == [5, 1, 3]
    # Without gaps both rules are the same.
    names = LabelMap.from_names(["a", "b", "c"])
    assert assign_slots(names, 3, "contiguous") == assign_slots(names, 3, "label_map_id")


@pytest.mark.parametrize("rule", ["label_map_id", "contiguous"])
def test_an_id_without_a_slot_becomes_the_index_after_the_last(rule):
    # `assign_targets` gives that index a target of zeros; it must not be another class's.
    classes = required_classes(SHAPES, rule)
    assert indices_of(assign_slots(SHAPES, classes, rule), 0, 6, 90, -1) == [classes] * 4
    assert indices_of(ClassSlots((1, 3, 5)), 2, 4) == [3, 3]


def test_types_empty_lists_and_ids_in_words():
    slots = ClassSlots((1, 3))
    none = np.zeros(0, np.int32)
    assert slots.index_of(none).dtype == np.int32
    assert slots.id_of(none).dtype == np.int64
    assert slots.index_of(none).shape == slots.id_of(none).shape == (0,)
    words = {(1, 2, 3): "1 to 3", (7,): "7", (1, 2, 4, 6, 7): "1 to 2, 4, 6 to 7"}
    assert {ids: str(ClassSlots(ids)) for ids in words} == words


@pytest.mark.parametrize(
    ("rule", "classes", "sentence", "fix"),
    [
        ("label_map_id", 4, "id 5, the model has 4 classes", "set model.num_classes=5 (the"),
        ("contiguous", 4, "3 classes, the model 4,", "set model.num_classes=3 (the"),
        # The other rule would fit as it is.
        ("label_map_id", 3, "id 5, the model has 3 classes", "or set model.class_slots=contig"),
        ("contiguous", 5, "3 classes, the model 5,", "or set model.class_slots=label_map_id"),
    ],
)
def test_a_wrong_number_of_classes_is_refused_with_the_right_one(rule, classes, sentence, fix):
    with pytest.raises(UserError) as caught:
        assign_slots(SHAPES, classes, rule)
    assert caught.value.where == "m"
    assert sentence in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.fix.endswith("or give the label map that belongs to the model")
    assert ("class_slots" in caught.value.fix) == ("class_slots" in fix)


def test_coco_has_80_contiguous_classes():
    # COCO's contiguous classes: 1-11 -> 1-11; 12-24 -> 13-25; then 27, 28, 31-44, 46-65, 67, 70,
    # 72-82, 84-90, counted with the background as 0.
    wanted = [*range(1, 12), *range(13, 26), 27, 28, *range(31, 45), *range(46, 66), 67, 70]
    wanted += [*range(72, 83), *range(84, 91)]
    coco = LabelMap.from_file("coco")
    slots = assign_slots(coco, 80, "contiguous")
    assert slots.ids == tuple(wanted)
    assert indices_of(slots, 1, 13, 90) == [0, 11, 79]
    assert required_classes(coco, "label_map_id") == 90

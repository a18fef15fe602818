import pytest

from stillbox.textformat.parser import parse
from tests.helpers import refusal


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ("num_classes: 2 // mine", "//"),
        ("num_classes: 2// mine", "//"),
        ("// num_classes", "//"),
        ("use: true //mine", "//"),
        ('name: "a" // it\'s mine', "//"),
        ("model { // the model", "//"),
        ("rate: 0.5 /* half */", "/*"),
        ("/* all", "/*"),
        ("<!-- mine -->", "<!--"),
        ("-- mine", "--"),
        ("rate: 5 % percent", "%"),
    ],
)
def test_a_comment_of_another_language_is_named_with_the_remedy(line, sign):
    caught = refusal(parse, f"a: 1\n{line}\nb: 2\n", "f")
    assert caught.what == f"{sign} begins no comment here"
    assert caught.fix == f"write # in place of {sign}"
    assert caught.where.startswith("f:2:")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("label_map_path: /data/map.pbtxt", "/data/map.pbtxt"),
        ("label_map_path: ./data/map.pbtxt", "./data/map.pbtxt"),
        ("label_map_path: ../map.pbtxt  # mine", "../map.pbtxt"),
        ("label_map_path: gs://bucket/map.pbtxt", "gs://bucket/map.pbtxt"),
        ("label_map_path: ~/map.pbtxt", "~/map.pbtxt"),
        ("label_map_path: $HOME/map.pbtxt", "$HOME/map.pbtxt"),
        ("label_map_path: map.pbtxt", "map.pbtxt"),
        ("label_map_path: my-map", "my-map"),
        ("label_map_path: //server/map.pbtxt", "//server/map.pbtxt"),
        ("label_map_path: 2018/map.pbtxt", "2018/map.pbtxt"),
        ("label_map_path: /my maps/map.pbtxt", "/my maps/map.pbtxt"),
        ("reader { label_map_path: a/map.pbtxt }", "a/map.pbtxt"),
        ("label_map_path: /data/@2x.pbtxt", "/data/@2x.pbtxt"),
    ],
)
def test_a_path_without_quotation_marks_is_named_whole(line, text):
    caught = refusal(parse, f"{line}\n", "f")
    assert caught.what == f"label_map_path: {text} has no quotation marks"
    assert caught.fix == f'write label_map_path: "{text}"'


def test_a_windows_path_is_written_with_forward_slashes():
    caught = refusal(parse, "input_path: C:\\data\\a.record\n", "f")
    assert caught.what == "input_path: C:\\data\\a.record has no quotation marks"
    assert caught.fix == 'write input_path: "C:/data/a.record"'


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ("0,02", "write 0.02, with a decimal point"),
        ("-0,5", "write -0.5, with a decimal point"),
        ("1,5e-3", "write 1.5e-3, with a decimal point"),
        ("1.000,5", "write 1000.5, with a decimal point"),
        ("100,000", "write 100000, or 100.000 with decimals"),
        ("1,000,000", "write 1000000"),
    ],
)
def test_a_comma_in_a_number_is_named_with_the_number_that_is_meant(written, fix):
    caught = refusal(parse, f"a {{ rate: {written} steps: 3 }}\n", "f")
    assert caught.what == f"{written}: a comma ends a value here"
    assert caught.fix == fix


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb c: 2 # gs://x", "found 'c' where ':' or '{' after b should stand"),
        ('a: "b // c" d', "found end of file where ':' or '{' after d should stand"),
        ("a: [1, 2 3]", "found '3' where ',' or ']' in a list should stand"),
    ],
)
def test_other_errors_keep_their_words(text, sentence):
    assert refusal(parse, text, "f").what == sentence

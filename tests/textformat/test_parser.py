import pytest
from google.protobuf import struct_pb2, text_format

from stillbox.errors import UserError
from stillbox.textformat.decoder import Decoder
from stillbox.textformat.parser import Block, Scalar, parse
from stillbox.textformat.schema import parse_schema

VALUE = parse_schema(
    """
message Value
  number_value: double | kind
  string_value: string | kind
  bool_value: bool | kind
"""
)


def only_value(text):
    (field,) = parse(text, "f").fields
    (value,) = field.values
    return value


def decoded(text):
    message = Decoder(VALUE).decode(parse(text, "f"), "Value")
    (entries,) = message.entries.values()
    return entries[0].value


def theirs(text):
    value = text_format.Merge(text, struct_pb2.Value())
    return getattr(value, value.WhichOneof("kind"))


@pytest.mark.parametrize(
    "number",
    [
        "1",
        "-1",
        "+3",
        "0",
        ".04",
        "-.5",
        "1.",
        "1e-8",
        "1.5E+3",
        "0.00004",
        "1.0f",
        "2F",
        "1e5f",
        "inf",
        "-inf",
        "infinity",
        "3.e2",
    ],
)
def test_numbers_are_protobufs(number):
    text = f"number_value: {number}"
    assert decoded(text) == theirs(text)


@pytest.mark.parametrize("number", ["1.2.3", "0x10", "--1", "e5", "1e", "true", "'1'"])
def test_what_protobuf_refuses_as_a_number_is_refused(number):
    text = f"number_value: {number}"
    with pytest.raises(text_format.ParseError):
        theirs(text)
    with pytest.raises(UserError, match="f:1:"):
        decoded(text)


@pytest.mark.parametrize(
    "literal",
    [
        '"plain"',
        "'single'",
        "'it is \"quoted\"'",
        '"adja" "cent"',
        "'adja'\n  \"cent\"  'three'",
        r'"tab\tnewline\nquote\"backslash\\"',
        r'"octal\101\60 hex\x41\x7a"',
        r'"\303\251"',
        '"é # no comment"',
        '""',
        r"'\'?\a\b\f\v\r'",
        r'"\u00e9\U0001F43F"',
    ],
)
def test_strings_are_protobufs(literal):
    text = f"string_value: {literal}"
    assert decoded(text) == theirs(text)


def test_a_question_mark_may_be_escaped():
    assert decoded(r"string_value: 'what\?'") == "what?"


@pytest.mark.parametrize("word", ["true", "True", "t", "1", "false", "False", "f", "0"])
def test_booleans_have_eight_spellings(word):
    text = f"bool_value: {word}"
    assert decoded(text) is theirs(text)


@pytest.mark.parametrize("word", ["yes", "TRUE", "2", "'true'", "on"])
def test_other_words_are_no_booleans(word):
    with pytest.raises(UserError, match=r"f:1:13: bool_value: .* is not a bool\n  fix: true or"):
        decoded(f"bool_value: {word}")


@pytest.mark.parametrize(
    "text",
    [
        "a { b: 1 }",
        "a: { b: 1 }",
        "a < b: 1 >",
        "a: <\n  b: 1\n>",
        "a{b:1}",
        "a { b: 1; }",
        "a { b: 1, },",
        "# above\na { # behind\n b: 1 # here\n}\n# below",
        "\ta\r\n{\r\n\tb : 1 }",
        "a [{ b: 1 }]",
        "a: [ <b: 1> ]",
    ],
)
def test_a_message_can_be_written_in_many_ways(text):
    value = only_value(text)
    assert isinstance(value, Block)
    (inner,) = value.fields
    assert (inner.name, inner.values[0].text) == ("b", "1")


def test_separators_may_be_mixed():
    names = [field.name for field in parse("a: 1, b: 2; c: 3 d: 4\ne: RELU_6,", "f").fields]
    assert names == ["a", "b", "c", "d", "e"]


def test_lists_keep_every_value():
    (field,) = parse("ratios: [1.0, 2.0 , 0.5]", "f").fields
    assert [value.text for value in field.values] == ["1.0", "2.0", "0.5"]
    assert parse("ratios: []", "f").fields[0].values == ()


def test_quoted_and_bare_words_are_told_apart():
    assert only_value("a: RELU_6") == Scalar("RELU_6", False, "f:1:4")
    assert only_value("a: 'RELU_6'") == Scalar("RELU_6", True, "f:1:4")


def test_every_field_and_value_has_line_and_column():
    (model,) = parse("# one\nmodel {\n\tssd <\n    n: 3\n  >\n}", "m.config").fields
    (ssd,) = model.values[0].fields
    (n,) = ssd.values[0].fields
    assert model.where == "m.config:2:1"
    assert model.values[0].where == "m.config:2:7"
    assert ssd.where == "m.config:3:2"
    assert (n.where, n.values[0].where) == ("m.config:4:5", "m.config:4:8")


def test_a_string_over_several_lines_does_not_upset_the_count_of_lines():
    fields = parse("a: 'x'\n 'y'\n b: 2", "f").fields
    assert fields[1].where == "f:3:2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 'open\n", r"f:1:4: the string that starts here has no end.*fix: close it with '"),
        (
            "a { b: 1",
            r"f:1:3: the '\{' that opens here is never closed\n  fix: add the missing '\}'",
        ),
        ("a { b { c: 1 }\n", r"f:1:3: the '\{' that opens here is never closed"),
        ("a < b: 1 }", r"f:1:10: this '\}' closes nothing"),
        ("}", r"f:1:1: this '\}' closes nothing"),
        ("a 1", r"f:1:3: found '1' where ':' or '\{' after a"),
        ("a:", r"f:1:3: found end of file where a value"),
        ("a: }", r"f:1:4: found '\}' where a value"),
        ("a: [1, 2", r"f:1:9: found end of file where ',' or '\]'"),
        ("a: [1 2]", r"f:1:7: found '2' where ',' or '\]'"),
        ("a: 1;;", r"f:1:6: found ';' where a field name"),
        ("a: @", r"f:1:4: unexpected character '@'"),
        ("5: 1", r"f:1:1: found '5' where a field name"),
        ("'a': 1", r"f:1:1: found \"'a'\" where a field name"),
        (r"a: 'C:\data'", r"f:1:4: in 'C:.*fix: write 'C:/data'"),
        (r"a: 'C:\new'", r"f:1:4: in 'C:.*fix: write 'C:/new'"),
        (r"a: 'a\data'", r"f:1:4: unknown escape \\d.*fix: write a backslash as"),
        ("a: data/x", r"f:1:4: the text that starts with 'data' has no quotation marks"),
        ("a: \u201cx\u201d", r"f:1:4: \u201c is no quotation mark here"),
        (
            "a {\n  b {\n    c: 1\n  d: 1\n}\n",
            r"f:1:3: .*never closed, or one inside it.*f:2:5\n  fix: add .* before d \(f:4:3\)",
        ),
        ("a {\nb {\nc: 1\nd: 1\n}\n", r"f:1:3: the '\{' that opens here is never closed\n"),
        (r"a: '\xff'", r"f:1:4: .* is not UTF-8"),
        ("[a.b", r"f:1:5: found end of file where the name of an extension"),
        ("a: [[1]]", r"f:1:5: found '\[' where a value"),
    ],
)
def test_errors_say_line_column_and_what_was_wanted(text, message):
    with pytest.raises(UserError, match=f"(?s){message}"):
        parse(text, "f")


def test_strings_that_look_like_syntax_are_values():
    assert only_value("a: '}'").text == "}"
    assert only_value("a: ['{']").text == "{"
    (outer,) = parse("a { b: '}' c: 'end of file' }", "f").fields
    assert [field.values[0].text for field in outer.values[0].fields] == ["}", "end of file"]


def test_extensions_keep_their_brackets():
    (field,) = parse("[a.b.c] { x: 1 }", "f").fields
    assert field.name == "[a.b.c]"


def test_nesting_has_a_limit():
    parse("a {" * 100 + "}" * 100, "f")
    with pytest.raises(UserError, match="f:1:302: nested deeper than 100"):
        parse("a{ " * 101 + "}" * 101, "f")


def test_an_empty_text_is_an_empty_message():
    assert parse("", "f").fields == ()
    assert parse(" \n# nothing\n", "f").fields == ()

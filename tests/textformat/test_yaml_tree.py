"""Regular expressions of users: as `re` finds them, in a time that none can extend."""

import itertools
import json
import os
import random
import re
import socket
import time
from pathlib import Path

import pytest

from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.evaluation.ground_truth import read_annotations
from stillbox.experiment.params_dict.command_line import read_file
from stillbox.experiment.resolve import resolve
from stillbox.records.label_map import LabelMap
from stillbox.records.record_file import RecordFile
from stillbox.textformat import name_patterns
from stillbox.textformat.name_patterns import NamePattern
from stillbox.textformat.yaml_tree import MAX_BYTES, MAX_VALUES, compose, read_text_file
from tests.helpers import refusal, refused

_NAMES = (
    "",
    "backbone.conv_0.kernel",
    "FeatureExtractor/MobilenetV1/Conv2d_10_pointwise/BatchNorm/gamma",
    "resnet50/conv2d_3/kernel:0",
    "head.class_3.bias",
    "aab",
    "abab\n",
    "ÄB_1 é",
)


@pytest.mark.parametrize(
    "text",
    [
        "^backbone",
        r"(resnet\d+)\/(conv2d(|_([1-9]|10))|batch_normalization(|_([1-9]|10)))\/",
        r".*(gamma|beta)$",
        "",
        "a*",
        "(a|b)*?b",
        "a{2}b",
        "a{1,}",
        "a{,1}b",
        "(ab){2}",
        "a{b|a{}",
        r"[^]/.]+/",
        r"[]a]+b",
        r"[\w.]+\.bias\Z",
        r"(?i)äb",
        "(?i)BACKBONE",
        r"(?a)\w \w",
        r"\bconv",
        r"\Bonv",
        r"\x61{2}",
        "ab$",
        r"(?P<unit>conv)(?#a comment)?_",
        "a(?#a comment)+b",
        r"\.kernel|\.bias",
        r"(^|/)kernel",
        r"((a*)*|b)*$",
        r"(a??b+?)+",
        "(|a)+b",
        "(?!.*(gamma|beta|bias|depthwise)).*",
        "^(?!backbone)",
        "a(?=b)",
        "(?<=a)b",
        "(?<!a)b",
        r"(?<!class_3)\.bias",
        "((?=a).)+b",
        "(?!(?!a)b)a",
        "(?=.*kernel)(?=.*conv_0)",
        # What follows means something else to the library that searches.
        "a{e<=1}b",
        r"\\{e}|[{]|\N{LATIN SMALL LETTER B}ab",
        r"\{e<=9}",
        "(?>a+)b",
        "a++b",
        r"(a)\1",
        "(?P<n>a)(?P=n)",
        "(a)?(?(1)b|c)",
        "(?i:BACK)bone",
        "(?x) a  a",
    ],
)
def test_names_are_found_as_by_re(text):
    pattern = NamePattern(text)
    assert pattern.search(_NAMES) == [bool(re.search(text, name)) for name in _NAMES]
    assert pattern.match(_NAMES) == [bool(re.match(text, name)) for name in _NAMES]


def _random(draw, depth=0):
    """Returns an expression of a few operators, as long as `re` itself stays fast."""
    kind = draw.randrange(8 if depth < 3 else 2)
    if kind < 2:
        return draw.choice(["a", "b", ".", "[ab]", "[^a]", r"\w", "^", "$", r"\b", "c"])
    if kind == 2:
        return f"(?:{_random(draw, depth + 1)}|{_random(draw, depth + 1)})"
    if kind < 5:
        return _random(draw, depth + 1) + _random(draw, depth + 1)
    if kind == 5:
        around = draw.choice(["?=", "?!", "?<=", "?<!"])
        inside = _random(draw, 3) if "<" in around else _random(draw, depth + 1)
        return f"({around}{inside})"
    repeat = draw.choice(["*", "+", "?", "{2}", "{1,2}", "{,2}", "*?", "{2,}"])
    return f"({_random(draw, depth + 1)}){repeat}"


def test_random_expressions_are_found_as_by_re():
    draw = random.Random(0)
    names = ["".join(draw.choices("ab c", k=draw.randrange(7))) for _ in range(12)]
    matched = 0
    for _ in range(400):
        text = _random(draw)
        expected = [bool(re.search(text, name)) for name in names]
        assert NamePattern(text).search(names) == expected, text
        matched += sum(expected)
    assert 500 < matched < 4300


@pytest.mark.parametrize(
    "text",
    [
        "(a+)+$",
        "(a|a)*b",
        "(a|aa)+$",
        "(a?){60}a{60}b",
        "(.*)*(.*)*(.*)*b",
        "(a{1,4000000000})+b",
        "((((a*)*)*)*)*b",
        "(x+x+)+y",
        ".*.*.*.*.*.*.*.*b",
        "(?=(a+)+b)",
        "(?!(a+)+b)x",
        "((?=(a|a)*b)a)*b",
    ],
)
def test_no_expression_takes_exponential_time(text, monkeypatch):
    monkeypatch.setattr(name_patterns, "_SECONDS", 0.5)
    names = ["a" * 60 + "!", "x" * 200] * 200
    start = time.process_time()
    try:
        matches = NamePattern(text).search(names)
    except UserError as error:
        assert "takes too long" in error.what
    else:
        # `re` finds none of the endings either, where it comes to an end.
        assert not any(matches[::2])
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("(", "no regular expression"),
        ("a{1000000000}", "repeats 1,000,000,000 times"),
        ("(([ab]|cd){1000}){1000,}", "repeats 1,000,000 times"),
        ("(?R)?", "no regular expression"),
        ("a" * 10_001, "10,001 characters"),
        ("(?:" * 4000 + "a" + ")" * 2000, "regular expression"),
    ],
)
def test_other_expressions_are_refused(text, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        NamePattern(text)
    assert len(caught.value.what) < 300


READERS = {"config": resolve, "dictionary": lambda path: read_file(path, "--x"),
           "label map": LabelMap.from_file}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_text_file_is_refused_unread(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.yaml")
    # A hole: the file takes no room on the disk.
    Path("large.yaml").touch()
    os.truncate("large.yaml", 2**30)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.yaml")
        for name, said in {
            "pipe.yaml": "is a pipe",
            "socket.yaml": "is a socket",
            "/dev/zero": "is a device",
            "/dev/tty": "is a device",
            "large.yaml": "has 1,073,741,824 bytes",
            ".": "is a folder",
        }.items():
            with pytest.raises(UserError, match=said) as caught:
                READERS[reader](name)
            assert caught.value.fix


def test_a_text_may_have_as_many_bytes_as_are_allowed(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert len(read_text_file(path, fix="")) == MAX_BYTES
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with refused(None, "524,289", "524,288"):
        resolve(path)


@pytest.mark.parametrize(
    "content",
    [
        b"root:$6$Secret$Secret:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n",
        b"-----BEGIN PRIVATE KEY-----\nSecretkey\n-----END PRIVATE KEY-----\n",
        b"AWS_SECRET_ACCESS_KEY=Secretkey\npassword: Secretpw\n",
        b"user: Secret\npassword: Secretpw\n",
        b'{"token": "Secrettoken"}',
        b"Secret\xff\x00",
    ],
)
def test_a_file_that_should_not_have_been_opened_is_not_quoted(content, tmp_path):
    for name in ("x.yaml", "x.config", "x.pbtxt", "x.json", "x.npz", "x.pth", "x.safetensors"):
        (tmp_path / name).write_bytes(content)
        for reader in (resolve, LabelMap.from_file, read_annotations, open_weights):
            error = refusal(reader, str(tmp_path / name))
            assert "Secret" not in str(error)
    error = refusal(RecordFile, tmp_path / "x.json")
    assert "Secret" not in str(error)


NAMES = "abcdefghijklm"
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in itertools.pairwise(NAMES)
)
HOSTILE = {
    "laughs": (LAUGHS, "f:1:24", "aliases .* multiply"),
    "circle": ("a: &a [*a]", "f:1:4", "deeper"),
    "circle in a circle": ("a: &a [*a, *a]", "f:1:4", "deeper"),
    "deep lists": ("[" * 100_000, "f:1:101", "deeper"),
    "deep sections": ("{a: " * 100_000, "f:1:398", "deeper"),
    "deep blocks": ("- " * 100_000, "f:1:201", "deeper"),
    "many values": ("- a\n" * 120_000, f"f:{MAX_VALUES}:3", "more than 30,000 values"),
    "long": ("#" * 2**21, "f", "2,097,152 characters are too many"),
    "python": ("a: !!python/object/apply:os.system [ls]", "f:1:4", "!!python/object/apply:os"),
    "python section": ("a: !!python/object:os.x {b: 1}", "f:1:4", "nothing of it was run"),
    "python name": ("a: !!python/name:os.system", "f:1:4", "tag"),
    "own tag": ("a: !mine 5", "f:1:4", "the tag !mine has no meaning"),
    "set": ("a: !!set {b, c}", "f:1:4", "the tag !!set"),
    "binary": ("a: !!binary aGk=", "f:1:4", "the tag !!binary"),
    "list as a number": ("a: !!int [1]", "f:1:4", "the tag !!int"),
    "text as a number": ("a: !!int ten", "f:1:4", "'ten' is no int"),
    "text as a truth": ("a: !!bool maybe", "f:1:4", "'maybe' is no bool"),
    "empty number": ("a: !!int ''", "f:1:4", "'' is no int"),
    "long number": ("a: " + "9" * 5000, "f:1:4", "a number of 5,000 characters"),
    "base 60": ("a: 1" + ":30" * 100_000, "f:1:4", "a number of 300,001 characters"),
    "escape": ('a: "\\UFFFFFFFF"', "f:1:7", "the escape names no character"),
    "control": ("a: 1\nb: \x07", "f:2:4", "the control character"),
    "repeated": ("a: 1\na: 2", "f:2:1", "'a' is given twice"),
    "no section to merge": ("a: {<<: 5}", "f:1:5", "<< merges sections"),
    "two documents": ("a: 1\n---\nb: 2", "f:2:1", "not YAML"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_is_refused_in_one_sentence_with_its_place(case):
    text, where, said = HOSTILE[case]
    with pytest.raises(UserError, match=said) as caught:
        compose(text, "f")
    assert caught.value.where == where
    assert len(str(caught.value)) < 600


def test_values_are_plain_and_dates_are_text():
    text = "a: [1, 2.5, true, null, ~, x, 2020-01-02, 2020-99-99, '5', 0x10]\nb: {c: }"
    assert compose(text, "f").plain() == {
        "a": [1, 2.5, True, None, None, "x", "2020-01-02", "2020-99-99", "5", 16],
        "b": {"c": None},
    }


def test_aliases_and_merge_keys_are_followed():
    text = "base: &b {steps: 3, seed: 4}\ntwo: &t {seed: 9, x: 1}\n"
    text += "one: {<<: *b, seed: 5}\nall: {<<: [*b, *t]}\nsame: *b"
    plain = compose(text, "f").plain()
    assert plain["one"] == {"steps": 3, "seed": 5}
    assert plain["all"] == {"steps": 3, "seed": 4, "x": 1}
    assert plain["same"] == plain["base"]


@pytest.mark.parametrize("text", ["\U0001f989 owls", "\U00020bb7" * 2, "caf\udce9", "\ude00\ud83d"])
def test_json_spells_every_text(text):
    """A character beyond 16 bits is two escapes; the half of one stays what it is."""
    assert compose(json.dumps({text: [text]}), "f").plain() == {text: [text]}

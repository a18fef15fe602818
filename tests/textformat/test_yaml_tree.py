"""YAML costs a bounded time, and no tag is obeyed."""

import itertools

import pytest

from stillbox.errors import UserError
from stillbox.textformat.yaml_tree import MAX_VALUES, compose

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

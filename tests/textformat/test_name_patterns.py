"""Regular expressions of users: as `re` finds them, in a time that none can extend."""

import random
import re
import time

import pytest

from stillbox.errors import UserError
from stillbox.textformat.name_patterns import NamePattern

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
    found = 0
    for _ in range(400):
        text = _random(draw)
        expected = [bool(re.search(text, name)) for name in names]
        assert NamePattern(text).search(names) == expected, text
        found += sum(expected)
    assert 500 < found < 4300


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
def test_no_expression_takes_exponential_time(text):
    names = ["a" * 60 + "!", "x" * 200] * 200
    start = time.process_time()
    try:
        found = NamePattern(text).search(names)
    except UserError as error:
        assert "takes too long" in error.what
    else:
        # `re` finds none of the endings either, where it comes to an end.
        assert not any(found[::2])
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("(", "no regular expression"),
        ("(?>a)", "atomic"),
        ("a++", "possessively"),
        (r"(a)\1", "refers back"),
        ("(?P<n>a)(?P=n)", "refers back"),
        ("(a)?(?(1)b|c)", "asks for a group"),
        ("(?i:a)", "sets flags inside"),
        ("(?x) a", "flags other than"),
        ("(" * 60 + "a" + ")" * 60, "nests groups"),
        ("a" * 10_001, "10,001 characters"),
        ("(?:" * 4000 + "a" + ")" * 2000, "regular expression"),
    ],
)
def test_other_expressions_are_refused(text, what):
    with pytest.raises(UserError, match=what) as caught:
        NamePattern(text)
    assert len(caught.value.what) < 300

"""Lists of pixels in JSON: read as json and numpy read them, without an object for each number."""

import json
import random
import tracemalloc

import numpy as np
import pytest
from starlette.exceptions import HTTPException

from stillbox.serving import decoding
from stillbox.serving.bodies import shown
from stillbox.serving.decoding import MOST_OTHER, MOST_STRINGS, PixelText, parse_json

RNG = np.random.default_rng(0)


def image(height, width):
    return RNG.integers(0, 256, (height, width, 3)).tolist()


def as_lists(value):
    if isinstance(value, PixelText):
        return value.pixels("image").tolist()
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("style", [{}, {"indent": 1}, {"separators": (",", ":")}])
@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ({"instances": [image(9, 30), image(20, 7), image(1, 1)]}, 3),
        ({"instances": [image(9, 30), {"b64": 'a"\\"[[[1]]],[[['}]}, 1),
        ({"instances": [{"b64": "a\\"}, image(1, 99), {"b64": ""}, image(99, 1)]}, 2),
        ({"instances": [{"input": image(9, 30)}, {"input": image(1, 300)}]}, 2),
        ({"inputs": image(20, 20)}, 1),
        ({"inputs": [{"data": RNG.integers(0, 256, 3000).tolist(), "shape": [1]}]}, 1),
        ({"inputs": [{"data": [image(9, 30)] * 3, "shape": [3, 9, 30, 3]}]}, 3),
        ({"instances": [image(1, 2), [], [1, -2.5, None, True, {}]], "é\ud800": 1e9}, 0),
    ],
)
def test_json_equals_that_of_the_module_json(content, texts, style):
    body = json.dumps(content, **style).encode()
    read = parse_json(body)
    assert as_lists(read) == content
    assert str(read).count("PixelText(") == texts


def verdict(text):
    """The result of json and numpy for a text: lists of whole numbers in 0..255, or None."""
    try:
        values = json.loads(text)
        array = np.array(values)
    except ValueError:
        return None
    whole = array.dtype.kind == "i" and array.size and array.ndim <= 4
    return values if whole and array.min() >= 0 and array.max() <= 255 else None


def test_changed_lists_are_read_or_refused_as_by_json():
    rng, sound = random.Random(1), json.dumps(image(3, 4), separators=(",", ":"))
    read = 0
    for _ in range(1500):
        text = list(sound)
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(1, len(text) - 1)
            text[at : at + rng.choice((0, 1))] = rng.choice(("", *"[],0123"))
        text = "".join(text)
        wanted = verdict(text)
        try:
            pixels = PixelText(text.encode()).pixels("image").tolist()
        except HTTPException as error:
            assert error.status_code == 400
            pixels = None
        assert pixels == wanted, text
        read += wanted is not None
    assert 200 < read < 1300


@pytest.mark.parametrize(
    "values",
    [
        [[[1.0, 2, 3]]],
        [[[1e300, 2, 3]]],
        [[[10**300, 2, 3]]],
        [[["1", "2", "3"]]],
        [["x" * 1000, *[""] * 1000]],
        [[[True, False, True]]],
        [[[None, 2, 3]]],
        [[[{}, 2, 3]]],
        [[[{"b64": "AAAA"}, 2, 3]]],
        [[[PixelText(b"[1]"), 2, 3]]],
        [[[-1, 2, 3]]],
        [[[256, 2, 3]]],
        [[[1, 2, 3], [1, 2]]],
        [[[1, 2, 3]], [[1, 2, 3], [4, 5, 6]]],
        [[[]]],
        [],
        [[[[[[1]]]]]],
    ],
)
def test_other_lists_than_arrays_of_bytes_are_refused(values):
    with pytest.raises(HTTPException) as refused:
        PixelText.of(values).pixels("image 7")
    assert refused.value.status_code == 400
    assert refused.value.detail.startswith("image 7: ")


SIZE = 400_000


def filled(begin, unit, end):
    return begin + unit * ((SIZE - len(begin) - len(end)) // len(unit)) + end


ROW, END = b'{"instances":[[', b"0]]}"
HOSTILE = {
    "pixels": filled(b'{"instances":[[', b"[[0,0,0]],", b"[[0,0,0]]]]}"),
    "strings among pixels": b'{"instances":[["' + b"x" * 160_000 + b'"' + b',""' * 80_000 + b"]]}",
    "a few long strings": filled(ROW, b'"' + b"x" * 50_000 + b'",', END),
    "empty lists": filled(ROW, b"[],", END),
    "empty objects": filled(ROW, b"{},", END),
    "objects": filled(ROW, b'{"a":{}},', END),
    "zeros": filled(ROW, b"0,", END),
    "floats": filled(ROW, b"1e-300,", END),
    "nothing": filled(ROW, b"null,", END),
    "digits": filled(ROW, b"9" * 4299 + b",", END),
    "more digits": filled(ROW, b"9" * 5000 + b",", END),
    "keys": b"{" + b",".join(b'"%d":0' % n for n in range(SIZE // 10)) + b"}",
    "keys that are equal": filled(b"{", b'"a":0,', b'"b":0}'),
    "depth": filled(b'{"a":', b"[", b""),
    "depth of objects": filled(b"", b'{"a":', b""),
    "depth that ends": b'{"a":' + b"[" * (SIZE // 2) + b"]" * (SIZE // 2) + b"}",
    "many deep lists": filled(ROW, b"[" * 900 + b"]" * 900 + b",", END),
    "images": filled(b'{"instances":[', b"[[[1,2,3]]],", b"[[[1,2,3]]]]}"),
    "broken lists": filled(ROW, b"[x", b""),
    "escapes": filled(b'{"id":"', b'\\"', b'"}'),
    "surrogates": filled(b'{"id":"', b"\\ud800", b'"}'),
    "a string without end": filled(b'{"id":"', b"a", b"\\"),
    "zero bytes": b"\0" * SIZE,
    "numbers with spaces": filled(ROW, b"0 ", END),
    "spaces": filled(ROW, b" ", END),
    "a shape": filled(b'{"shape":[', b"2147483647,", b"1]}"),
    "not a number": filled(ROW, b"NaN,", END),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_body_takes_little_memory_whatever_it_holds(kind, monkeypatch):
    monkeypatch.setattr(decoding, "MOST_OTHER", 2**15)
    body = HOSTILE[kind]
    tracemalloc.start()
    try:
        try:
            content = parse_json(body)
            for value in content.get("instances", []):
                (value if isinstance(value, PixelText) else PixelText.of(value)).pixels("image")
        except HTTPException as error:
            assert error.status_code == 400
            assert len(error.detail) < 200
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The engine expects 16 bytes for each.
    assert peak < 16 * len(body) + 2**20


def test_the_limits_of_other_json():
    assert parse_json(b'{"a":[' + b'"",' * (MOST_STRINGS - 2) + b'""]}')
    with pytest.raises(HTTPException, match="strings"):
        parse_json(b'{"a":[' + b'"",' * MOST_STRINGS + b'""]}')
    with pytest.raises(HTTPException, match="bytes beside strings and pixels"):
        parse_json(b'{"a":[' + b"1.5," * (MOST_OTHER // 4) + b"1]}")


@pytest.mark.parametrize("value", ["x" * 10**6, ["x" * 10**6] * 10, {"a" * 10**6: 1}, 10**4000])
def test_a_value_is_shortened_for_a_message(value):
    assert len(shown(value)) < 400

"""Damaged configs, made from sound ones: `python -m tests.experiment.fuzzing SECONDS [SEED]`.

Whatever a file holds, `resolve` gives an experiment or a `UserError` that fits on one screen.
"""

import random
import re
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.section import load_schema
from stillbox.experiment.recipes import recipe_names, recipe_path
from stillbox.experiment.resolve import resolve
from stillbox.experiment.yaml_config import from_yaml, to_yaml
from tests.experiment.sample import FASTER_RCNN, GARDEN, SAMPLE
from tests.small import SHARED

LINES, COLUMNS = 25, 100
"""A screen."""

_TOKEN = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[A-Za-z_][\w.]*|[-+]?[\d.][\w.+-]*|\s+|.", re.DOTALL)
_NAMES = sorted(
    {name for message in load_schema().messages.values() for name in message.fields}
    | {name for enum in load_schema().enums.values() for name in enum}
)
_SCALARS = [
    *("0", "-1", "1", "0.5", "-0.0", "1e400", "-1e400", "nan", "inf", "-inf", "1e-400", ".5f"),
    *("2147483647", "2147483648", "-2147483649", "4294967295", "9" * 30, "9" * 5000,
     "0x" + "f" * 99),
    *("true", "false", "True", "t", "RELU_6", "SIGMOID", "null", "~", "''", "'x'",
     '"' + "x" * 5000 + '"'),
    *("[]", "[1, 2]", "[1, [2]]", "['a', \"b\"]", "[{}, {}]", "{}", "< >", "{ a: 1 }",
     "!!python/name:os"),
    *("PATH_TO_BE_CONFIGURED", "'gs://bucket/x'", "09", "1.0.0", "1_000", "0777", "&a", "*a", "%x"),
    *(r'"C:\Users\new\data"', r"'D:\data\x.record'", r'"\\server\share"', r'"\xff\377"', r'"\u12"'),
    *("'(*'", "'[a-'", '"\\U0011ffff"', '"\\ud800"', "café", '"日本"', "\u202e", "\ufeff"),
]  # fmt: skip
_PIECES = [
    "[a.b.c] {}",
    "[type.googleapis.com/x.y] { z: 1 }",
    "[a b]: 3",
    "model { ssd { } }",
    "model { faster_rcnn { } }",
    "ssd { }",
    "eval_input_reader { }",
    "graph_rewriter { quantization { delay: 1 } }",
    "image_resizer { identity_resizer { } }",
    "image_resizer { pad_to_multiple_resizer { multiple: 0 } }",
    "ssd_anchor_generator { } multiscale_anchor_generator { min_level: 90 }",
    "fpn { min_level: -3 max_level: 99 }",
    "l1_regularizer { } l2_regularizer { }",
    "weighted_softmax { } weighted_sigmoid { } # both",
    "data_augmentation_options { }",
    "data_augmentation_options { autoaugment_image { } }",
    "# comment without end of line",
    "<<: *a",
    "a: &a [*a]",
    "recipe: demo_scenes",
    "recipe: [x]",
    "? {a: b} : c",
    "--- {}",
    "\t- x",
]
_BYTES = [
    b"\xff",
    b"\xfe\xff",
    b"\x00",
    b"\x1b[31m",
    b"\x7f",
    b"\x85",
    b"\xe2\x80\xa8",
    b"\xc0\x80",
    b"\x0c",
]


def mutate(text: str, rng: random.Random) -> bytes:
    """Returns the text with one to four kinds of damage."""
    tokens = _TOKEN.findall(text)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        tokens = rng.choice(_OPERATIONS)(tokens, rng) or [" "]
    return rng.choice(_ENCODINGS)("".join(tokens), rng)


def _solid(tokens: list[str], rng: random.Random, wanted: Callable[[str], object]) -> int:
    """Returns the place of a token that is wanted, of any where none is."""
    places = [place for place, token in enumerate(tokens) if wanted(token)]
    return rng.choice(places or range(len(tokens)))


def _delete(tokens: list[str], rng: random.Random) -> list[str]:
    start = _solid(tokens, rng, str.strip)
    return tokens[:start] + tokens[start + rng.choice((1, 1, 1, 3, 20)) :]


def _duplicate(tokens: list[str], rng: random.Random) -> list[str]:
    start = _solid(tokens, rng, str.strip)
    piece = tokens[start : start + rng.choice((1, 2, 6, 40))]
    return tokens[:start] + piece * rng.choice((2, 2, 2, 9)) + tokens[start:]


def _swap(tokens: list[str], rng: random.Random) -> list[str]:
    first, second = _solid(tokens, rng, str.strip), _solid(tokens, rng, str.strip)
    tokens[first], tokens[second] = tokens[second], tokens[first]
    return tokens


def _move(tokens: list[str], rng: random.Random) -> list[str]:
    """Puts a piece where it does not belong: wrong nesting."""
    start, target = _solid(tokens, rng, str.strip), _solid(tokens, rng, str.strip)
    piece = tokens[start : start + rng.choice((4, 10, 40))]
    return [*tokens[:target], " ", *piece, " ", *tokens[target:]]


def _brace(tokens: list[str], rng: random.Random) -> list[str]:
    place = _solid(tokens, rng, lambda token: token in "{}[]<>")
    tokens[place] = rng.choice(["", "{", "}", "<", ">", "[", "]", "{{", "}}", "("])
    return tokens


def _value(tokens: list[str], rng: random.Random) -> list[str]:
    """Changes a number, a string or a word into something else: other types, huge numbers."""
    place = _solid(tokens, rng, lambda token: re.match(r"[\d\"'.+-]|true|false|[A-Z]", token))
    tokens[place] = rng.choice(_SCALARS)
    return tokens


def _name(tokens: list[str], rng: random.Random) -> list[str]:
    """Misspells a name, or takes another one that exists."""
    place = _solid(tokens, rng, lambda token: re.match(r"[A-Za-z_]{3}", token))
    word = tokens[place]
    cut = rng.randrange(len(word))
    typo = word[:cut] + rng.choice(["", "x", word[cut] * 2, "_", "-", "é"]) + word[cut + 1 :]
    tokens[place] = rng.choice([typo, word.upper(), rng.choice(_NAMES), "x" * 3000])
    return tokens


def _insert(tokens: list[str], rng: random.Random) -> list[str]:
    place = _solid(tokens, rng, lambda token: not token.strip())
    return [*tokens[:place], " ", rng.choice(_PIECES), "\n", *tokens[place:]]


def _field(tokens: list[str], rng: random.Random) -> list[str]:
    """A field of the format, most likely in the wrong message, with any value."""
    place = _solid(tokens, rng, lambda token: not token.strip())
    written = rng.choice(["{}: {}", "{} {{ {} }}", "{} {{ value: {} }}"])
    piece = written.format(rng.choice(_NAMES), rng.choice(_SCALARS))
    return [*tokens[:place], " ", piece, " ", *tokens[place:]]


def _nest(tokens: list[str], rng: random.Random) -> list[str]:
    place, depth = _solid(tokens, rng, lambda token: not token.strip()), rng.choice((3, 150, 4000))
    opening, closing = rng.choice([("a {", "}"), ("model {", "}"), ("a: [", "]"), ("[", "]")])
    piece = opening * depth + closing * rng.choice((depth, depth, 0, depth - 1))
    return [*tokens[:place], " ", piece, " ", *tokens[place:]]


def _truncate(tokens: list[str], rng: random.Random) -> list[str]:
    return tokens[: rng.randrange(len(tokens))]


_OPERATIONS: Sequence[Callable[[list[str], random.Random], list[str]]] = (
    _delete,
    _duplicate,
    _swap,
    _move,
    _brace,
    _value,
    _value,
    _name,
    _insert,
    _field,
    _field,
    _nest,
    _truncate,
)


def _with_bytes(text: str, rng: random.Random) -> bytes:
    """Puts bytes in that are no text, or no printable text."""
    content = text.encode("utf-8", "surrogatepass")
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.choice(_BYTES) + content[place:]


_ENCODINGS: Sequence[Callable[[str, random.Random], bytes]] = (
    *[lambda text, rng: text.encode("utf-8", "surrogatepass")] * 8,
    _with_bytes,
    lambda text, rng: b"\xef\xbb\xbf" + text.encode(),
    lambda text, rng: text.replace("\n", "\r\n").encode(),
    lambda text, rng: text.replace("\n", "\r").encode(),
    lambda text, rng: text.encode("utf-16"),
)


def corpus() -> list[tuple[str, str]]:
    """Returns suffix and text of sound configs; real ones too, where the shared folder is."""
    recipes = [(".yaml", recipe_path(name).read_text()) for name in recipe_names()]
    folder = SHARED / "configs" / "pipeline"
    real = [(".config", path.read_text()) for path in sorted(folder.glob("*.config"))]
    samples = [(".config", text) for text in (SAMPLE, SAMPLE, FASTER_RCNN)]
    return [*samples, *recipes[:3], (".yaml", GARDEN), *real]


def attempt(path: Path) -> str | None:
    """Resolves a file; returns the message where it is refused.

    Raises:
        AssertionError: the message does not fit on a screen, or has no place.
    """
    try:
        resolved = resolve(path)
    except UserError as error:
        text = str(error)
        rows = sum(max(1, len(textwrap.wrap(line, COLUMNS))) for line in text.splitlines())
        assert rows <= LINES, f"{rows} lines"
        assert text.isprintable() or all(c.isprintable() or c == "\n" for c in text), "unprintable"
        return text
    assert from_yaml(to_yaml(resolved.experiment)) == resolved.experiment
    return None


def main() -> None:
    """Fuzzes for so many seconds; prints what broke, each kind of failure once."""
    seconds, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    rng, texts = random.Random(seed), corpus()
    end, tried, refused, failures = time.monotonic() + seconds, 0, 0, {}
    with TemporaryDirectory() as folder:
        while time.monotonic() < end:
            suffix, text = rng.choice(texts)
            path = Path(folder) / f"fuzzed{suffix}"
            path.write_bytes(mutate(text, rng))
            tried += 1
            try:
                refused += attempt(path) is not None
            except Exception as error:
                trace = error.__traceback__
                while trace and trace.tb_next:
                    trace = trace.tb_next
                where = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace else "?"
                kind = f"{type(error).__name__} in {where}: {str(error)[:60]!r}"
                if kind not in failures:
                    saved = Path(f"fuzzed_{seed}_{tried}{suffix}")
                    saved.write_bytes(path.read_bytes())
                    print(f"{kind} -> {saved}", flush=True)
                failures[kind] = failures.get(kind, 0) + 1
    print(f"{tried} inputs, {refused} refused, {tried - refused} read, {len(failures)} failures")


if __name__ == "__main__":
    main()

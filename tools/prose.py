"""Finds names that say nothing and sentences that lean on other lines, as CONTRIBUTING.md asks.

    python -m tools.prose [FILE_OR_FOLDER ...]

Without a name it takes the whole repository.
"""

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("benchmarks", "packages", "stillbox", "tests", "tools")
EMPTY_NAMES = {"found", "one", "own", "thing", "what"}
PUBLIC = {
    ("stillbox/errors.py", "what"),
    ("stillbox/evaluation/runtimes.py", "found"),
    ("stillbox/exporting/verification.py", "found"),
    ("stillbox/findings.py", "what"),
}
"""Fields that users and stored files read."""
PRONOUN = re.compile(r"(Its?|They|Their|Them|This|That|These|Those|Both|Neither|So|Such(?! as))\b")
CHAIN = re.compile(r"\b(that of|those of|the ones? of|whose)\b", re.IGNORECASE)


class Remark(NamedTuple):
    """What is hard to read on a line of a file."""

    file: str
    line: int
    text: str


def remarks(file: Path) -> Iterator[Remark]:
    """Yields the remarks about a file of Python."""
    name, source = file.resolve().relative_to(ROOT).as_posix(), file.read_text("utf-8")
    tree = ast.parse(source)
    for line, bound in _bindings(tree):
        if bound in EMPTY_NAMES and (name, bound) not in PUBLIC:
            yield Remark(name, line, f"`{bound}` does not say what it holds")
    for line, prose in (*_docstrings(tree), *_comments(source)):
        text = " ".join(prose.split())
        if PRONOUN.match(text):
            yield Remark(name, line, f"begins with a pronoun: {text[:60]}")
        for chain in CHAIN.finditer(text):
            yield Remark(name, line, f"a chain: {text[max(chain.start() - 30, 0) :][:70]}")


def _bindings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each variable, parameter, field and function."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yields comments; the lines of a block are one comment."""
    start, end, text = 0, (0, 0), ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        if (line - 1, column) == end and token.line.lstrip().startswith("#"):
            text += token.string.removeprefix("#")
        else:
            yield start, text
            start, text = line, token.string.lstrip("#: ")
        end = line, column
    yield start, text


def files(paths: list[Path]) -> Iterator[Path]:
    """Yields files, and the files of Python in folders."""
    for path in paths:
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def main() -> None:
    """Prints a line for each remark on standard error; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE_OR_FOLDER")
    paths = parser.parse_args().paths
    kept = files(paths or [ROOT / folder for folder in FOLDERS])
    lines = ["{}:{}: {}".format(*remark) for file in kept for remark in remarks(file)]
    raise SystemExit("\n".join(lines) or None)


if __name__ == "__main__":
    main()

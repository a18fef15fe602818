"""Output on terminals: printable text, no control sequences of names, and errors."""

import io
import json
import os
import pickle
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import stillbox
from stillbox.cli.running import progress_bar
from stillbox.errors import UserError, nearest
from stillbox.extras import not_installed
from stillbox.printing import (
    count_text,
    file_name_text,
    json_text,
    printable,
    printable_line,
    printable_output,
    sides_text,
    size_text,
)
from stillbox.training.progress import PrintableConsole, RunProgress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@contextmanager
def terminal():
    """Replaces standard output and standard error by a terminal, which it yields."""
    stream = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        for name in ("NO_COLOR", "FORCE_COLOR", "CI"):
            patch.delenv(name, raising=False)
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        yield stream
        assert (sys.stdout, sys.stderr) == (stream, stream)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ASCII, Grüße, 電車 🚲\n", "plain ASCII, Grüße, 電車 🚲\n"),
        ("\x1b[2J\x07\r\t\x7f", r"\x1b[2J\x07\r\t\x7f"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("\u202e\u2066\u200b\u200d\ufeff\xad", r"\u202e\u2066\u200b\u200d\ufeff\xad"),
        ("\u2028\u2029\xa0", r"\u2028\u2029\xa0"),
        ("\U000e0041", r"\U000e0041"),
        (os.fsdecode(b"\xe9"), r"\udce9"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert printable(text) == shown
    assert printable_line(text) == shown.replace("\n", r"\n")


def test_json_holds_every_name_exactly_and_no_control_character():
    names = ["\x1b\x9b\u202e\n\x7f", "\U000e0041é電", os.fsdecode(b"\xff"), '"\\u001b']
    text = json_text({"names": names})
    assert json.loads(text)["names"] == names
    assert printable(text) == text
    assert "é電" in text


def test_undecodable_bytes_of_names_are_escaped_in_records():
    assert file_name_text(os.fsdecode("caf\xe9 é.png".encode("latin-1"))) == "caf%E9 %E9.png"
    assert file_name_text("電.png") == "電.png"


def test_streams_are_printable_until_the_end():
    with terminal() as stream, pytest.raises(ZeroDivisionError), printable_output():
        with printable_output():
            print("\x1b[2J", end="")
        sys.stderr.writelines(["\x07", "b\n"])
        raise ZeroDivisionError
    assert stream.getvalue() == "\\x1b[2J\\x07b\n"


def test_characters_that_an_encoding_lacks_are_escaped(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "latin-1"))
    with printable_output():
        print("電 é", flush=True)
    assert raw.getvalue() == b"\\u96fb \xe9\n"


def test_tables_have_the_colours_of_rich_and_none_of_a_name():
    table = Table(title="Classes", title_justify="left")
    table.add_row(Text("\x1b[8m\x9b2J\u202ecat"), "[/] [red]x")
    with terminal() as stream, printable_output():
        console = PrintableConsole()
        console.print(table, markup=False)
        console.print("\x1b[2J", markup=False)
    out = stream.getvalue()
    assert "\x1b[3m" in out  # rich's own italics of titles
    assert r"\x1b[8m" in out
    assert not [code for code in ("\x1b[8m", "\x9b", "\u202e", "\x1b[2J") if code in out]


def show_bar():
    return progress_bar("images")


def show_run():
    return RunProgress(0, 2)


@pytest.mark.parametrize("show", [show_bar, show_run])
def test_lines_beside_a_progress_bar_have_no_codes_of_a_name(show):
    with terminal() as stream, printable_output(), show() as bar:
        print("\x1b[31m\x1b[2J\x07name")
        if isinstance(bar, RunProgress):
            bar.say("\x1b[31msaid")
            bar.doing("\x1b[2J [/] doing")
    out = stream.getvalue()
    assert "\x1b[?25l" in out  # the bar hides the cursor
    assert r"\x1b[31m\x1b[2J\x07name" in out
    assert not [code for code in ("\x1b[31m", "\x1b[2J", "\x07") if code in out]


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "file", "1 file"),
        (0, "image", "0 images"),
        (8000, "usable box", "8,000 usable boxes"),
        (2, "class", "2 classes"),
        (3, "batch", "3 batches"),
        (2, "epoch", "2 epochs"),
    ],
)
def test_a_count_takes_singular_or_plural(number, noun, text):
    assert count_text(number, noun) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1 KiB"),
        (5_000_000, "5 MiB"),
        (-(2**20), "-1 MiB"),
        (16.5 * 2**30, "16.50 GiB"),
        (2**41, "2.00 TiB"),
    ],
)
def test_a_size_has_a_fitting_unit(nbytes, text):
    assert size_text(nbytes) == text


def test_no_other_module_makes_plurals_or_sizes_itself():
    pattern = re.compile(r"""["']e?s["'] (\*|if )|:,?\.\df\} [KMG]i?B\b|\(s\)""")
    files = Path(stillbox.__file__).parent.rglob("*.py")
    matching = [file for file in files if pattern.search(file.read_text())]
    assert matching == [Path(stillbox.__file__).with_name("printing.py")]


def test_place_cause_and_remedy_stand_in_this_order():
    assert str(UserError("it is wrong", where="f:1:2", fix="mend it")) == (
        "f:1:2: it is wrong\n  fix: mend it"
    )
    assert str(UserError("it is wrong")) == "it is wrong"


def test_an_error_goes_to_another_process_whole():
    rows = "\n".join(map(str, range(30)))
    for sent in (not_installed("onnxruntime", "onnx"), UserError(rows, where="f:1", fix=rows)):
        came = pickle.loads(pickle.dumps(sent))
        assert (type(came), str(came), vars(came)) == (type(sent), str(sent), vars(sent))


def test_a_word_of_a_thousand_characters_keeps_its_ends():
    message = str(UserError("no field " + "a" * 500 + "z" * 500))
    assert message == "no field " + "a" * 100 + "..." + "z" * 20


@pytest.mark.parametrize(
    "text", ["word " * 1000, "line\n" * 1000, "\n" * 1000, "x" * 10**6, ("y" * 90 + "\n") * 99]
)
def test_a_message_fits_on_a_screen_and_the_attributes_hold_all_of_it(text):
    error = UserError(text, fix=text)
    assert (error.what, error.fix) == (text, text)
    assert sum(1 + len(line) // 100 for line in str(error).splitlines()) <= 24


def test_what_is_left_out_is_counted():
    # Eleven rows: eleven lines of the thirty, and the last one says how many follow.
    assert str(UserError("\n".join(map(str, range(30))))).endswith("9\n10\n... and 19 more")


def test_control_characters_are_escaped_in_errors():
    assert str(UserError("a\x1b[31mb\u202ec")) == "a\\x1b[31mb\\u202ec"


def test_the_nearest_names_or_all_of_them():
    assert nearest("batch_sise", ["batch_size", "steps"]) == "did you mean 'batch_size'?"
    assert nearest("zzz", ["steps", "batch_size"]) == "valid here: batch_size, steps"
    assert nearest("zzz", []) == "nothing is valid here: leave it out"


def test_sides_are_height_and_width():
    assert sides_text((640, 512)) == "640 x 512"

"""The one exception that a person reads."""

import pytest

from stillbox.errors import UserError, nearest


def test_place_cause_and_remedy_stand_in_this_order():
    assert str(UserError("it is wrong", where="f:1:2", fix="mend it")) == (
        "f:1:2: it is wrong\n  fix: mend it"
    )
    assert str(UserError("it is wrong")) == "it is wrong"


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


def test_what_a_terminal_would_act_on_is_spelt_out():
    assert str(UserError("a\x1b[31mb\u202ec")) == "a\\x1b[31mb\\u202ec"


def test_the_nearest_names_or_all_of_them():
    assert nearest("batch_sise", ["batch_size", "steps"]) == "did you mean 'batch_size'?"
    assert nearest("zzz", ["steps", "batch_size"]) == "valid here: batch_size, steps"
    assert nearest("zzz", []) == "nothing is valid here: leave it out"

"""The parser of all verbs: what it refuses is one message with its remedy."""

import argparse
import math
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

from stillbox import numerals
from stillbox.errors import UserError, nearest

_REQUIRED = "the following arguments are required: "
_ADDRESS = re.compile(r"(?:--?[\w-]+=)?(?:https?|ftp)://")


def whole_number(text: str) -> int:
    """Returns the whole number that a text spells.

    Raises:
        ValueError: it spells none.
        argparse.ArgumentTypeError: it has more than 64 bits, as no array and no file holds.
    """
    number = numerals.whole(text)
    if number is None and re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
        raise argparse.ArgumentTypeError(f"{text[:20]}... has more than 64 bits")
    if number is None:
        raise ValueError(text)
    return number


def finite_number(text: str) -> float:
    """Returns the number that a text spells.

    Raises:
        argparse.ArgumentTypeError: it spells none, or one that no float holds.
    """
    number = numerals.number(text)
    if math.isnan(number):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no finite number")
    return number


class VerbParser(argparse.ArgumentParser):
    """A parser that names the nearest option of a misspelt one."""

    default_verb = ""
    """The verb of words that begin with none of the others."""
    _words: Sequence[str] = ()

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self.register("type", int, whole_number)
        self.register("type", float, finite_number)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:  # noqa: ANN401
        """Takes `--option=--` as the value that it is; argparse takes it for none."""
        if arg_strings != ["--"] or not action.option_strings:
            return super()._get_values(action, arg_strings)
        value = self._get_value(action, "--")
        self._check_value(action, value)
        return value if action.nargs in (None, "?") else [value]

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuses what is left over here, where the options are known."""
        self._words = args = self._with_verb(args or ())
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return parsed, left

    def _with_verb(self, words: Sequence[str]) -> Sequence[str]:
        """Returns the words with the default verb before them, unless they begin with another."""
        others = {"-h", "--help", *self._verbs()} - {self.default_verb}
        if not self.default_verb or (words and words[0] in others):
            return words
        return [self.default_verb, *words]

    def error(self, message: str) -> NoReturn:
        """Ends the program with a message of what is wrong and how to mend it."""
        misspelt = next(filter(self._is_unknown, self._words), None)
        if misspelt is not None:
            name = misspelt.partition("=")[0]
            close = nearest(name, self._option_string_actions)
            fix = f"{close} " if close.startswith("did you mean") else ""
            error = UserError(f"there is no option {name}", fix=f"{fix}{self._help()}")
        elif message.startswith(_REQUIRED):
            missing = message.removeprefix(_REQUIRED)
            verbs = ", ".join(self._verbs())
            fix = f"give one of {verbs}" if verbs else self._help()
            error = UserError(f"{missing} is missing", fix=fix)
        else:
            error = UserError(message, fix=self._help())
        self.exit(2, f"{self.prog}: {error}\n")

    def _is_unknown(self, word: str) -> bool:
        """Whether a word is an option, in full or shortened, of no parser that it reaches."""
        if not re.match(r"--?[A-Za-z]", word) or self._verbs():
            return False
        name = word.partition("=")[0]
        names = self._option_string_actions
        if name in names or (len(name) > 2 and name[1] != "-" and name[:2] in names):
            return False
        return not (self.allow_abbrev and any(option.startswith(name) for option in names))

    def _verbs(self) -> list[str]:
        verbs = [
            action for action in self._actions if isinstance(action, argparse._SubParsersAction)
        ]
        return [name for action in verbs for name in action.choices]

    def _help(self) -> str:
        return f"`{self.prog} --help` shows what it takes"


def refuse_addresses(words: Sequence[str]) -> None:
    """Refuses addresses, which would be taken for paths.

    Raises:
        UserError: one of the words is an address.
    """
    for word in words:
        if _ADDRESS.match(word):
            address = re.sub(r"^--?[\w-]+=", "", word)
            fix = f"give a file: curl --location --remote-name {shlex.quote(address)} gets it"
            raise UserError(f"addresses are not taken: {address}", fix=fix)


def with_two_dashes(words: Iterable[str], options: Collection[str]) -> list[str]:
    """Returns the words of a command line with two dashes before each flag: absl takes one too.

    `options` are the verb's; short ones keep their dash.
    """

    def two(word: str) -> str:
        name = word.partition("=")[0]
        return f"-{word}" if name not in options and f"-{name}" in options else word

    return [two(word) for word in words]

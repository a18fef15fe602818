"""How the command line names what sentences refer to: parameters and settings as options."""

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from stillbox.references import Command, Parameter, Reference, Setting


@dataclass(frozen=True)
class OptionWording:
    """Names references with the options of one verb; callable as a `Wording`."""

    options: dict[str, str] = field(default_factory=dict)
    """Parameter -> the option that gives it, such as `model_dir` -> `--model_dir`."""

    @classmethod
    def of(cls, parser: argparse.ArgumentParser) -> "OptionWording":
        """Returns the wording of a verb; a parameter is an option's name or its destination."""
        options: dict[str, str] = {}
        for action in _actions(parser):
            for option in action.option_strings:
                if option.startswith("--"):
                    options.setdefault(option[2:].replace("-", "_"), option)
                    options.setdefault(action.dest, option)
        return cls(options)

    def __call__(self, reference: Reference) -> str:
        """Returns the words for a reference."""
        if isinstance(reference, Parameter):
            name = self.options.get(reference.name, reference.name.replace("_", " "))
            return name if reference.value is None else f"{name} {reference.value}"
        if isinstance(reference, Setting):
            setting = f"{reference.path}={_quoted(str(reference.value))}"
            return f"--set {setting}" if "overrides" in self.options else setting
        return _command(reference)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the options of a parser and of the verbs below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
        else:
            yield action


def _quoted(value: str) -> str:
    """Returns a value as a shell takes it."""
    return value if not value else shlex.quote(value)


def _command(command: Command) -> str:
    words = ["stillbox", command.words]
    for name, value in command.options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return f"`{' '.join(words)}`"

"""`stillbox completion`: print a script that completes words of the command line.

Put it where the shell reads it: bash: `stillbox completion bash >
~/.local/share/bash-completion/completions/stillbox`; zsh: into a file `_stillbox` of a folder in
`$fpath`; fish: `~/.config/fish/completions/stillbox.fish`.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable

from argcomplete import autocomplete, shellcode
from argcomplete.completers import BaseCompleter, FilesCompleter
from argcomplete.lexers import split_line

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("shell", choices=SHELLS, help="shell that reads the script")


def run(arguments: argparse.Namespace) -> int:
    """Prints the script, which runs `stillbox` to ask for the words."""
    sys.stdout.write(shellcode(["stillbox"], shell=arguments.shell))
    return 0


def complete(build_parser: Callable[[str], argparse.ArgumentParser]) -> None:
    """Answers the script of `stillbox completion` and ends the process.

    `build_parser` takes the verb of the command line, or nothing where it has none yet.
    """
    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    _, _, _, words, _ = split_line(line, point)
    verb = next((word for word in words[1:] if not word.startswith("-")), "")
    autocomplete(build_parser(verb), default_completer=_Words())


class _Words(BaseCompleter):
    """Completes an argument without choices: with the words that it takes, and with files."""

    def __call__(
        self,
        *,
        prefix: str,
        action: argparse.Action,
        parser: argparse.ArgumentParser,
        parsed_args: argparse.Namespace,
    ) -> Iterable[str]:
        if action.dest == "overrides":
            return _settings(prefix)
        words = _words_of(parser.prog.removeprefix("stillbox "), action.dest)
        return [*words, *FilesCompleter()(prefix)]


def _words_of(verb: str, argument: str) -> Iterable[str]:
    """Returns words of an argument that declares no choices; its errors name the nearest one."""
    # Imported here: verbs and options are completed without.
    from stillbox.cli.data_convert import ONE_SET
    from stillbox.experiment.known_weights import known_weights, weight_families
    from stillbox.experiment.recipes import recipe_names
    from stillbox.exporting.settings import FORMATS
    from stillbox.records.formats.registry import readable_formats

    match verb, argument:
        case _, "config" | "recipe":
            return recipe_names()
        case "export", "format":
            return FORMATS
        case "data convert FOLDER", "format":
            return readable_formats()
        case "data convert FOLDER", "folder":
            return ONE_SET
        case "weights get", "name":
            return known_weights()
        case "weights list", "family":
            return weight_families()
    return ()


def _settings(prefix: str) -> list[str]:
    """Returns what `--set` may go on with: up to the next dot or equals sign, or a whole value."""
    from stillbox.experiment.schema import Experiment
    from stillbox.experiment.values import settings_of

    words = [word for word in dict.fromkeys(settings_of(Experiment)) if word.startswith(prefix)]
    if "=" in prefix:
        return words
    begun = re.compile(re.escape(prefix) + "[^.=]*[.=]?")
    offered = sorted({match[0] for word in words if (match := begun.match(word))})
    # Of one section its fields, since a shell puts a space after the only word.
    return _settings(offered[0]) if len(offered) == 1 and offered[0][-1] == "." else offered

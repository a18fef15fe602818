"""`stillbox completion`: print a script that completes words of the command line.

Put it where the shell reads it: bash: `stillbox completion bash >
~/.local/share/bash-completion/completions/stillbox`; zsh: into a file `_stillbox` of a folder in
`$fpath`; fish: `~/.config/fish/completions/stillbox.fish`.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stillbox.experiment.recipes import recipe_names

_CONFIG = ("config", "recipe")


@dataclass
class _Command:
    """The words that may follow the words of a verb."""

    path: str
    """The verb with its verbs, as `data convert`; empty for the program."""
    words: dict[str, str] = field(default_factory=dict)
    """Verbs, options and values of a CONFIG, with their help."""
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What an option takes; empty: a file or anything else."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("shell", choices=list(_SHELLS), help="shell that reads the script")


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    # Imported here: main imports this module.
    from stillbox.cli.main import build_parser

    commands = list(_walk(build_parser(), ""))
    sys.stdout.write(_SHELLS[arguments.shell](commands))
    return 0


def _walk(parser: argparse.ArgumentParser, path: str) -> Iterator[_Command]:
    command, inner = _Command(path), list[_Command]()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help for one in action._choices_actions}
            for name, child in action.choices.items():
                command.words[name] = _brief(helps.get(name))
                inner += _walk(child, f"{path} {name}".strip())
        elif action.help == argparse.SUPPRESS:
            continue
        elif not action.option_strings:
            choices = recipe_names() if action.dest in _CONFIG else action.choices or ()
            command.words |= dict.fromkeys(map(str, choices), _brief(action.metavar))
        else:
            command.words |= dict.fromkeys(action.option_strings, _brief(action.help))
            if action.nargs != 0:
                values = tuple(map(str, action.choices or ()))
                command.values |= dict.fromkeys(action.option_strings, values)
    yield command
    yield from inner


def _brief(text: object) -> str:
    """Returns the first clause of a help text, without characters that shells read."""
    clause = re.split(r"[;(]|: ", str(text or "").replace("%%", "%"))[0]
    return re.sub(r"[^\w ,./+=<>|%-]", "", clause).strip()[:80]


def _bash(commands: list[_Command]) -> str:
    cases = "\n".join(f"    '{one.path}') words='{' '.join(one.words)}' ;;" for one in commands)
    values = "\n".join(
        f"    '{one.path} {name}') COMPREPLY=($(compgen -W '{' '.join(choices)}' -- \"$cur\"))\n"
        "      return ;;"
        for one in commands
        for name, choices in one.values.items()
    )
    return f"""# Completion of stillbox for bash; written by `stillbox completion bash`.
_stillbox() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local at="" word words=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "${{at:+$at }}$word" in
      {_paths(commands)}) at="${{at:+$at }}$word" ;;
    esac
  done
  COMPREPLY=()
  case "$at $previous" in
{values}
  esac
  case "$at" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _stillbox stillbox
"""


def _zsh(commands: list[_Command]) -> str:
    cases = "\n".join(
        f"    '{one.path}') candidates=({_described(one.words)}) ;;" for one in commands
    )
    values = "\n".join(
        f"    '{one.path} {name}') "
        + (f"compadd -- {' '.join(choices)}" if choices else "_files")
        + "; return ;;"
        for one in commands
        for name, choices in one.values.items()
    )
    return f"""#compdef stillbox
# Completion of stillbox for zsh; written by `stillbox completion zsh`.
_stillbox() {{
  local at="" word
  local -a candidates
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "${{at:+$at }}$word" in
      {_paths(commands)}) at="${{at:+$at }}$word" ;;
    esac
  done
  case "$at ${{words[CURRENT-1]}}" in
{values}
  esac
  case "$at" in
{cases}
  esac
  _describe 'stillbox' candidates
  [[ -n "$at" ]] && _files
}}
compdef _stillbox stillbox
"""


def _fish(commands: list[_Command]) -> str:
    lines = [
        "# Completion of stillbox for fish; written by `stillbox completion fish`.",
        "function __stillbox_at",
        "  set -l at",
        "  for word in (commandline -opc)[2..-1]",
        "    switch (string join ' ' $at $word)",
        f"      case {' '.join(repr(one.path) for one in commands if one.path)}",
        "        set at $at $word",
        "    end",
        "  end",
        '  test "$at" = "$argv[1]"',
        "end",
    ]
    for one in commands:
        here = f"complete -c stillbox -n '__stillbox_at \"{one.path}\"'"
        if not one.path:
            here += " -f"
        for word, about in one.words.items():
            kind = "-l" if word.startswith("--") else "-s" if word.startswith("-") else "-a"
            line = f"{here} {kind} '{word.lstrip('-')}' -d '{about}'"
            if choices := one.values.get(word):
                line += f" -x -a '{' '.join(choices)}'"
            elif word in one.values:
                line += " -r"
            lines.append(line)
    return "\n".join(lines) + "\n"


def _paths(commands: list[_Command]) -> str:
    return "|".join(f"'{one.path}'" for one in commands if one.path)


def _described(words: dict[str, str]) -> str:
    return " ".join(f"'{word}:{about}'" for word, about in words.items())


_SHELLS: dict[str, Callable[[list[_Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

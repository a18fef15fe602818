"""`stillbox completion`: print a script that completes words of the command line.

Put it where the shell reads it: bash: `stillbox completion bash >
~/.local/share/bash-completion/completions/stillbox`; zsh: into a file `_stillbox` of a folder in
`$fpath`; fish: `~/.config/fish/completions/stillbox.fish`.
"""

import argparse
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from stillbox.experiment.known_weights import known_weights, weight_families
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import settings_of
from stillbox.exporting.settings import FORMATS
from stillbox.records.formats.registry import readable_formats

_CONFIG = ("config", "recipe")
_LONGEST = 80
_FIELDS = ("FIELD=VALUE",)
"""In place of the values of an option that takes a setting."""
_WORDS: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
    ("export", "format"): lambda: FORMATS,
    ("data convert", "format"): readable_formats,
    ("weights get", "name"): known_weights,
    ("weights list", "family"): weight_families,
}
"""Words of an argument that declares no choices; its errors name the nearest one."""


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
            choices = _choices(action, path)
            command.words |= dict.fromkeys(map(str, choices), _brief(action.metavar))
        else:
            command.words |= dict.fromkeys(action.option_strings, _brief(action.help))
            if action.nargs != 0:
                command.values |= dict.fromkeys(action.option_strings, _choices(action, path))
    if (folder := getattr(parser, "folder", None)) is not None:
        # `data convert FOLDER` has options beside its verbs.
        own = next(_walk(folder, path))
        command.words |= own.words
        command.values |= own.values
    yield command
    yield from inner


def _choices(action: argparse.Action, path: str) -> tuple[str, ...]:
    """Returns the words of an argument, none if it takes anything."""
    if action.dest == "overrides":
        return _FIELDS
    if action.dest in _CONFIG:
        return tuple(recipe_names())
    words = _WORDS.get((path, action.dest), lambda: action.choices or ())
    return tuple(map(str, words()))


def _fields() -> list[str]:
    """Returns what `--set` takes: `path=`, or `path=value`."""
    return sorted(set(settings_of(Experiment)))


def _brief(text: object) -> str:
    """Returns the first clause of a help text, in whole words."""
    clause = re.split(r"[;(]|: ", str(text or "").replace("%%", "%").replace("`", ""))[0]
    return textwrap.shorten(clause, _LONGEST, placeholder=" ...")


def _bash(commands: list[_Command]) -> str:
    cases = "\n".join(f"    '{one.path}') words='{' '.join(one.words)}' ;;" for one in commands)
    values = "\n".join(
        f"    '{one.path} {name}') "
        + ('_stillbox_set "$field" "$cur"' if choices == _FIELDS else _compgen(choices))
        + "\n      return ;;"
        for one in commands
        for name, choices in one.values.items()
    )
    return f"""# Completion of stillbox for bash; written by `stillbox completion bash`.
_stillbox_fields='{" ".join(_fields())}'
_stillbox_set() {{  # up to the next dot, or the values of a field
  local word="$1$2" candidate rest head last=""
  compopt -o nospace 2>/dev/null
  while IFS= read -r candidate; do
    if [[ -z $1 ]]; then
      rest="${{candidate#"$word"}}"
      head="${{rest%%[.=]*}}"
      candidate="$word$head${{rest:${{#head}}:1}}"
    fi
    [[ $candidate == "$last" ]] || COMPREPLY+=("${{candidate#"$1"}}")
    last="$candidate"
  done < <(compgen -W "$_stillbox_fields" -- "$word")
}}
_stillbox() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local at="" word words=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "${{at:+$at }}$word" in
      {_paths(commands)}) at="${{at:+$at }}$word" ;;
    esac
  done
  COMPREPLY=()
  # Bash ends words at an equals sign.
  local place=$COMP_CWORD field=""
  if [[ $cur == "=" ]]; then cur=""; else place=$((place - 1)); fi
  if [[ $place -gt 2 && ${{COMP_WORDS[place]}} == "=" ]]; then
    previous="${{COMP_WORDS[place-1]}}"
    if [[ $previous != -* ]]; then
      field="$previous=" previous="${{COMP_WORDS[place-2]}}"
      [[ $previous == "=" ]] && previous="${{COMP_WORDS[place-3]}}"
    fi
  fi
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


def _compgen(choices: Iterable[str]) -> str:
    return f"COMPREPLY=($(compgen -W '{' '.join(choices)}' -- \"$cur\"))"


def _zsh(commands: list[_Command]) -> str:
    cases = "\n".join(
        f"    '{one.path}') candidates=({_described(one.words)}) ;;" for one in commands
    )
    values = "\n".join(
        f"    '{one.path} {name}') "
        + ("_stillbox_set" if choices == _FIELDS else _compadd(choices))
        + "; return ;;"
        for one in commands
        for name, choices in one.values.items()
    )
    return f"""#compdef stillbox
# Completion of stillbox for zsh; written by `stillbox completion zsh`.
_stillbox_fields=({" ".join(map(repr, _fields()))})
_stillbox_set() {{  # up to the next dot, or the values of a field
  local word="${{words[CURRENT]}}" candidate rest head
  local -aU offered
  for candidate in "${{_stillbox_fields[@]}}"; do
    [[ "$candidate" == "$word"* ]] || continue
    if [[ "$word" != *=* ]]; then
      rest="${{candidate#"$word"}}"
      head="${{rest%%[.=]*}}"
      candidate="$word$head${{rest[${{#head}}+1]}}"
    fi
    offered+=("$candidate")
  done
  compadd -S '' -- "${{offered[@]}}"
}}
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
# A file in $fpath is the body of the function at the first call; a sourced one only defines it.
if [[ ${{funcstack[1]}} == _stillbox ]]; then
  _stillbox "$@"
else
  compdef _stillbox stillbox
fi
"""


def _compadd(choices: Iterable[str]) -> str:
    return f"compadd -- {' '.join(choices)}" if choices else "_files"


def _fish(commands: list[_Command]) -> str:
    lines = [
        "# Completion of stillbox for fish; written by `stillbox completion fish`.",
        f"set -g __stillbox_fields {' '.join(map(repr, _fields()))}",
        "function __stillbox_set",  # up to the next dot, or the values of a field
        "  set -l word (commandline -ct)",
        '  set -l found (string match -- "$word*" $__stillbox_fields)',
        '  string match -q -- "*=*" $word; and string join \\n $found; and return',
        "  set -l start (string escape --style=regex -- $word)",
        "  string replace -r -- \"^($start[^.=]*[.=]?).*\" '$1' $found | sort -u",
        "end",
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
            text = about.replace("\\", "\\\\").replace("'", "\\'")
            line = f"{here} {kind} '{word.lstrip('-')}' -d '{text}'"
            if choices := one.values.get(word):
                offered = "(__stillbox_set)" if choices == _FIELDS else " ".join(choices)
                line += f" -x -a '{offered}'"
            elif word in one.values:
                line += " -r"
            lines.append(line)
    return "\n".join(lines) + "\n"


def _paths(commands: list[_Command]) -> str:
    return "|".join(f"'{one.path}'" for one in commands if one.path)


def _described(words: dict[str, str]) -> str:
    return " ".join(shlex.quote(f"{word}:{about}") for word, about in words.items())


_SHELLS: dict[str, Callable[[list[_Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

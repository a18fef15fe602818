"""Flags of original programs: what each sets, why it has no effect, or what to write instead.

A verb that keeps an original's command line declares its flags as a tuple of `Flag`.
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from stillbox.cli.arguments import add_option, add_switch, note, warn
from stillbox.errors import UserError
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.resolve import Resolved, resolve, resolve_reading
from stillbox.experiment.updating import Changes, YamlText
from stillbox.textformat.yaml_tree import read_text_file

# Values of a refused flag that request nothing.
_UNSET = ("", "false", "f", "0")


@dataclass(frozen=True)
class Flag:
    """A flag of an original program.

    A flag with `note`, `warning` or `refusal` takes any value or none. One without these, `about`
    and `field` is accepted silently.
    """

    name: str
    about: str = ""
    """Line of the flag in the help; a flag without a line is hidden."""
    kind: Callable[[str], object] = str
    """Type of its value; bool for a switch."""
    default: float | str | Path | None = None
    metavar: str = "N"
    short: str | None = None
    choices: tuple[str, ...] | None = None
    required: bool = False
    dest: str | None = None
    """Attribute of its value, if not `name`."""
    field: str = ""
    """Field of the experiment that takes its value unchanged."""
    note: str = ""
    """Why it changes nothing; printed if it is given."""
    warning: str = ""
    """What to know about its use; printed after its name if it is given."""
    refusal: str = ""
    """What to do instead; the flag is an error."""
    hidden: bool = False
    """Leave it out of the help in spite of a note."""

    @property
    def help(self) -> str:
        """The text of its line in the help."""
        if self.hidden or self.refusal:
            return argparse.SUPPRESS
        return self.about or self.field or (f"accepted: {self.note}" if self.note else "")


_ABSL = (
    *(Flag(name, kind=bool) for name in ("alsologtostderr", "logtostderr", "showprefixforinfo")),
    *map(Flag, ("stderrthreshold", "verbosity", "v", "log_dir")),
    Flag("flagfile", refusal="write the flags of the file on the command line: $(cat FILE)"),
    Flag("undefok", refusal="leave out the flags that are not known"),
)
"""The flags that absl adds to every program."""


def add_flags(parser: argparse.ArgumentParser, flags: Iterable[Flag]) -> None:
    """Adds flags, and the flags of absl, to the parser of a verb."""
    parser.add_argument("--helpfull", "--helpshort", action="help", help=argparse.SUPPRESS)
    for flag in (*flags, *_ABSL):
        option, help_text = f"--{flag.name}", flag.help or argparse.SUPPRESS
        if flag.kind is bool:
            on = bool(flag.default)
            add_switch(parser, flag.name, help_text, default=on, short=flag.short, dest=flag.dest)
        elif flag.note or flag.warning or flag.refusal or not flag.help:
            parser.add_argument(option, nargs="?", const="true", metavar="X", help=help_text)
        elif flag.default is not None and flag.choices is None:
            add_option(parser, option, flag.default, flag.about, flag.metavar, short=flag.short)
        else:
            parser.add_argument(
                *filter(None, (flag.short, option)),
                type=flag.kind,
                default=flag.default,
                choices=flag.choices,
                required=flag.required,
                dest=flag.dest or flag.name,
                metavar=None if flag.choices else flag.metavar,
                help=help_text,
            )


def explain_flags(arguments: argparse.Namespace, flags: Iterable[Flag]) -> None:
    """Prints which of the given flags have no effect.

    Raises:
        UserError: a flag is not supported.
    """
    notes: dict[str, list[str]] = {}
    for flag in (*flags, *_ABSL):
        value = getattr(arguments, flag.dest or flag.name)
        if value is None or value is False:
            continue
        if flag.refusal and str(value).lower() not in _UNSET:
            raise UserError(f"--{flag.name} is not supported", fix=flag.refusal)
        if flag.note:
            notes.setdefault(flag.note, []).append(f"--{flag.name}")
        if flag.warning:
            warn(f"--{flag.name} {flag.warning}")
    for sentence, names in notes.items():
        note(f"{', '.join(names)}: {sentence}")


def flag_changes(
    arguments: argparse.Namespace, flags: Iterable[Flag], *, only: Iterable[str] | None = None
) -> Changes:
    """Returns the changes of the given flags that set fields.

    `only` names the flags to regard; None: all.
    """
    chosen = [flag for flag in flags if flag.field and (only is None or flag.name in only)]
    given = {flag.field: getattr(arguments, flag.dest or flag.name) for flag in chosen}
    return {
        field: YamlText(value) if isinstance(value, str) else value
        for field, value in given.items()
        if value is not None
    }


CONFIG_OVERRIDE = Flag(
    "config_override",
    "text in the language of pipeline.config that is merged into CONFIG",
    default="",
    metavar="TEXT",
)


def resolve_merged(config: str, text: str, overrides: Changes) -> Resolved:
    """Resolves a CONFIG with the text of --config_override merged into it, then overrides.

    Raises:
        UserError: CONFIG is no `pipeline.config`, or as `resolve`.
    """
    if not text:
        return resolve(config, overrides)
    path = Path(config)
    if path.suffix in (".yaml", ".yml") or config in recipe_names():
        problem = f"{config} is no pipeline.config, into which text could be merged"
        raise UserError(problem, where="--config_override", fix="write --set FIELD=VALUE")
    content = read_text_file(path, where="--pipeline_config_path", fix="give a pipeline.config")
    reading = read_pipeline_config(content, str(path), name=path.stem, override=text)
    return resolve_reading(reading, str(path), overrides)

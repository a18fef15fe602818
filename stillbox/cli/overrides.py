"""Changes of fields as the command line writes them: `--set train.batch_size=8`."""

import argparse
from collections.abc import Iterable

from stillbox.errors import UserError
from stillbox.experiment.updating import NO_CHANGES, Changes, YamlText, merged
from stillbox.references import Parameter, Setting, python_words
from stillbox.textformat.yaml_tree import compose


class SetAction(argparse.Action):
    """Collects the changes of `--set`; a later one wins."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Raises UserError: as `changes_of`."""
        setattr(namespace, self.dest, changes_of([str(values)], getattr(namespace, self.dest)))


def changes_of(texts: Iterable[str], changes: Changes = NO_CHANGES) -> Changes:
    """Returns changes and, after them, the changes of texts such as `train.batch_size=8`.

    A later one of the same field wins; a later section is merged into an earlier one.

    Raises:
        UserError: a text has no equals sign, or the name of a field is empty.
    """
    for text in texts:
        field, equals, value = text.partition("=")
        if not equals or not all(field.strip().split(".")):
            problem = "an override is a path, an equals sign and a value"
            fix = f"for example {Setting('train.batch_size', 8)}"
            where = Setting(field, value) if equals else Parameter("set", text)
            raise UserError(problem, where=where, fix=fix)
        field = field.strip()
        added = _fields_of(field, value) if field in changes else {}
        changes = merged(changes, added or {field: YamlText(value)})
    return changes


def _fields_of(section: str, text: str) -> Changes:
    """Returns the changes of a section's fields; nothing if the text describes no section."""
    if not text.lstrip().startswith("{"):
        return {}
    fields = compose(text, str(Setting(section, text)), lines=False).value
    return {f"{section}.{name}": value.plain() for name, value in fields.items()}


def setting_texts(changes: Changes) -> list[str]:
    """Returns changes as `changes_of` reads them."""
    return [python_words(Setting(field, value)) for field, value in changes.items()]


def set_words(changes: Changes) -> list[str]:
    """Returns the options that make changes."""
    return [word for text in setting_texts(changes) for word in ("--set", text)]

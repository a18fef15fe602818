"""The parameter dictionary as sections."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping

from stillbox.experiment.params_dict.keys import KEYS
from stillbox.experiment.params_dict.merging import Params, spell
from stillbox.experiment.params_dict.no_effect import NO_EFFECT, REFUSED, idle_keys
from stillbox.experiment.sections import Reader, ReadLog, Section, Unread
from stillbox.experiment.values import Value


class KeySection(Section):
    """A section of the dictionary, or all of it; names of inner keys are dotted paths."""

    def __init__(self, params: Params, log: ReadLog, prefix: str = "") -> None:
        super().__init__(log)
        self.params, self._prefix = params, prefix

    def key(self, name: str) -> Hashable:
        """Returns the key's path."""
        return self.label(name)

    def label(self, name: str) -> str:
        """Returns the key's path."""
        return f"{self._prefix}{name}"

    def is_scalar(self, name: str) -> bool:
        """Says whether there is such a key."""
        return self.label(name) in KEYS

    def has(self, name: str) -> bool:
        """Says whether a key is given."""
        return self.label(name) in self.params.given

    def where(self, name: str = "") -> str | None:
        """Returns where a key is given, None for a default."""
        return self.params.where(self.label(name))

    def get(self, name: str) -> Value:
        """Returns the value of a key, or its default."""
        return self.params.value(self.label(name))

    def spell(self, value: Value) -> str:
        """Returns a value as the dictionary's YAML writes it."""
        return spell(value)

    def child(self, name: str) -> "KeySection":
        """Returns an inner section."""
        return KeySection(self.params, self.log, f"{self.label(name)}.")

    def read_inner(self, name: str, reader: Reader, path: str) -> Value:
        """Returns the result of `reader` for an inner section."""
        return reader(self.child(name), path)

    def choose(
        self, name: str, valid: Iterable[str], *paths: str, reasons: Mapping[str, str] | None = None
    ) -> Value:
        """Returns a word that has to be one of the valid ones; as `Section.choose`."""
        if reasons is None:
            start = f"{self.label(name)}="
            known = (label for label in REFUSED if label.startswith(start))
            reasons = {label.removeprefix(start): REFUSED[label] for label in known}
        return super().choose(name, valid, *paths, reasons=reasons)

    def finish(self, used: Collection[str] = ()) -> None:
        """Notes keys that are given without effect.

        Args:
            used: keys that the caller reads itself.

        Raises:
            UserError: a key is given that is not read, with another value than its default.
        """
        self.log.finish(self._unread(used), REFUSED, together=True)

    def _unread(self, used: Collection[str]) -> Iterator[Unread]:
        reasons = NO_EFFECT | idle_keys(self.params)
        for path, entry in self.params.given.items():
            if not self.params.differs(path) or path in used:
                continue
            if path in reasons or path not in self.log.read:
                yield Unread(
                    label=path,
                    where=entry.where,
                    value=spell(entry.value),
                    default=spell(KEYS[path].default),
                    no_effect=reasons.get(path),
                )

"""A dictionary that remembers what was asked of it, so that nothing that was given goes unheard."""

from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from stillbox.errors import UserError, nearest
from stillbox.experiment.params_dict.keys import KEYS
from stillbox.experiment.params_dict.merging import Params, spell
from stillbox.experiment.params_dict.no_effect import NO_EFFECT, REFUSED, idle_keys
from stillbox.experiment.values import Plain


class Reading:
    """What reading a dictionary leaves behind besides the experiment."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.origins: dict[str, str] = {}
        """Dotted path in the experiment -> where, for every field that a given key decides."""
        self.warnings: list[str] = []
        """What a person should look at."""
        self.notes: list[str] = []
        """What is accepted without effect, and defaults that surprise people."""
        self._heard: set[str] = set()

    def take(self, path: str, *fields: str) -> Plain:
        """Returns a key's value; `fields` are its places in the experiment."""
        self._heard.add(path)
        where = self.params.where(path)
        # Defaults have no origin: only what somebody gave can be pointed at.
        if where is not None:
            self.origins |= dict.fromkeys(fields, where)
        return self.params.value(path)

    def fill(self, section: str, target: str, /, **names: str) -> dict[str, Any]:
        """Returns keys of a section as keyword arguments, `ours="theirs"`, of the part `target`."""
        return {
            ours: self.take(f"{section}.{theirs}", f"{target}.{ours}")
            for ours, theirs in names.items()
        }

    def choose(self, path: str, valid: Iterable[str], *fields: str) -> Plain:
        """Returns a key's value.

        Raises:
            UserError: it is none of the valid ones.
        """
        value, valid = self.take(path, *fields), tuple(valid)
        if value not in valid:
            close = nearest(str(value), valid)
            guess = f"{close} " if close.startswith("did you mean") else ""
            reason = REFUSED.get(f"{path}={value}")
            self.refuse(path, reason, f"{guess}there is: {', '.join(valid)}")
        return value

    def refuse(self, path: str, why: str | None, fix: str) -> NoReturn:
        """Stops at a key's value.

        Raises:
            UserError: always.
        """
        shown = f"{path} = {spell(self.params.value(path))}"
        raise UserError(
            f"{shown}: {why}" if why else f"{shown} is not supported",
            where=self.params.where(path),
            fix=fix,
        )

    def finish(self, used: Collection[str] = ()) -> None:
        """Notes what was given without effect.

        Args:
            used: keys that the caller follows itself.

        Raises:
            UserError: something was given that nobody asked for and that is not its default.
        """
        idle = idle_keys(self.params)
        by_reason: dict[str, list[str]] = {}
        for path in self.params.given:
            if not self.params.differs(path) or path in used:
                continue
            reason = idle.get(path) or NO_EFFECT.get(path)
            if reason:
                by_reason.setdefault(reason, []).append(path)
            elif path not in self._heard:
                default = f"leave it at its default, {spell(KEYS[path].default)}"
                self.refuse(path, REFUSED.get(path, "has no counterpart in stillbox"), default)
        for reason, paths in by_reason.items():
            shown = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" * (len(paths) > 3))
            verb = "has" if len(paths) == 1 else "have"
            place = self.params.where(paths[0])
            self.notes.append(f"{place}: {shown} {verb} no effect here: {reason}")

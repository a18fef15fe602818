"""Arrays that are read from a file on access."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

import numpy as np

Entry = TypeVar("Entry")


class LazyArrays(Mapping[str, np.ndarray], Generic[Entry]):
    """The arrays of a file by name. Only access by name reads values.

    Args:
        entries: what each array is read by.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = entries

    @abstractmethod
    def _read(self, name: str, entry: Entry) -> np.ndarray:
        """Returns one array, which may be read-only and not contiguous.

        Raises:
            UserError: its values are missing, damaged, or of a type that is not supported.
        """

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read(name, self.entries[name])

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

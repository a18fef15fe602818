"""Refuses weights with values that are not finite: a model with them finds nothing, in silence."""

from collections.abc import Mapping

import numpy as np

from stillbox.errors import UserError

_SHOWN = 3


def check_finite(arrays: Mapping[str, np.ndarray], where: str) -> None:
    """Refuses NaN, infinities, and values that float32 cannot hold.

    Args:
        arrays: by name, on the host.
        where: what they were read from.

    Raises:
        UserError: names the arrays.
    """
    bad = {name: count for name, array in arrays.items() if (count := _count(array))}
    if not bad:
        return
    (first, count), *rest = bad.items()
    others = ", ".join(list(bad)[1 : 1 + _SHOWN])
    more = f" and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
    also = f"; so have {others}{more}" if rest else ""
    raise UserError(
        f"{first!r} has {count:,} of {arrays[first].size:,} values that are not finite{also}",
        where=where,
        fix="take weights from before the training diverged: an earlier checkpoint, or another "
        "file",
    )


def _count(array: np.ndarray) -> int:
    """Returns the number of values that are not finite as float32."""
    # Whole numbers are finite, and numpy counts bfloat16 to the kind V.
    if array.dtype.kind not in "fcV":
        return 0
    with np.errstate(over="ignore", invalid="ignore"):
        single = array.astype(np.float32) if array.dtype == np.float64 else array
    return int(array.size - np.count_nonzero(np.isfinite(single)))

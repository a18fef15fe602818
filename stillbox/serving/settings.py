"""How a server is to run: its model's name, batches and limits."""

import re
from dataclasses import dataclass
from typing import Self

from stillbox.errors import UserError

BATCH_SIZES = (1, 2, 4, 8)
MEBIBYTE = 2**20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """What `build_app` needs to know beside the model."""

    name: str = "model"
    """What clients call the model in addresses."""
    version: int = 1
    """What they call its version."""
    batch_sizes: tuple[int, ...] | None = None
    """Sizes of a batch, each compiled at the start; None: 1, 2, 4 and 8, or those that the model
    takes."""
    max_delay_ms: float = 5.0
    """Milliseconds that an image waits for others to fill a batch with, while nothing runs."""
    queue: int = 64
    """Images that may be inside at a time; what comes beyond them is answered with 503."""
    max_images: int = 16
    """Images of one request."""
    max_body: int = 16 * MEBIBYTE
    """Bytes of the body of a request."""
    max_pixels: int = 32_000_000
    """Pixels of an image, by its header: nothing larger is decoded."""
    timeout: float = 30.0
    """Seconds for a body to arrive, and again for its answer."""
    min_score: float = 0.3
    """Least score that `/detect` answers with, where a request does not say."""
    api_key: str = ""
    """What clients have to show; empty: nothing."""

    def checked(self) -> Self:
        """Returns the settings if a server can run with them.

        Raises:
            UserError: a number or the name makes no sense.
        """
        if not _NAME.fullmatch(self.name):
            raise UserError(
                f"{self.name!r} cannot stand in an address",
                where="--name",
                fix="use letters, digits, '.', '_' and '-'",
            )
        least = {"queue": 1, "max_images": 1, "max_body": 1, "max_pixels": 1, "version": 0}
        for field, smallest in least.items():
            if getattr(self, field) < smallest:
                raise UserError(
                    f"{getattr(self, field)} is too small",
                    where="--model-version"
                    if field == "version"
                    else f"--{field.replace('_', '-')}",
                    fix=f"give {smallest} or more",
                )
        if self.max_delay_ms < 0 or not self.timeout > 0:
            raise UserError(
                "times are positive", where="--max-delay-ms, --timeout", fix="give a positive time"
            )
        if self.batch_sizes is not None and min(self.batch_sizes, default=0) < 1:
            raise UserError(
                "a batch has at least one image", where="--batch-sizes", fix="try 1,2,4,8"
            )
        if not 0 <= self.min_score <= 1:
            raise UserError(f"{self.min_score} is no score", where="--min-score", fix="give 0 to 1")
        if not self.api_key.isascii() or self.api_key != self.api_key.strip():
            raise UserError(
                "a header cannot carry this key",
                where="--api-key",
                fix="use letters, digits and signs of ASCII",
            )
        return self


def usable_sizes(
    wanted: tuple[int, ...] | None, allowed: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Returns the sizes of batches to compile, rising.

    Args:
        wanted: what was asked for; None: `BATCH_SIZES`, as far as the model takes them.
        allowed: the only sizes that the model takes; None: any.

    Raises:
        UserError: the model does not take a size that was asked for.
    """
    if wanted is None:
        if allowed is None:
            return BATCH_SIZES
        return tuple(size for size in BATCH_SIZES if size in allowed) or tuple(sorted(allowed))
    refused = set() if allowed is None else set(wanted) - set(allowed)
    if refused:
        raise UserError(
            f"the model does not take batches of {', '.join(map(str, sorted(refused)))}",
            where="--batch-sizes",
            fix=f"give some of {', '.join(map(str, sorted(allowed or ())))}, or export it with "
            "another --batch-size",
        )
    return tuple(sorted(set(wanted)))

"""Settings of a server: its model's name, batches and limits."""

import re
from dataclasses import dataclass
from typing import Self

from stillbox.errors import UserError
from stillbox.predicting.selection import IOU, ClassesPerObject
from stillbox.references import Command, Parameter

BATCH_SIZES = (1, 2, 4, 8)
HOST = re.compile(
    r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]{1,5})?", re.IGNORECASE
)
"""`NAME`, `NAME:PORT` or `[ADDRESS]:PORT`."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RANGES: dict[str, tuple[float, float]] = {
    "version": (0, 2**63 - 1),
    "max_delay_ms": (0, 60_000),
    "runs_at_once": (0, 256),
    "queue": (1, 100_000),
    "max_images": (1, 10_000),
    "max_body": (1, 2**31 - 1),
    "max_pixels": (1, 2 * (2**30 // 12)),  # twice MAX_IMAGE_PIXELS: Pillow opens no larger image
    "max_memory": (2**20, 2**50),
    "timeout": (0.001, 86_400),
    "min_score": (0, 1),
    "iou": (0, 1),
}
_LARGEST_BATCH, _MOST_SIZES = 1024, 32


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Settings of `build_app`."""

    name: str = "model"
    """Name of the model in addresses."""
    version: int = 1
    batch_sizes: tuple[int, ...] | None = None
    """Sizes of a batch, each compiled at the start; None: 1, 2, 4 and 8, or those that the model
    takes."""
    max_delay_ms: float = 5.0
    """Most milliseconds that an image waits for others to fill a batch, while a run could begin."""
    runs_at_once: int = 0
    """Batches that run at the same time; 0: as many as are fastest, measured at the start."""
    queue: int = 64
    """Most images in flight; requests beyond them get 503."""
    max_images: int = 16
    """Most images of a request."""
    max_body: int = 16 * 2**20
    """Most bytes of a request's body."""
    max_pixels: int = 32_000_000
    """Most pixels of an image by its header; larger ones are not decoded."""
    max_memory: int = 2**30
    """Most bytes of bodies that are read and of images that are decoded or drawn at a time."""
    timeout: float = 30.0
    """Seconds for a body to arrive, and again for its response."""
    min_score: float = 0.3
    """Least score in responses of `/detect`, unless the request has one."""
    classes_per_object: ClassesPerObject | None = None
    """See `Selection`. None: `one` for `/detect` and the page, `all` for the model protocols, which
    then respond as an export does. A request may have another."""
    iou: float = IOU
    """See `Selection`."""
    api_key: str = ""
    """The key that clients send; empty: none is needed."""
    allowed_hosts: tuple[str, ...] = ()
    """Names of the server as `NAME` or `NAME:PORT`, beside `localhost` and addresses."""

    @property
    def images_of_request(self) -> int:
        """Most images of a request, all of which are in flight at once."""
        return min(self.max_images, self.queue)

    def checked(self) -> Self:
        """Returns the settings if they are valid.

        Raises:
            UserError: a number or the name is invalid.
        """
        if not _NAME.fullmatch(self.name):
            fix = "use letters, digits, '.', '_' and '-'"
            raise UserError(
                f"{self.name!r} is not valid in an address", where=Parameter("name"), fix=fix
            )
        for field, (least, most) in _RANGES.items():
            value = getattr(self, field)
            if not least <= value <= most:  # also refuses NaN
                fix = f"give {least} to {most}"
                raise UserError(f"{value} is out of range", where=Parameter(field), fix=fix)
        sizes = BATCH_SIZES if self.batch_sizes is None else self.batch_sizes
        if not 0 < len(sizes) <= _MOST_SIZES or not 0 < min(sizes) <= max(sizes) <= _LARGEST_BATCH:
            problem = (
                f"a batch has 1 to {_LARGEST_BATCH} images, and there are 1 to {_MOST_SIZES} sizes"
            )
            raise UserError(problem, where=Parameter("batch_sizes"), fix="try 1,2,4,8")
        if not self.api_key.isascii() or self.api_key != self.api_key.strip():
            fix = "use letters, digits and signs of ASCII"
            raise UserError("a header cannot carry this key", where=Parameter("api_key"), fix=fix)
        for host in self.allowed_hosts:
            if not HOST.fullmatch(host):
                fix = "give NAME or NAME:PORT, as in owls.example:8443"
                raise UserError(f"{host!r} is no host", where=Parameter("allowed_host"), fix=fix)
        return self


def choose_batch_sizes(
    wanted: tuple[int, ...] | None, allowed: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Returns the batch sizes to compile, ascending.

    `wanted` None: each of `BATCH_SIZES` that is allowed; `allowed` None: the model takes any.

    Raises:
        UserError: the model does not take a wanted size.
    """
    if wanted is None:
        if allowed is None:
            return BATCH_SIZES
        return tuple(size for size in BATCH_SIZES if size in allowed) or tuple(sorted(allowed))
    refused = set() if allowed is None else set(wanted) - set(allowed)
    if refused:
        raise UserError(
            f"the model does not take batches of {', '.join(map(str, sorted(refused)))}",
            where=Parameter("batch_sizes"),
            fix=f"give some of {', '.join(map(str, sorted(allowed or ())))}, or export it for any, "
            f"{Command('export', 'DIR', format='F', image_size='H,W', batch_size='0')}",
        )
    return tuple(sorted(set(wanted)))

"""How a benchmark measures, and on what machine."""

import datetime
import os
import platform
from dataclasses import dataclass, replace
from importlib.metadata import version

from stillbox import __version__
from stillbox.devices.process import own_processors, processor_name
from stillbox.errors import UserError
from stillbox.exporting.benchmarking.subjects import check_variants
from stillbox.exporting.export import SURE

LOAD = "load average before"
"""Name of a condition: programs that ran or waited for a processor in the minute before."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """How runtimes are measured."""

    formats: tuple[str, ...] = ()
    """Names of `VARIANTS`; empty: all."""
    limit: int = 0
    """Most images of the evaluation set; 0: all."""
    scored: bool = True
    """Compute the metrics of the evaluation set."""
    min_score: float = SURE
    """Least score of the detections of the checkpoint that are looked for."""
    warmup: int = 10
    """Images before the measured ones, at least; each image is detected in once."""
    repeats: int = 200
    """Images that are measured, in at most a minute."""
    threads: int = 0
    """Processors that a runtime may use; 0: those of this process."""
    image_size: tuple[int, int] | None = None
    """Height and width of the input of new exports; None: the format's default."""

    def checked(self) -> "BenchmarkSettings":
        """Returns the settings with all formats by name.

        Raises:
            UserError: a number is out of range, or a format unknown.
        """
        most = own_processors()
        for name, value, least, greatest in (
            ("--limit", self.limit, 0, 2**31),
            ("--min-score", self.min_score, 0, 1),
            ("--warmup", self.warmup, 0, 2**20),
            ("--repeats", self.repeats, 1, 2**20),
            ("--threads", self.threads, 0, most),
        ):
            if not least <= value <= greatest:
                fix = f"give a number from {least} to {greatest:,}"
                raise UserError(f"{value} is out of range", where=name, fix=fix)
        if self.threads not in (0, most) and not hasattr(os, "sched_setaffinity"):
            what = "this system does not limit the processors of a process"
            raise UserError(what, where="--threads", fix="leave it out")
        return replace(self, formats=check_variants(self.formats))


def machine_facts(threads: int) -> dict[str, str]:
    """Returns the conditions of figures by name; 0 threads: those of this process."""
    allowed = own_processors()
    facts = {
        "processor": processor_name(),
        "processors": str(allowed),
        "threads": str(threads or allowed),
        "system": platform.system() + " " + platform.release(),
        "date": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z"),
        "stillbox": __version__,
        "jax": version("jax"),
        "python": platform.python_version(),
    }
    if hasattr(os, "getloadavg"):
        facts[LOAD] = f"{os.getloadavg()[0]:.1f}"
    return facts

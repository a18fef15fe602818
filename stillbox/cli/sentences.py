"""Sentences about errors of the system: disks, memory, devices and Ctrl-C during an import."""

import errno
import os
import re
import traceback

from stillbox.printing import printable_line

# The beginning of XLA's message about a failed allocation.
_NO_MEMORY = "RESOURCE_EXHAUSTED"
# Messages of the C++ library, the loader of shared libraries and Python about memory of the host.
_NO_HOST_MEMORY = re.compile(
    "bad_alloc|[Cc]annot allocate memory|failed to map segment|can't start new thread"
)
_NO_BACKEND = re.compile(r"(?:Unable to initialize|Unknown) backend:? '?(\w+)")


def describe_system_error(error: OSError) -> str:
    """Returns a sentence about a full disk, a read-only folder and the like."""
    if error.strerror is None:
        return str(error)
    where = f"{printable_line(str(error.filename))}: " if error.filename is not None else ""
    fix = {
        errno.ENOSPC: "make room on the disk, or choose a folder on another one",
        errno.EDQUOT: "make room within your quota, or choose a folder on another disk",
        errno.EACCES: "choose a folder that you may write to, or change its permissions",
        errno.EROFS: "choose a folder that can be written to",
    }.get(error.errno or 0)
    return f"{where}{error.strerror}" + (f"\n  fix: {fix}" if fix else "")


def is_interruption(error: BaseException | None) -> bool:
    """Whether Ctrl-C is the cause: compiled modules make other errors of it while they start."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def describe_lack(error: Exception) -> str | None:
    """Returns a sentence about memory or a device that is not there; None for other errors."""
    text = next(iter(str(error).splitlines()), "")
    smaller = "lower train.batch_size or evaluation.batch_size, or the model.resizer's size"
    if _NO_MEMORY in str(error):
        return f"the device has not enough memory: {text}\n  fix: {smaller}"
    if isinstance(error, MemoryError) or _NO_HOST_MEMORY.search(str(error)):
        reason = text or "an allocation failed"
        return f"this process has not enough memory: {reason}\n  fix: {smaller}, or `ulimit -v`"
    match = _NO_BACKEND.search(str(error))
    if match or _found_no_backend(error):
        fix = "unset JAX_PLATFORMS, or let it name a device of this machine (`stillbox doctor`)"
        name = match[1] if match else f"device of JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}"
        return f"JAX finds no {name}" + (f": {text}" if text else "") + f"\n  fix: {fix}"
    return None


def _found_no_backend(error: Exception) -> bool:
    """Whether JAX asserts that there is one: it passes over `cuda` where no package has it."""
    if not isinstance(error, AssertionError):
        return False
    return traceback.extract_tb(error.__traceback__)[-1].filename.endswith("xla_bridge.py")

"""Refuses what needs more memory than is free: Linux kills such a process without a message."""

import sys

import jax

from stillbox.devices.process import release_freed_memory
from stillbox.errors import UserError
from stillbox.machine_memory import available_memory
from stillbox.printing import size_text


def refuse_shortage(needed: int, consumer: str, *, where: str, fix: str) -> None:
    """Refuses what needs more bytes of this machine than are free, under Linux.

    Raises:
        UserError: there is less memory than `consumer` needs.
    """
    if sys.platform != "linux":
        return
    if needed > available_memory():
        # The process keeps freed memory, which the system counts as used.
        release_freed_memory()
    free = available_memory()
    if needed > free:
        text = f"{consumer} needs {size_text(needed)} of memory, and {size_text(free)} are free"
        raise UserError(text, where=where, fix=fix)


def refuse_program_shortage(each: int, consumer: str, *, where: str, fix: str) -> None:
    """Refuses a compiled program that needs `each` bytes on every device, if they are CPUs.

    Accelerators refuse by themselves.

    Raises:
        UserError: see `refuse_shortage`.
    """
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        refuse_shortage(each * len(devices), consumer, where=where, fix=fix)

"""Ends all processes of a job when one of them fails, and names it.

JAX's coordination service, which runs in process 0, has a store of keys and barriers. A process
that fails stores the cause, and a thread of each process waits for it. A process that is killed
stores nothing. Then the collectives of the others fail; the first to fail calls all to a barrier,
and the message names the processes that do not come.

The service itself ends all processes when one sends no heartbeat. That takes longer, and is the
only way to notice a machine that has stopped.
"""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from typing import NoReturn

from stillbox.devices.compiling import end_process
from stillbox.devices.launcher import ProcessInfo
from stillbox.jax_internals import coordination_client
from stillbox.system import KILLED

# Exit code of processes that have lost another.
LOST = 128 + KILLED

_END, _PLACE = "stillbox/end", "stillbox/place"
_ANSWER_SECONDS = 3
# Process 0 has the service: it ends when the others have read the cause, and finishes a checkpoint.
_READ_SECONDS, _CHECKPOINT_SECONDS = 1.0, 10.0
# A failed process is ended by its thread long before.
_EXIT_SECONDS = 30.0
_YEAR_SECONDS = 365 * 24 * 3600


class FailureWatch:
    """A thread that ends its process when any process of the job has failed.

    Create it after the process has joined the job, and close it after it has left.
    """

    def __init__(self, info: ProcessInfo) -> None:
        self._info, self._client = info, coordination_client()
        self._idle = threading.Event()
        place = f"pid {os.getpid()} on {socket.gethostname()}"
        self._client.key_value_set(f"{_PLACE}/{info.index}", place)
        self._first = self._name(0)
        self._thread = threading.Thread(target=self._run, name="stillbox-failures", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for the thread to end, which must be before the interpreter ends."""
        self._thread.join()

    def fail(self, code: int, *, lost: bool = False) -> NoReturn:
        """Ends all processes of the job with `code`; with `lost` because another one is gone."""
        how = f"ended with exit code {code}, see its output"
        if code > 128:
            how = f"was stopped by {signal.Signals(code - 128).name}"
        sentence = "" if lost else f"{self._name(self._info.index)} {how}"
        # Another process was the first, or process 0 is gone.
        with contextlib.suppress(RuntimeError):
            self._client.key_value_set(_END, json.dumps([code, sentence]))
        self._idle.set()
        time.sleep(_EXIT_SECONDS)
        end_process(code)

    def _run(self) -> None:
        try:
            text = self._client.blocking_key_value_get(_END, 1000 * _YEAR_SECONDS)
            code, sentence = json.loads(text)
            sentence = sentence or self._find_lost()
        except RuntimeError as error:
            if str(error).startswith("CANCELLED"):
                return  # the job was left in order
            code, sentence = LOST, f"{self._first} was killed, or its machine is gone"
        print(f"stillbox: {sentence}; the job has ended", file=sys.__stderr__, flush=True)
        if self._info.index == 0:
            time.sleep(_READ_SECONDS)
            self._idle.wait(_CHECKPOINT_SECONDS)
        end_process(code)

    def _find_lost(self) -> str:
        """Waits for all processes; returns a sentence about those that do not answer."""
        try:
            self._client.wait_at_barrier(_END, 1000 * _ANSWER_SECONDS)
        except RuntimeError as error:
            # Lines of the numbers of processes.
            numbers = re.findall(r"^(?:\S*task:)?(\d+)$", str(error), re.MULTILINE)
            if not numbers:
                raise
            names = " and ".join(self._name(int(number)) for number in sorted(numbers, key=int))
            return f"{names} was killed, or its machine is gone"
        return "a connection between the processes was lost"

    def _name(self, index: int) -> str:
        """Returns a process with its place, as it was stored."""
        key = f"{_PLACE}/{index}"
        return f"process {index} ({self._client.blocking_key_value_get(key, 1000 * 60)})"

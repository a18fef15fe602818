"""Runs a command line as one process of a job."""

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

from stillbox.devices.compiling import compilation_left_behind
from stillbox.devices.launcher import ProcessInfo

# Names in the errors of a collective after a process has ended; that process prints the cause.
_LOST = re.compile(r"\b(Gloo|NCCL|coordination service|CoordinationService)\b")


def run_process(place: ProcessInfo, words: Sequence[str], run: Callable[[], int]) -> int:
    """Runs one process of a job under supervision; returns its exit code, or the job's.

    Args:
        place: of this process in the job.
        words: the command line.
        run: runs it in this process.
    """
    # Imported here: a single process does not need asyncio.
    from stillbox.devices.supervised import (
        EXPECTED_CODES,
        SUPERVISED,
        end_with_supervisor,
        report_failure,
    )
    from stillbox.devices.supervisor import supervise

    if SUPERVISED in os.environ:
        end_with_supervisor()
        code = _run_to_the_end(run)
        # Ends at once; jax would wait minutes for all processes to end together.
        if code not in EXPECTED_CODES or compilation_left_behind():
            report_failure(code)
        return code
    command = [sys.executable, "-m", "stillbox.cli.main", *words]
    return supervise(place, command, os.environ)


def _run_to_the_end(run: Callable[[], int]) -> int:
    try:
        code = run()
    except Exception as error:
        if _LOST.search(str(error)):
            print(f"stillbox: the other processes are gone: {str(error)[:200]}", file=sys.stderr)
        else:
            traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


@contextlib.contextmanager
def joined(place: ProcessInfo | None) -> Iterator[None]:
    """Joins the job while it is entered. Only the first process prints.

    Raises:
        UserError: the other processes do not join.
    """
    if place is None:
        yield
        return
    from stillbox.devices.job import join_job, leave_job
    from stillbox.devices.processors import binding_warning

    with contextlib.ExitStack() as stack:
        if place.index:
            silence = stack.enter_context(open(os.devnull, "w"))  # noqa: PTH123
            stack.enter_context(contextlib.redirect_stdout(silence))
            stack.enter_context(contextlib.redirect_stderr(silence))
        else:
            print(f"process 0 of {place.count}, as {place.launcher} says", file=sys.stderr)
            if warning := binding_warning(place):
                print(warning, file=sys.stderr)
        join_job(place)
        yield
        leave_job()

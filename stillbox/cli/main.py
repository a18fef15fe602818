"""The entry point: the module of each verb, processes of a job, and the exit codes.

Exit codes: 0 done, 1 done with findings, 2 the input cannot be used, 3 the loss is not finite,
129, 130 and 143 stopped by SIGHUP, Ctrl-C and SIGTERM.
"""

import argparse
import contextlib
import gc
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from stillbox import __version__
from stillbox.cli import interrupt_by_exception
from stillbox.cli.parsing import VerbParser, refuse_addresses, with_two_dashes
from stillbox.cli.sentences import describe_lack, describe_system_error, is_interruption
from stillbox.cli.verbs import LEGACY, Verb, known, listed, meant
from stillbox.cli.wording import OptionWording
from stillbox.devices.compiling import compilation_left_behind, end_process
from stillbox.devices.launcher import ProcessInfo
from stillbox.devices.process import (
    keep_fusions_whole,
    restart_with_large_pages,
    silence_libtpu,
)
from stillbox.errors import UserError, nearest
from stillbox.extras import install_legacy_command
from stillbox.object_storage import name_buckets
from stillbox.printing import make_output_printable, printable_output
from stillbox.training.signals import RunInterrupted

# Names in the errors of a collective after a process has ended; that process prints the cause.
_LOST = re.compile(r"\b(Gloo|NCCL|coordination service|CoordinationService)\b")


def run_process(place: ProcessInfo, run: Callable[[], int]) -> int:
    """Runs one process of a job; ends all of them if it fails. Returns its exit code."""
    # Imported here: most verbs need no jax before they run.
    import jax

    from stillbox.devices.failures import LOST, FailureWatch
    from stillbox.devices.job import join_job

    join_job(place)
    watch, lost, alone = FailureWatch(place), False, False
    try:
        code = run()
    except KeyboardInterrupt as stop:
        # An interrupt stops this process alone; other signals stop all after the same step.
        code, alone = 128 + getattr(stop, "number", signal.SIGINT), True
    except Exception as error:
        lost = _LOST.search(str(error)) is not None
        code = LOST if lost else 1
        if not lost:
            traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    if alone or code not in (0, *_STOPPED) or compilation_left_behind():
        watch.fail(code, lost=lost)
    jax.distributed.shutdown()
    watch.close()
    return code


_FIRST_HOUR = """stillbox trains, evaluates, exports and serves object detectors. A first hour:

  stillbox train --data FOLDER --model-dir RUN    train on images with labels
  stillbox evaluate RUN                           score the model in a report
  stillbox predict RUN IMAGES                     detect objects
  stillbox export RUN --format onnx               write it for other runtimes
  stillbox serve RUN                              serve it over HTTP

`stillbox --help` lists all verbs, `stillbox VERB --help` what a verb takes, and
`stillbox doctor` what this machine has.
"""
# Objects that are made between two collections of reference cycles; by default 700 or 2,000.
_NEW_OBJECTS = 100_000
# Exit codes of SIGHUP, Ctrl-C and SIGTERM.
_STOPPED = (129, 130, 143)


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser of all verbs; with `only`, the others are listed without their options."""
    parser = VerbParser(
        prog="stillbox",
        description="Train and evaluate anchor-based object detectors as fixed-shape programs.",
    )
    parser.add_argument("--version", action="version", version=f"stillbox {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in known(only or "").values():
        if not verb.about and verb.name != only:
            continue
        help_line: dict[str, Any] = {"help": verb.about} if verb.about else {}
        # The originals' flags are parsed by absl, which accepts no abbreviations.
        inner = verbs.add_parser(verb.name, allow_abbrev=not verb.is_original, **help_line)
        if only in (None, verb.name):
            _add_verb(inner, verb)
    return parser


def _verb_parser(verb: str) -> argparse.ArgumentParser:
    verbs = build_parser(verb)._actions[-1]
    assert isinstance(verbs, argparse._SubParsersAction)
    parser: argparse.ArgumentParser = verbs.choices[verb]
    return parser


def verb_options(verb: str) -> set[str]:
    """Returns the options of a verb without subverbs."""
    return {word for action in _verb_parser(verb)._actions for word in action.option_strings}


def wording_of(verb: str | None) -> OptionWording:
    """Returns how the messages of a verb, perhaps with a process behind it, name its options."""
    name = (verb or "").partition(" ")[0]
    return OptionWording.of(_verb_parser(name)) if name in known(name) else OptionWording()


def _add_verb(parser: argparse.ArgumentParser, verb: Verb) -> None:
    module = import_module(verb.module)
    shared = f"_{verb.name}" if hasattr(module, f"add_{verb.name}") else ""
    add = getattr(module, f"add{shared or '_arguments'}")
    parser.description = (add if shared else module).__doc__
    parser.set_defaults(run=getattr(module, f"run{shared}", None))
    add(parser)
    parser.set_defaults(wording=OptionWording.of(parser))


def command() -> int:
    """The program `stillbox`: runs `main`, with large pages where the system has them.

    A shell that completes a command line asks it with `_ARGCOMPLETE` for words, and nothing is run.
    """
    if "_ARGCOMPLETE" in os.environ:
        from stillbox.cli.completion import complete

        complete(build_parser)
    restart_with_large_pages()
    # Imports and tracing make many objects that stay, and Python's collector of cycles would look
    # through them dozens of times.
    gc.set_threshold(_NEW_OBJECTS)
    # To the end of the process: a traceback is printed after `main`.
    make_output_printable()
    return main()


@printable_output()
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    # XLA prints pages of tuning flags whenever it loads a cached program, since it takes them for
    # missing instructions of the processor. Errors come as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    silence_libtpu()
    keep_fusions_whole()
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        sys.stdout.write(_FIRST_HOUR)
        return 0
    for word in words:
        name_buckets(word)
    verb = next((word for word in words if not word.startswith("-")), None)
    try:
        program = None if verb is None else _program(verb, words)
    except UserError as error:
        return _complain(str(error))
    if program is not None:
        words = [program.name if word == verb else word for word in words]
        verb = program.name
        if program.is_original:
            words = with_two_dashes(words, verb_options(verb))
    make_output_printable(wording_of(verb))
    try:
        # Without a verb the help names all of them, which needs the options of none.
        parsed = build_parser(verb or "").parse_args(words)
        parsed.words = words
        # Imported here: the help reads no experiment.
        from stillbox.cli.arguments import find_process_info

        refuse_addresses(words)
        place = find_process_info(parsed)
        if place is not None:
            return run_process(place, lambda: _run(parsed, verb, place))
    except UserError as error:
        return _complain(error, verb)
    code = _run(parsed, verb)
    # A function that is called returns; a program that ends early waits for no thread.
    early = code in _STOPPED or compilation_left_behind()
    return end_process(code) if arguments is None and early else code


def _program(word: str, words: Sequence[str]) -> Verb:
    """Returns the verb of a name; of several verbs of a name, the verb with most of the flags.

    Raises:
        UserError: there is none, or it is in a package that is not installed.
    """
    verbs = meant(word)
    if not verbs and word.removesuffix(".py") in LEGACY:
        problem = f"`stillbox {word}` is in stillbox-legacy, which is not installed"
        raise UserError(problem, fix=install_legacy_command())
    if not verbs:
        names = [verb.name for verb in listed()]
        raise UserError(f"there is no verb {word!r}", fix=nearest(word, names))
    if len(verbs) == 1:
        return verbs[0]
    flags = {f"--{flag.partition('=')[0].lstrip('-')}" for flag in words if flag.startswith("-")}
    return max(verbs, key=lambda verb: len(flags & verb_options(verb.name)))


def _printing(place: ProcessInfo | None) -> contextlib.AbstractContextManager[None]:
    if place is None:
        return contextlib.nullcontext()
    from stillbox.devices.job import only_first_prints

    return only_first_prints(place)


def _run(parsed: argparse.Namespace, verb: str | None, place: ProcessInfo | None = None) -> int:
    """Runs a verb and returns its exit code; prints an expected error as a sentence."""
    from stillbox.experiment.imports import import_parts

    if place is not None:
        verb = f"{verb} (process {place.index} of {place.count})"
    try:
        interrupt_by_exception()
        import_parts(getattr(parsed, "imports", ()))
        with _printing(place):
            code: int = parsed.run(parsed)
        # Flushed here: errors at exit could not be caught.
        sys.stdout.flush()
    except UserError as error:
        return _complain(error, verb)
    except FloatingPointError as error:
        return _complain(str(error), verb, code=3)
    except KeyboardInterrupt as interruption:
        code = 130
        if isinstance(interruption, RunInterrupted):
            code = _complain(str(interruption), verb, code=128 + interruption.number)
        if place is not None:
            raise
        return code
    except BrokenPipeError:
        # The reader of a pipe has closed it; without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(describe_system_error(error), verb)
    except Exception as error:
        if is_interruption(error):
            if place is not None:
                raise KeyboardInterrupt from error
            return 130
        sentence = describe_lack(error)
        if sentence is None:
            raise
        return _complain(sentence, verb)
    return code


def _complain(error: str | UserError, verb: str | None = None, *, code: int = 2) -> int:
    text = error.describe(wording_of(verb)) if isinstance(error, UserError) else error
    print(f"{' '.join(filter(None, ('stillbox', verb)))}: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(command())

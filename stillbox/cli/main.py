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
from collections.abc import Callable, Collection, Sequence
from importlib import import_module

from stillbox import __version__
from stillbox.cli import interrupt_by_exception
from stillbox.cli.parsing import VerbParser, refuse_addresses, with_two_dashes
from stillbox.cli.sentences import describe_lack, describe_system_error, is_interruption
from stillbox.devices.compiling import compilation_left_behind, end_process
from stillbox.devices.launcher import ProcessInfo
from stillbox.devices.process import (
    keep_fusions_whole,
    restart_with_large_pages,
    silence_libtpu,
)
from stillbox.errors import UserError, nearest
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
        # It has stopped this process alone; other signals stop all after the same step.
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


_TPU_PAGE = '"Object Detection Models on TPU"'
_VERBS = {
    "data": "convert, check, count and show data",
    "check": "find everything that is wrong with a config",
    "anchors": "show how well anchors cover a data set",
    "train": "train an experiment into a model directory",
    "evaluate": "score a model and write a report",
    "predict": "detect objects in images and videos",
    "serve": "serve a model over HTTP",
    "export": "write a model for other runtimes",
    "benchmark": "measure a model in every format and runtime",
    "pack": "write a trained model without its training into one file",
    "recipes": "list the recipes with input, size, score and memory",
    "config": "print the resolved experiment as YAML",
    "weights": "get pretrained weights; write weights for other programs",
    "doctor": "show versions, devices and memory",
    "tutorial": "write a folder in which tutorials of the Object Detection API run",
    "completion": "print a script that completes words for bash, zsh or fish",
    "model_main": "train or evaluate with the flags of the Object Detection API",
    "retinanet": f"train, evaluate or predict with the flags of {_TPU_PAGE}",
    "model_garden": "train or evaluate with the flags of TensorFlow Model Garden",
    "ssd_resnet34": "train, evaluate or predict with the flags of SSD ResNet-34's script",
    "export_saved_model": f"export with the flags of {_TPU_PAGE}",
    "exporter_main_v2": "export a SavedModel with the flags of the Object Detection API",
    "export_tflite_graph_tf2": "export a TFLite model with the flags of the Object Detection API",
}
"""Help by verb. The module of the same name has `add_arguments(parser)` and `run(arguments)`, but
for verbs of `_SHARED`; it is imported when its verb is used."""

_ORIGINALS = {
    "model_main": ("model_main.py", "model_main_tf2", "model_main_tf2.py"),
    "retinanet": ("main.py",),
    "model_garden": ("train.py",),
    "ssd_resnet34": ("ssd.py",),
    "export_saved_model": ("export_saved_model.py",),
    "exporter_main_v2": ("exporter_main_v2.py",),
    "export_tflite_graph_tf2": ("export_tflite_graph_tf2.py",),
}
"""Verbs with the flags of an original, and the other names of each."""

_SHARED = {
    "checks": ("check", "config", "anchors", "doctor"),
    "detection_api": ("model_main", "legacy_train", "legacy_eval"),
    "detection_api_exports": (
        *("exporter_main_v2", "export_tflite_graph_tf2"),
        *("export_inference_graph", "export_tflite_ssd_graph"),
    ),
    "export": ("export", "pack"),
    "label_scripts": (
        *("generate_tfrecord", "create_tfrecord", "xml_to_csv", "create_csv"),
        *("partition_dataset", "train_val_test_split"),
    ),
    "measuring": ("evaluate", "benchmark"),
    "official_models": ("retinanet", "model_garden", "export_saved_model"),
    "tutorial": (
        *("tutorial", "model_builder_tf1_test", "model_builder_tf2_test"),
        *("create_pascal_tf_record", "create_pet_tf_record", "create_coco_tf_record"),
    ),
    "weights": ("weights", "recipes"),
}
"""Modules of several verbs: `add_VERB`, whose docstring is the help, and `run_VERB`."""

_MODULES = {verb: module for module, verbs in _SHARED.items() for verb in verbs}
_SCRIPTS = [verb for verb in _MODULES if verb not in _VERBS]
"""Verbs of the scripts that `stillbox tutorial` writes. No help lists them."""

_OTHER_NAMES = {
    "--output": ("--export_dir", "--output_directory", "--model_dir"),
    "--overwrite": ("--override_export_dir",),
}
"""What the originals call flags of ours; others differ in their underscores only."""
_FLAG = re.compile(r"`[^`]*`|(?<![\w'-])--[a-z][\w-]*")

_ALL_NAMES = (
    *_ORIGINALS.items(),
    *((verb, (f"{verb.removeprefix('legacy_')}.py",)) for verb in _SCRIPTS),
)
_SPELLINGS = {spelling for _, names in _ALL_NAMES for spelling in names}

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
    for name, about in _VERBS.items():
        # The originals' flags are parsed by absl, which accepts no abbreviations.
        verb = verbs.add_parser(name, help=about, allow_abbrev=name not in _ORIGINALS)
        if only in (None, name):
            _add_verb(verb, name)
    if only in _SCRIPTS:
        _add_verb(verbs.add_parser(only, allow_abbrev=False), only)
    return parser


def verb_options(verb: str) -> set[str]:
    """Returns the options of a verb without subverbs."""
    verbs = build_parser(verb)._actions[-1]
    assert isinstance(verbs, argparse._SubParsersAction)
    return {word for action in verbs.choices[verb]._actions for word in action.option_strings}


def _add_verb(parser: argparse.ArgumentParser, name: str) -> None:
    module = import_module(f"stillbox.cli.{_MODULES.get(name, name)}")
    shared = f"_{name}" if name in _MODULES else ""
    add = getattr(module, f"add{shared or '_arguments'}")
    parser.description = (add if shared else module).__doc__
    parser.set_defaults(run=getattr(module, f"run{shared}", None))
    add(parser)


def command() -> int:
    """The program `stillbox`: runs `main`, with large pages where the system has them."""
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
    for word in words:
        name_buckets(word)
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb in _SPELLINGS:
        own = _program(verb, words)
        words = [own if word == verb else word for word in words]
        verb = own
    if verb is not None and verb not in _VERBS and verb not in _SCRIPTS:
        return _complain(f"there is no verb {verb!r}\n  fix: {nearest(verb, _VERBS)}")
    if verb in _ORIGINALS or verb in _SCRIPTS:
        words = with_two_dashes(words, verb_options(verb))
    # Without a verb the help names all of them, which needs the options of none.
    parsed = build_parser(verb or "").parse_args(words)
    parsed.words = words
    from stillbox.cli.arguments import find_process_info

    try:
        refuse_addresses(words)
        place = find_process_info(parsed)
        if place is not None:
            return run_process(place, lambda: _run(parsed, verb, place))
    except UserError as error:
        return _complain(str(error), verb)
    code = _run(parsed, verb)
    # A function that is called returns; a program that ends early waits for no thread.
    early = code in _STOPPED or compilation_left_behind()
    return end_process(code) if arguments is None and early else code


def _program(spelling: str, words: Sequence[str]) -> str:
    """Returns the verb of an original's name; two of them are called `train.py`."""
    flags = {f"--{word.partition('=')[0].lstrip('-')}" for word in words if word.startswith("-")}
    verbs = [verb for verb, names in _ALL_NAMES if spelling in names]
    if len(verbs) == 1:
        return verbs[0]
    return max(verbs, key=lambda verb: len(flags & verb_options(verb)))


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
        return _complain(str(error), verb)
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


def own_flags(text: str, options: Collection[str]) -> str:
    """Returns a message with flags as a verb spells them, such as `--model_dir`.

    Args:
        text: the message; commands in backticks keep their flags.
        options: of the verb.
    """

    def own(match: re.Match[str]) -> str:
        flag = match[0]
        names = (flag, "--" + flag[2:].replace("-", "_"), *_OTHER_NAMES.get(flag, ()))
        return next((name for name in names if name in options), flag)

    return _FLAG.sub(own, text)


def _complain(text: str, verb: str | None = None, *, code: int = 2) -> int:
    if (name := (verb or "").partition(" ")[0]) in (*_ORIGINALS, *_SCRIPTS):
        text = own_flags(text, verb_options(name))
    print(f"{' '.join(filter(None, ('stillbox', verb)))}: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(command())

"""The entry point: one file a verb, one place for exit codes.

Exit codes: 0 done, 1 done with findings, 2 the input cannot be used, 3 the loss is not finite,
130 and 143 stopped by a signal.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence

from stillbox import __version__
from stillbox.cli import (
    anchors,
    check,
    config,
    data,
    doctor,
    evaluate,
    export,
    export_saved_model,
    exporter_main,
    model_main,
    predict,
    retinanet,
    serve,
    ssd_resnet34,
    train,
    weights,
)
from stillbox.cli.arguments import find_own_place
from stillbox.cli.processes import joined, run_process
from stillbox.devices.launcher import ProcessInfo
from stillbox.devices.libtpu import silence_libtpu
from stillbox.errors import UserError, nearest
from stillbox.experiment.imports import import_parts

_VERBS = {
    "data": data,
    "check": check,
    "anchors": anchors,
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "serve": serve,
    "export": export,
    "config": config,
    "weights": weights,
    "doctor": doctor,
    "model_main": model_main,
    "retinanet": retinanet,
    "ssd_resnet34": ssd_resnet34,
    "export_saved_model": export_saved_model,
    **dict.fromkeys(exporter_main.VERBS, exporter_main),
}

# Verbs by the other names that stand in people's scripts.
_SPELLINGS = {
    **dict.fromkeys(model_main.SPELLINGS, "model_main"),
    **dict.fromkeys(retinanet.SPELLINGS, "retinanet"),
    **dict.fromkeys(ssd_resnet34.SPELLINGS, "ssd_resnet34"),
    **dict.fromkeys(export_saved_model.SPELLINGS, "export_saved_model"),
    **{f"{verb}.py": verb for verb in exporter_main.VERBS},
}

# What XLA's message of a failed allocation begins with.
_NO_MEMORY = "RESOURCE_EXHAUSTED"


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="stillbox",
        description="Train and evaluate anchor-based object detectors as fixed-shape programs.",
    )
    parser.add_argument("--version", action="version", version=f"stillbox {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in dict.fromkeys(_VERBS.values()):
        verb.add_parser(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    # Every start from the compilation cache makes XLA print pages about tuning flags of the
    # processor that it takes for instructions. What matters reaches us as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    silence_libtpu()
    words = sys.argv[1:] if arguments is None else arguments
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb in _SPELLINGS:
        words = [_SPELLINGS[verb] if word == verb else word for word in words]
        verb = _SPELLINGS[verb]
    if verb is not None and verb not in _VERBS:
        return _complain(f"there is no verb {verb!r}\n  fix: {nearest(verb, _VERBS)}")
    parsed = build_parser().parse_args(words)
    try:
        place = find_own_place(parsed)
        if place is not None:
            return run_process(place, words, lambda: _run(parsed, verb, place))
    except UserError as error:
        return _complain(str(error), verb)
    return _run(parsed, verb)


def _run(parsed: argparse.Namespace, verb: str | None, place: ProcessInfo | None = None) -> int:
    """Runs a verb and returns its exit code; every error becomes a sentence here."""
    if place is not None:
        verb = f"{verb} (process {place.index} of {place.count})"
    try:
        import_parts(getattr(parsed, "imports", ()))
        with joined(place):
            code: int = parsed.run(parsed)
        # Here and not at exit, where nobody would catch what goes wrong with it.
        sys.stdout.flush()
    except UserError as error:
        return _complain(str(error), verb)
    except FloatingPointError as error:
        return _complain(str(error), verb, code=3)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe has seen enough; without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(_describe(error), verb)
    except RuntimeError as error:
        if _NO_MEMORY not in str(error):
            raise
        return _complain(_describe_memory(error), verb)
    return code


def _complain(text: str, verb: str | None = None, *, code: int = 2) -> int:
    print(f"{' '.join(filter(None, ('stillbox', verb)))}: {text}", file=sys.stderr)
    return code


def _describe_memory(error: RuntimeError) -> str:
    first, *_ = str(error).splitlines()
    return (
        f"the device has not enough memory: {first}\n  fix: lower train.batch_size or "
        "evaluation.batch_size, or the model.resizer's size"
    )


def _describe(error: OSError) -> str:
    """Returns a sentence about a disk that is full, a folder that is read-only and the like."""
    if error.strerror is None:
        return str(error)
    where = f"{error.filename}: " if error.filename is not None else ""
    fix = {
        errno.ENOSPC: "make room on the disk, or choose a folder on another one",
        errno.EDQUOT: "make room within your quota, or choose a folder on another disk",
        errno.EACCES: "choose a folder that you may write to, or change its permissions",
        errno.EROFS: "choose a folder that can be written to",
    }.get(error.errno or 0)
    return f"{where}{error.strerror}" + (f"\n  fix: {fix}" if fix else "")


if __name__ == "__main__":
    sys.exit(main())

"""The entry point: one file a verb, one place for exit codes.

Exit codes: 0 done, 1 done with findings, 2 the input cannot be used, 3 the loss is not finite,
130 and 143 stopped by a signal.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from stillbox import __version__
from stillbox.cli import config, data, doctor, evaluate, predict, train
from stillbox.errors import UserError

_VERBS = (data, train, evaluate, predict, config, doctor)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="stillbox",
        description="Train and evaluate anchor-based object detectors as fixed-shape programs.",
    )
    parser.add_argument("--version", action="version", version=f"stillbox {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in _VERBS:
        verb.add_parser(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    # Every start from the compilation cache makes XLA print pages about tuning flags of the
    # processor that it takes for instructions. What matters reaches us as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    parsed = build_parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except UserError as error:
        print(f"stillbox {parsed.verb}: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print(f"stillbox {parsed.verb}: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe has seen enough; without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())

"""How fast stillbox trains on one GPU, beside torchvision, and whether its numbers are right there.

    python benchmarks/gpu.py [--torch-python PYTHON] [--output gpu.md]
    python benchmarks/gpu.py --goldens
    python benchmarks/gpu.py --tiny                  # a rehearsal of all of it, also without a GPU

One command of under ten minutes. Each row is a process of its own, which compiles, warms up and
measures for some seconds; peers run in the same minutes. Rows with a goal come first. A row that
takes longer than its budget is stopped, and what no longer fits into `--minutes` is left out and
named at the end: `--rows` takes names. Compiled programs are cached, so that a second run has time
for more.

FLOPs are counted in convolutions, a multiply-add is two, a step is three forward passes.

`--torch-python` is a Python with torch and torchvision; without it, this one, if it has them.
XLA reads XLA_FLAGS; the table says what they were.
"""

import argparse
import datetime
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpu_row import ROWS, Row

_HERE = Path(__file__).parent
_LEAST = 25.0  # seconds; a row that has no more is not begun
_PEERS = {
    "torchvision RetinaNet 800": "retinanet-800",
    "torchvision RetinaNet 640": "retinanet-640",
}
_COLUMNS = (
    *("row", "input", "type", "batch", "images/s", "goal", "ms a step", "TFLOP/s"),
    *("memory, GiB", "compiling, s"),
)


def main() -> None:
    """Prints the table."""
    arguments = _parse()
    if arguments.goldens:
        command = [sys.executable, str(_HERE / "gpu_goldens.py")]
        raise SystemExit(
            subprocess.run(command + ["--tiny"] * arguments.tiny, check=False).returncode
        )
    began, lines, left_out = time.monotonic(), [], []
    for name in arguments.rows:
        spare = 60 * arguments.minutes - (time.monotonic() - began)
        if spare < _LEAST and not arguments.tiny:
            left_out.append(name)
            continue
        print(f"... {name}", flush=True)
        row = _run(_command(name, arguments), min(spare, arguments.budget))
        lines.append((name, row))
    text = _report(lines, left_out)
    print(text)
    if arguments.output:
        arguments.output.write_text(text)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--goldens", action="store_true", help="compare with the goldens instead")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: small sizes, few steps")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all rows together")
    parser.add_argument("--budget", type=float, default=110.0, help="seconds of one row")
    parser.add_argument("--seconds", type=float, default=6.0, help="that a row is measured for")
    parser.add_argument("--torch-python", default="", help="a Python with torch and torchvision")
    parser.add_argument("--output", type=Path, help="file for the table")
    parser.add_argument("--rows", nargs="+", choices=_order(), default=_order(), metavar="ROW")
    arguments = parser.parse_args()
    if not arguments.torch_python and importlib.util.find_spec("torchvision"):
        arguments.torch_python = sys.executable
    return arguments


def _order() -> list[str]:
    """Returns all rows, each peer after ours of the same size."""
    names = []
    for row in ROWS:
        names.append(row)
        names += [peer for peer, ours in _PEERS.items() if ours == row]
    return names


def _command(name: str, arguments: argparse.Namespace) -> list[str]:
    options = ["--seconds", str(arguments.seconds), *["--tiny"] * arguments.tiny]
    if name not in _PEERS:
        return [sys.executable, str(_HERE / "gpu_row.py"), name, *options]
    row = ROWS[_PEERS[name]]
    sizes = ["--side", str(row.side), "--batch-size", str(row.batch_size)]
    return [arguments.torch_python, str(_HERE / "torch_gpu.py"), *sizes, *options]


def _run(command: list[str], seconds: float) -> dict[str, Any]:
    """Returns what a row printed last, or why it did not."""
    if not command[0]:
        return {"failed": "no Python with torchvision; give --torch-python"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"stopped after {seconds:.0f} s"}
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-4000:], sep="\n", file=sys.stderr)
        said = [line for line in done.stderr.splitlines() if "Error" in line] or ["no message"]
        return {"failed": f"ended with {done.returncode}: {said[-1][:160]}"}
    *before, last = done.stdout.strip().splitlines()
    print("\n".join(before), flush=True)
    return dict(json.loads(last))


def _report(lines: list[tuple[str, dict[str, Any]]], left_out: list[str]) -> str:
    rows = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    rows += [_line(name, row) for name, row in lines]
    versions = {key: v for _, row in lines for key, v in row.get("versions", {}).items()}
    head = f"{_machine()}, {datetime.date.today()}, {_versions(versions)}"
    flags = os.environ.get("XLA_FLAGS", "")
    notes = [f"XLA_FLAGS: `{flags}`"] if flags else []
    notes += [f"{name}: {row['failed']}" for name, row in lines if "failed" in row]
    if left_out:
        notes.append("no time left for: " + ", ".join(left_out))
    return "\n".join([head, "", *rows, "", *notes]) + "\n"


def _line(name: str, measured: dict[str, Any]) -> str:
    ours = name not in _PEERS
    row = ROWS[name] if ours else ROWS[_PEERS[name]]
    source = "records" if row.real else "on the device"
    if "failed" in measured:
        cells = [name, source, row.precision, *["failed"], *[""] * (len(_COLUMNS) - 4)]
        return f"| {' | '.join(cells)} |"
    cells = [
        name,
        source,
        row.precision,
        str(measured["batch"]),
        f"{measured['images_per_second']:,.1f}",
        _goal(row, measured) if ours else "",
        f"{measured['ms']:,.1f}",
        _number(measured, "flops_per_second", 1e-12, ".1f"),
        _number(measured, "memory", 2**-30, ".1f"),
        _number(measured, "compiling", 1, ".0f"),
    ]
    return f"| {' | '.join(cells)} |"


def _goal(row: Row, measured: dict[str, Any]) -> str:
    if not row.goal:
        return ""
    return f"{row.goal:,.0f} {'met' if measured['images_per_second'] >= row.goal else 'missed'}"


def _number(measured: dict[str, Any], key: str, factor: float, form: str) -> str:
    return format(measured[key] * factor, form) if measured.get(key) else ""


def _machine() -> str:
    """Returns the name of the GPU; this process starts no backend, which would take its memory."""
    if not shutil.which("nvidia-smi"):
        return "no GPU"
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def _versions(others: dict[str, str]) -> str:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return ", ".join(f"{name} {number}" for name, number in (versions | others).items())


if __name__ == "__main__":
    main()

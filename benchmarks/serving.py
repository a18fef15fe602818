"""What serving costs: speed and latency of `stillbox serve` beside plain calls of other runtimes.

    python benchmarks/serving.py runs/model photos/*.jpg \
        --export exports/saved_model --export exports/onnx
    python benchmarks/serving.py runs/model photos/*.jpg --requests 10000     # memory

A client sends its next image when it has the answer to the last. All rows get the same image files.
A `serve` row is a process of its own, asked over loopback by threads of this one. A `call` row is a
function that threads of this process call: decoding, resizing, the runtime, boxes in pixels, and no
HTTP. Rows take turns; the table has the median of the rounds.
"""

import argparse
import http.client
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
from measuring import machine, show
from rich.table import Table

from stillbox.api import load
from stillbox.errors import UserError
from stillbox.exporting.manifest import Manifest

WARM_UP = 1.0  # seconds of a measurement that do not count
# The runtimes of a format by their names; empty: the format's own.
RUNTIMES = {
    "saved_model": {"": "TensorFlow"},
    "onnx": {"onnxruntime": "onnxruntime", "openvino": "OpenVINO"},
    "tflite": {"": "LiteRT"},
    "stablehlo": {"": "JAX export"},
}

Ask = Callable[[bytes], object]


class Row(NamedTuple):
    """Something that detects in image files."""

    name: str
    """What the table calls it."""
    client: Callable[[], Ask]
    """Makes what one client calls with one file after another."""


class Measured(NamedTuple):
    """One row at one number of clients."""

    speed: float
    """Images a second."""
    p50: float
    """Milliseconds from the file to its detections."""
    p99: float
    """Likewise."""


def main() -> None:
    arguments = read_arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    files = [path.read_bytes() for path in arguments.images]
    print(f"{machine()}; {len(files)} images of {sum(map(len, files)) // len(files):,} bytes")
    with ExitStack() as stack:
        if arguments.requests:
            address, process = stack.enter_context(server([arguments.model]))
            watch_memory(address, process, files, arguments.requests)
            return
        rows = list(all_rows(stack, arguments))
        for row in rows:  # compiles and loads what has to be
            ask = row.client()
            ask(files[0])
        show(table(rows, arguments, files))


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a model directory")
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--export", action="append", default=[], metavar="FOLDER", help="of it")
    parser.add_argument("--serve-exports", action="store_true", help="serve them, too")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=6, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--requests", type=int, default=0, help="watch the memory instead")
    return parser.parse_args()


def all_rows(stack: ExitStack, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yields the rows; what cannot be had is said."""
    yield served(stack, "stillbox", [arguments.model])
    yield called("stillbox", arguments.model)
    for folder in arguments.export:
        settings = Manifest.read(Path(folder)).settings
        for runtime, title in RUNTIMES[settings.format].items():
            name = title if settings.quantize == "none" else f"{title} {settings.quantize}"
            try:
                yield called(name, folder, runtime)
                if arguments.serve_exports:
                    words = ["--runtime", runtime] if runtime else []
                    yield served(stack, name, [folder, *words])
            except UserError as error:
                print(f"without {name}: {error}")


def served(stack: ExitStack, name: str, words: list[str]) -> Row:
    """Starts a server and returns its row."""
    address, _ = stack.enter_context(server(words))
    return Row(f"serve, {name}", lambda: http_client(address))


def called(name: str, model: str, runtime: str = "") -> Row:
    """Returns the row of a function in this process, which has been called once."""
    predictor = load(model, runtime=runtime)
    predictor.warm_up()
    return Row(f"call, {name}", lambda: predictor.predict)


@contextmanager
def server(words: list[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Runs `stillbox serve`; yields its address when it takes requests."""
    command = [sys.executable, "-m", "stillbox.cli.main", "serve", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(f"  {' '.join(words)}: {line.rstrip()}")
                if match := re.search(r"at (http://\S+)/$", line):
                    yield match[1], process
                    break
            else:
                raise UserError("the server did not start", where=" ".join(words))
        finally:
            process.terminate()


def http_client(address: str) -> Ask:
    """Returns a client with a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)

    def ask(file: bytes) -> object:
        connection.request("POST", "/detect", file, {"Content-Type": "image/jpeg"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    return ask


def measure(row: Row, clients: int, seconds: float, files: list[bytes]) -> Measured:
    """Lets so many clients ask for some seconds."""
    taken: list[float] = []
    begins = time.perf_counter() + WARM_UP
    ends = begins + seconds

    def run(number: int) -> None:
        ask = row.client()
        at = number
        while (began := time.perf_counter()) < ends:
            ask(files[at % len(files)])
            at += clients
            if began >= begins:
                taken.append(time.perf_counter() - began)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = time.perf_counter() - begins
    taken.sort()
    p50, p99 = (1000 * taken[int(share * (len(taken) - 1))] for share in (0.5, 0.99))
    return Measured(len(taken) / whole, p50, p99)


def table(rows: list[Row], arguments: argparse.Namespace, files: list[bytes]) -> Table:
    """Measures all and returns what there is to show."""
    made = Table(title=f"{arguments.seconds:g} s each, median of {arguments.rounds} rounds")
    for column in ("", "clients", "images/s", "from .. to", "p50 ms", "p99 ms"):
        made.add_column(column, justify="right")
    measured: dict[tuple[str, int], list[Measured]] = {}
    for _ in range(arguments.rounds):
        for clients in arguments.clients:
            for row in rows:
                result = measure(row, clients, arguments.seconds, files)
                print(f"  {row.name}, {clients} clients: {result.speed:.1f} images/s", flush=True)
                measured.setdefault((row.name, clients), []).append(result)
    for row in rows:
        for clients in arguments.clients:
            rounds = measured[row.name, clients]
            speed, p50, p99 = (statistics.median(values) for values in zip(*rounds, strict=True))
            speeds = [result.speed for result in rounds]
            spread = f"{min(speeds):.1f} .. {max(speeds):.1f}"
            made.add_row(row.name, str(clients), f"{speed:.1f}", spread, f"{p50:.0f}", f"{p99:.0f}")
    return made


def watch_memory(
    address: str, process: "subprocess.Popen[str]", files: list[bytes], requests: int
) -> None:
    """Prints the server's resident memory, ten times on the way."""
    watched = psutil.Process(process.pid)
    part, clients = max(requests // 10, 1), 4
    print(f"  before: {watched.memory_info().rss / 2**20:.0f} MiB")
    for number in range(1, 11):

        def run(first: int) -> None:
            ask = http_client(address)
            for at in range(first, part, clients):
                ask(files[at % len(files)])

        threads = [threading.Thread(target=run, args=(first,)) for first in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"  {number * part:6,} requests: {watched.memory_info().rss / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()

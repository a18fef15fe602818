"""What a job of 8, 64 and 512 processes costs beside its steps: a model, its constants, a check.

    python benchmarks/job_growth.py [--sizes 2 4 8] [--clients 8 64 512]

Three sources. Jobs of real processes on this machine measure collectives; the model is fitted to
all sizes but the largest, which checks it. Clients without JAX, threads of one process, load the
coordination service of a job of 512 for real. Checkpoints and records are measured in one process.
All is loopback and this disk; `--hop` and `--disk` stand for a network in the table.

Processes outnumber the cores here: each hop of a collective waits for the other processes' turns on
them, so that the seconds of a collective are no model of machines. The table takes the processor
time of one process instead, and adds `--hop` for each of the others.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

Row = Mapping[str, float]
Fits = Mapping[str, tuple[float, float]]
"""Value at no process, and what each adds, by name."""

_CALLS, _ROUNDS = 100, 5
# RetinaNet with momentum on COCO: bytes and arrays of a checkpoint, records, images of evaluation.
_BYTES, _ARRAYS, _RECORDS, _IMAGES, _BATCH = 272e6, 600, 118_287, 5_000, 8
_DETECTIONS = 100
# Arrays of a batch of detections that are gathered, and seconds of COCO's scores of 5,000 images
# (benchmarks/README.md, scoring.py).
_GATHERED, _SCORING = 5, 0.99
# Files of records that stay open (records/record_file.py).
_SHARDS = 128


def main() -> None:
    """Measures, fits, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--hop", type=float, default=50, help="microseconds between two machines")
    parser.add_argument("--disk", type=float, default=1, help="GB/s of the shared disk")
    parser.add_argument("--member", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        index, count, coordinator = arguments.member
        _member(int(index), int(count), coordinator)
        return
    alone = _disk()
    _print("one process", {1: alone})
    fits = _check({size: _job(size) for size in arguments.sizes})
    services = {clients: _service(clients) for clients in arguments.clients}
    _print("clients of one service", services)
    rest = arguments.hop / 1e6, arguments.disk, fits
    _print("processes", {size: _costs(size, *rest, row, alone) for size, row in services.items()})
    print(f"\n{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")


# ---- a job of real processes --------------------------------------------------------------------


def _job(size: int) -> Row:
    """Returns what process 0 of a job of this machine has measured."""
    words = [sys.executable, __file__, "--member"]
    place = _free_address()
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": environment}
    jobs = [
        subprocess.Popen([*words, str(number), str(size), place], **pipes) for number in range(size)
    ]
    said = [job.communicate(timeout=500)[0] for job in jobs]
    row: Row = json.loads(said[0].splitlines()[-1])
    return row


def _member(index: int, count: int, coordinator: str) -> None:
    """Joins a job, measures, and prints the row of process 0 as JSON."""
    import jax

    from stillbox.devices.job import AsyncAllGather, gather_rows, join_job, require_same
    from stillbox.devices.launcher import ProcessInfo

    join_job(ProcessInfo(index, count, coordinator, local_count=count, local_index=index))
    jax.devices()
    began = time.monotonic()
    require_same("start", "", fix="")
    row = {"mesh, s": time.monotonic() - began, "start, CPU s": time.process_time()}
    gathering = AsyncAllGather(2)

    def agree() -> None:
        gathering.start(0, 0.0)
        gathering.results()

    batch = np.zeros((_BATCH, _DETECTIONS, 6), np.float32)
    actions = {"same": lambda: require_same("experiment", "x" * 8_000, fix="")}
    actions |= {"agree": agree, "rows": lambda: gather_rows(batch)}
    for name, action in actions.items():
        wall, cpu = _repeat(action, _CALLS if name == "agree" else _CALLS // 5)
        row |= {f"{name}, ms": wall, f"{name}, CPU ms": cpu}
    row["descriptors"] = len(list(Path("/proc/self/fd").iterdir()))
    if index == 0:
        print(json.dumps(row))
    jax.distributed.shutdown()


def _repeat(action: Callable[[], object], calls: int) -> tuple[float, float]:
    """Returns milliseconds and processor milliseconds of a call, the least of the rounds."""
    action()
    measured = []
    for _ in range(_ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            action()
        measured.append((time.perf_counter() - wall, time.process_time() - cpu))
    wall, cpu = np.min(measured, axis=0) * 1e3 / calls
    return wall, cpu


def _check(jobs: Mapping[int, Row]) -> Fits:
    """Prints what was measured, and a line through all sizes but the largest at that size.

    Returns the lines through all sizes.
    """
    *fitted, last = sorted(jobs)
    model = {name: _value(_line(jobs, fitted, name), last) for name in jobs[last]}
    _print("a job of this machine", {**jobs, f"model of {last}": model})
    return {name: _line(jobs, list(jobs), name) for name in jobs[last]}


def _line(jobs: Mapping[int, Row], sizes: Sequence[int], name: str) -> tuple[float, float]:
    each, base = np.polyfit(sizes, [jobs[size][name] for size in sizes], 1)
    return float(base), float(each)


def _value(line: tuple[float, float], size: int) -> float:
    return line[0] + line[1] * size


def _print(title: str, columns: Mapping[object, Row]) -> None:
    print(f"\n| {title} | {' | '.join(map(str, columns))} |\n|---|{'---|' * len(columns)}")
    for name in next(iter(columns.values())):
        print(f"| {name} | {' | '.join(f'{row[name]:.3g}' for row in columns.values())} |")


# ---- the coordination service under many clients ------------------------------------------------


def _service(clients: int) -> Row:
    """Returns seconds, and processor seconds of the service, of each part of a start."""
    place, (ours, theirs) = _free_address(), Pipe()
    process = Process(target=_serve, args=(place, clients, theirs), daemon=True)
    process.start()
    ours.recv()
    with ThreadPoolExecutor(clients) as pool:
        row = _load(place, clients, ours, pool)
    ours.send("end")
    process.join(60)
    process.kill()
    return row


def _serve(place: str, clients: int, parent: Connection) -> None:
    from jax._src.distributed import _jax

    service = _jax.get_distributed_runtime_service(
        place, clients, heartbeat_timeout=30, shutdown_timeout=30, cluster_register_timeout=300
    )
    parent.send("ready")
    while parent.recv() != "end":
        parent.send(time.process_time())
    service.shutdown()


def _load(place: str, clients: int, service: Connection, pool: ThreadPoolExecutor) -> Row:
    """Does in threads what processes do: joins, exchanges devices, places and gloo's addresses."""
    from jax._src.distributed import _jax

    row: dict[str, float] = {}

    def timed(name: str, action: Callable[[int], object], times: float = 1.0) -> list[object]:
        service.send("cpu")
        cpu = service.recv()
        began = time.monotonic()
        results = list(pool.map(action, range(clients)))
        seconds = time.monotonic() - began
        service.send("cpu")
        after = service.recv()
        row[f"{name}, s"], row[f"{name}, CPU s"] = seconds * times, (after - cpu) * times
        return results

    def connect(number: int) -> object:
        client = _jax.get_distributed_runtime_client(
            place, number, init_timeout=300, heartbeat_timeout=30, use_compression=True,
            shutdown_on_destruction=False,
        )  # fmt: skip
        client.connect()
        return client

    joined = timed("join", connect)

    def exchange(number: int) -> None:
        client = joined[number]
        client.key_value_set_bytes(f"local/{number}", b"d" * 200)
        if number == 0:
            parts = [
                client.blocking_key_value_get_bytes(f"local/{i}", 60_000) for i in range(clients)
            ]
            client.key_value_set_bytes("global", b"".join(parts))
        client.blocking_key_value_get_bytes("global", 300_000)
        client.key_value_set(f"place/{number}", "pid 1 on a machine")
        client.blocking_key_value_get("place/0", 300_000)

    timed("devices and places", exchange)
    # The size of a value was read from the store of real jobs: 154 + 8 P bytes.
    sample = min(clients - 1, 64)

    def mesh(number: int) -> None:
        for other in range(1, sample + 1):
            joined[number].blocking_key_value_get_bytes(
                f"gloo/{(number + other) % clients}", 300_000
            )

    value = os.urandom(154 + 8 * clients)
    timed("keys", lambda number: joined[number].key_value_set_bytes(f"gloo/{number}", value))
    timed("gloo's addresses", mesh, (clients - 1) / sample)
    timed("barrier", lambda number: joined[number].wait_at_barrier("end", 300_000))
    timed("leave", lambda number: joined[number].shutdown())
    return row


# ---- one process --------------------------------------------------------------------------------


def _disk() -> Row:
    """Returns seconds of a checkpoint of 64 MiB, and of opening 100,000 records."""
    from stillbox.checkpoints.model_directory import ModelDirectory

    arrays = {"params": {f"p{number}": np.zeros(2**20, np.float32) for number in range(16)}}
    with tempfile.TemporaryDirectory() as folder:
        directory = ModelDirectory.create(folder, experiment="", label_map="", versions={})
        began = time.perf_counter()
        directory.save(1, arrays, {})
        written = time.perf_counter()
        directory.restore(1, arrays)
        read = time.perf_counter()
        directory.close()
    size = 2**26 / 1e9
    words = [sys.executable, Path(__file__).with_name("growth_records.py"), "100000"]
    said = subprocess.run(words, capture_output=True, check=True).stdout
    opened = json.loads(said.splitlines()[-1])
    row = {"write, GB/s": size / (written - began), "read, GB/s": size / (read - written)}
    return row | {name: opened[name] for name in ("first opening, s", "opening, s")}


# ---- the model ----------------------------------------------------------------------------------


def _costs(size: int, hop: float, disk: float, fits: Fits, service: Row, alone: Row) -> Row:
    """Returns the costs of a job with one process a machine; `hop` in seconds, `disk` in GB/s."""

    def collective(name: str) -> float:
        """Seconds: the work of a process, and a hop for each of the others."""
        return _value(fits[f"{name}, CPU ms"], size) / 1e3 + (size - 1) * hop

    batches = -(-_IMAGES // (size * _BATCH))
    opening, reading = _RECORDS / 1e5, _BYTES / 1e9 / alone["read, GB/s"]
    return {
        "start: processor s of the service": sum(
            value for name, value in service.items() if name.endswith("CPU s")
        ),
        "start: three comparisons of 8 kB, s": 3 * collective("same"),
        "descriptors of process 0": _value(fits["descriptors"], size) + _SHARDS,
        "agreement on a stop, ms a step": 1e3 * collective("agree"),
        "records: index made, s": opening * alone["first opening, s"],
        "records: requests for it to a shared disk, millions": _RECORDS * size / 1e6,
        "records: index there, s": opening * alone["opening, s"],
        "checkpoint: written beside the steps, s": _BYTES / 1e9 / min(disk, alone["write, GB/s"]),
        "checkpoint: read by all, s": max(reading, size * _BYTES / 1e9 / disk),
        "checkpoint: gathered with devices.shard=optimizer, s": _ARRAYS / 2 * collective("agree"),
        "evaluation: detections gathered, s": batches * _GATHERED * collective("rows"),
        "evaluation: scores, s": _SCORING,
    }


def _free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


if __name__ == "__main__":
    main()

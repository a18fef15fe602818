"""Fuzzes readers, guided by the code that an input reaches.

`python -m tools.fuzz.run coco,voc 600` fuzzes two of them for ten minutes of processor time each.
Needs atheris. A failure is an exception other than `UserError`, an input that takes over a second,
one that needs over a gigabyte more memory, or one that takes more than its size allows
(`tools/fuzz/costs.py`). The first input of each kind is kept in
`FOLDER/NAME-failures/` with its traceback, and the fuzzer goes on.
"""

import argparse
import hashlib
import importlib.util
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

SECONDS = 1.0
MEMORY_BYTES = 1 << 30


def fuzz(name: str, seconds: float, output: Path) -> None:
    """Fuzzes one reader in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["stillbox", "yaml", "zipfile", "tarfile", "pickle"]):
        from stillbox.errors import UserError
        from tools.fuzz.costs import Budget, Cost, cost_of
        from tools.fuzz.mutations import mutate_json
        from tools.fuzz.readers import READERS
    reader = READERS[name]
    scratch = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))  # noqa: PTH112
    os.environ["XDG_CACHE_HOME"] = str(scratch)
    corpus, failures = output / name, output / f"{name}-failures"
    for folder in (corpus, failures, scratch / "seeds"):
        folder.mkdir(parents=True, exist_ok=True)
    seeds = reader.seeds(scratch / "seeds")
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    known: set[str] = set()

    def keep(data: bytes, kind: str, text: str) -> None:
        if kind not in known:
            known.add(kind)
            stem = hashlib.sha256(kind.encode()).hexdigest()[:12]
            (failures / stem).write_bytes(data)
            (failures / f"{stem}.txt").write_text(f"{kind}\n{text}")

    def attempt(data: bytes) -> None:
        try:
            reader.read(data, scratch)
        except UserError:
            pass
        except (Exception, RecursionError) as error:
            frames = traceback.extract_tb(error.__traceback__)
            own_frames = [frame for frame in frames if "/stillbox/" in frame.filename] or frames
            place = f"{Path(own_frames[-1].filename).name}:{own_frames[-1].lineno}"
            keep(data, f"{type(error).__name__} at {place}", traceback.format_exc())

    def cost(data: bytes) -> Cost:
        return cost_of(lambda: attempt(data))

    def once(data: bytes) -> None:
        spent = cost(data)
        if spent.seconds > SECONDS:
            over = "over 3" if spent.seconds > 3 else "over 1"
            keep(data, f"slow ({over} s)", f"{spent.seconds:.2f} s")
        if budget.excess(len(data), spent) and (excess := budget.excess(len(data), cost(data))):
            keep(data, excess, f"{len(data):,} bytes: {spent}")
        if time.process_time() > seconds:
            # Wall-clock time, libFuzzer's own limit, is shorter on a busy machine.
            raise KeyboardInterrupt

    # The first reading imports modules.
    cost(seeds[0])
    budget = Budget(map(cost, seeds))
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES,) * 2)
    flags = ["-timeout=60", "-rss_limit_mb=0", "-print_final_stats=1", "-max_len=20000"]
    flags += [f"-artifact_prefix={failures}/", "-verbosity=1", "-reload=0"]

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        changed = mutate_json(data, random.Random(seed)) if seed % 4 else None
        return changed[:most] if changed else bytes(atheris.Mutate(data, most))

    atheris.Setup([sys.argv[0], str(corpus), *flags], once, custom_mutator=mutate)
    atheris.Fuzz()


def _children_seconds() -> float:
    """Returns the processor time of all processes that this one has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Fuzzes each reader in a process of its own, again after a crash, until its time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", help="of readers, with commas between")
    parser.add_argument("seconds", type=float, help="of processor time for each of them")
    parser.add_argument("--output", type=Path, default=Path("fuzz"))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        fuzz(arguments.names, arguments.seconds, arguments.output)
        return
    if importlib.util.find_spec("atheris") is None:
        sys.exit("atheris is not installed here: pip install atheris")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.names.split(","):
        end = _children_seconds() + arguments.seconds
        while (left := end - _children_seconds()) > 5:
            words = [sys.executable, "-m", "tools.fuzz.run", name, str(left), "--inside"]
            words += ["--output", str(arguments.output)]
            with (arguments.output / f"{name}.log").open("a") as log:
                subprocess.run(words, stderr=log, stdout=log, check=False)


if __name__ == "__main__":
    main()

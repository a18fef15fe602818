"""Builds sdists and wheels of the last commit, and shows that anybody gets the same bytes.

`python -m tools.distribution dist` builds them twice, in folders with different names and under
different umasks and time zones, compares the results and writes them with `SHA256SUMS`, in place of
earlier ones. There is one sdist of stillbox and one of stillbox-legacy, and a wheel is built from
each.
"""

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"stillbox": ".", "stillbox_legacy": "packages/legacy"}
"""The folder with the `pyproject.toml` of each package."""
SURROUNDINGS = (("first", 0o022, "UTC"), ("the second", 0o077, "Asia/Tokyo"))


def git(*words: str, folder: str = ".") -> bytes:
    """Returns the output of git in a folder of this repository."""
    command = ["git", *words]
    return subprocess.run(command, cwd=ROOT / folder, check=True, stdout=subprocess.PIPE).stdout


def build(folder: Path, umask: int, zone: str) -> dict[str, bytes]:
    """Builds the last commit in a new folder and returns the files by name.

    `SOURCE_DATE_EPOCH` is the time of the commit: the only time in the files.
    """
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
        archive.extractall(folder, filter="data")
    epoch = git("log", "-1", "--format=%ct").decode().strip()
    for place in PACKAGES.values():
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", "built", place],
            cwd=folder,
            check=True,
            umask=umask,
            env=os.environ | {"SOURCE_DATE_EPOCH": epoch, "TZ": zone},
            stdout=subprocess.DEVNULL,
        )
    return {path.name: path.read_bytes() for path in sorted((folder / "built").iterdir())}


def missing_files(wheel: bytes, package: str) -> set[str]:
    """Returns the files of a package that git tracks and its wheel lacks."""
    tracked = git("ls-files", package, folder=PACKAGES[package]).decode().split()
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        return set(tracked) - set(archive.namelist())


def main() -> str | None:
    """Returns what is wrong, or None."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="the folder for the files")
    output = parser.parse_args().output
    if git("status", "--porcelain"):
        print("the last commit is built, without what is changed since")
    with tempfile.TemporaryDirectory() as temporary:
        first, second = (
            build(Path(temporary, name), umask, zone) for name, umask, zone in SURROUNDINGS
        )
    if first != second:
        return f"built twice, these differ: {[n for n in first if first[n] != second.get(n)]}"
    for wheel in (name for name in first if name.endswith(".whl")):
        if missing := missing_files(first[wheel], wheel.partition("-")[0]):
            return f"{wheel} lacks {sorted(missing)}"
    output.mkdir(parents=True, exist_ok=True)
    # `make smoke` takes the wheel that it finds.
    for earlier in output.glob("stillbox[-_]*"):
        earlier.unlink()
    sums = [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in first.items()]
    for name, content in first.items():
        (output / name).write_bytes(content)
    (output / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print("built twice with the same bytes:", *sums, sep="\n")
    return None


if __name__ == "__main__":
    sys.exit(main())

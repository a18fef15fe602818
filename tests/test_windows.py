"""The branches for Windows, in a process of Linux that lacks what Windows lacks.

Each test runs in a process of its own, see `as_on_windows`. It shows that nothing else is called,
and what stands for it; Windows itself is not run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]

IMPORTS = """
import pkgutil
from importlib import import_module
import stillbox, stillbox_legacy

def names(package):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.startswith(("stillbox.scaling", "stillbox_legacy.model_maker.")):
            yield module.name

for package in (stillbox, stillbox_legacy):
    for name in names(package):
        import_module(name)
"""

FOLDERS = """
from pathlib import Path
from stillbox.checkpoints.files import DirectoryLock, replace_durably
from stillbox.errors import UserError
from stillbox.records.files import new_folder, partial_folder, remove_partial_files, write_whole

def refused(act):
    try:
        act()
    except UserError as error:
        return error
    raise AssertionError("it was not refused")

for text in (b"first", b"second"):
    with new_folder(Path("out")) as folder:
        write_whole(folder / "a", text)
assert Path("out/a").read_bytes() == b"second"
with new_folder(Path("out"), written=lambda folder: ["a"]) as folder:
    write_whole(folder / "b", b"third")
assert sorted(path.name for path in Path("out").iterdir()) == ["b"]

def fail():
    with new_folder(Path("out")) as folder:
        (folder / "half").touch()
        raise UserError("no", where=str(folder))

assert refused(fail).where.endswith("/out")
assert sorted(path.name for path in Path().iterdir()) == ["out"]
# Of a process that may be alive: a folder has no lock.
Path(".out.stillbox-partial").mkdir()
Path(".out.stillbox-partial/half").touch()

def write():
    with partial_folder(Path("out")):
        pass

assert ".out.stillbox-partial" in refused(write).fix

held = DirectoryLock(Path("out"))
assert "process" in refused(lambda: DirectoryLock(Path("out"))).what
held.release()
DirectoryLock(Path("out")).release()
replace_durably(Path("out/b"), "fourth")
assert Path("out/b").read_text() == "fourth"
Path("out/.b.1.2.partial").touch()
remove_partial_files(Path("out"))
assert not Path("out/.b.1.2.partial").exists()
"""

SYSTEM = """
import os, signal, time
from stillbox import machine_memory, system
from stillbox.devices.setup import fault_of_folder, peak_memory
from stillbox.serving.connections import ConnectionLimits, Server
from stillbox.training.signals import StopRequest

assert machine_memory.total_memory() <= 32 * 2**30
assert (system.resident_bytes(), system.peak_bytes()) == (2 * 2**30, 3 * 2**30)
assert peak_memory().nbytes == 3 * 2**30
assert system.allowed_processors() == os.cpu_count()
assert ConnectionLimits.of_process(1.0).most == 1000
assert fault_of_folder(__import__("pathlib").Path(".")) == ""
for number in (signal.SIGTERM, signal.SIGBREAK):
    with StopRequest(grace=1000) as stop:
        os.kill(os.getpid(), number)
        # Another thread may get it, some moments before this one handles it.
        while stop.signal is None:
            time.sleep(0.01)
        assert stop.signal == number
server = Server(lambda *_: None, ConnectionLimits(seconds=1.0, most=10))
with server.capture_signals():
    os.kill(os.getpid(), signal.SIGBREAK)
    while not server.should_exit:
        time.sleep(0.01)
    server._captured_signals.clear()
with open("numbers", "wb+") as file:
    file.write(bytes(range(100)))
    file.flush()
    before = os.lseek(file.fileno(), 0, os.SEEK_CUR)
    assert system.read_at(file.fileno(), 3, 40) == bytes([40, 41, 42])
    assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == before
"""

PROCESSES = """
from functools import partial
from stillbox.errors import UserError
from stillbox.inputs.processes import InputProcesses

try:
    next(InputProcesses(2, partial(print)).make(None, range(3), most_bytes=1, ahead=1))
except UserError as error:
    assert error.where == "data.processes"
"""

HOUR = """
from stillbox.cli.main import main
for line in '''data scenes --output demo/data --train 8 --val 4
check demo_scenes
train demo_scenes --model-dir model --set train.steps=2 --set train.batch_size=2
evaluate model --output report
predict model scene.png --min-score 0 --output seen
export model --format onnx --output exported
pack model x.stillbox
doctor model'''.splitlines():
    assert main(line.split()) == 0, line
"""


def run_as_on_windows(code, folder):
    command = [sys.executable, "-c", f"import tests.as_on_windows\n{code}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "code",
    [IMPORTS, FOLDERS, SYSTEM, PROCESSES],
    ids=["imports", "folders", "system", "processes"],
)
def test_nothing_calls_what_windows_lacks(code, tmp_path):
    run_as_on_windows(code, tmp_path)


@pytest.mark.slow
def test_the_first_hour_calls_nothing_that_windows_lacks(tmp_path):
    Image.new("RGB", (200, 160), "teal").save(tmp_path / "scene.png")
    run_as_on_windows(HOUR, tmp_path)

"""Two real processes train one model: as one does, and both end when one of them cannot go on."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.evaluation.history import HISTORY, read_history
from tests.helpers import free_port
from tests.small import small_overrides

STEPS = 6
# A detector that is compiled in no time, for tests in which any detector will do.
PARTS = Path(__file__).parents[1] / "one_box.py"
ONE_BOX = (*("model.kind=one_box", "model.num_classes=6"), "model.resizer={height: 64, width: 64}")

# Command lines one after the other, without charts, in the default form of every operation: forms
# for a CPU take three times as long to be traced and compiled.
PLAIN = """
import json, sys
from stillbox.cli.main import main
from stillbox.evaluation import charts
from stillbox.lowering import lowering
charts.figure_svg, charts.figure_png = lambda *_: "<svg ></svg>", lambda *_: b""
with lowering(portable=True):
    sys.exit(max(map(main, map(json.loads, sys.argv[1:]))))
"""


def run_plainly(*lines):
    """Returns the words that run command lines with `PLAIN`."""
    return [sys.executable, "-c", PLAIN, *map(json.dumps, lines)]


def command(scenes, directory, *overrides, steps=STEPS, parts=None, words=()):
    changes = small_overrides(
        scenes,
        f"train.steps={steps}",
        "train.batch_size=4",
        "train.checkpoint_every=2",
        "train.log_every=1",
        "train.optimizer={kind: momentum, schedule: {kind: constant, learning_rate: 0.01}}",
        "evaluation.batch_size=4",
        # Odd: the last batch is half empty in one process and wholly so in the other.
        "evaluation.max_examples=5",
        "data.workers=1",
        *overrides,
    )
    if parts is not None:
        changes = [*(text for text in changes if not text.startswith("model.")), *ONE_BOX]
    if "--minutes" in words:
        changes.remove(f"train.steps={steps}")
        changes.remove("train.steps=4")
    sets = [word for change in changes for word in ("--set", change)]
    sets += ["--import", str(parts)] if parts is not None else []
    return ["train", "demo_scenes", "--model-dir", str(directory), *words, *sets]


@pytest.fixture
def start():
    running = []

    def start(*arguments, count=2, environments=({}, {}), **named):
        port = free_port()
        for index in range(count):
            flags = f"--coordinator 127.0.0.1:{port} --processes {count} --process {index}".split()
            words = run_plainly([*command(*arguments, **named), *flags])
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            environment = os.environ | environments[index]
            running.append(subprocess.Popen(words, env=environment, **pipes))
        return running[-count:]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def wait_for_checkpoint(directory, step, processes):
    while not is_model_directory(directory) or step not in ModelDirectory.open(directory).steps():
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def ends(processes, timeout=120):
    outputs = [process.communicate(timeout=timeout) for process in processes]
    return [
        (process.returncode, errors)
        for process, (_, errors) in zip(processes, outputs, strict=True)
    ]


def arrays(directory):
    checkpoint = ModelDirectory.open(directory).checkpoint(STEPS)
    return {
        (section, name): array
        for section in checkpoint.sections
        for name, array in checkpoint.read(section).items()
    }


def scores(directory):
    return dict(read_history(directory / HISTORY).evaluations)


def test_two_processes_give_the_results_of_one_and_one_process_resumes(scenes, tmp_path, start):
    two, alone = tmp_path / "two", tmp_path / "one"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags}
    # Each batch norm has the statistics of its replica, and there are two replicas either way.
    processes = start(scenes, two, "train.steps=4")
    (code, said), (other_code, other_said) = ends(processes)
    assert (code, other_code) == (0, 0), said + other_said
    assert "batch 4 on 2 cpu devices of 2 processes" in said
    # Half of the images: the other process has counted the rest.
    assert "process 0: inputs: 8 images with" in said
    assert other_said == ""
    # The same run in one process with two devices, resumed from two processes and not.
    words = run_plainly(*(command(scenes, directory) for directory in (two, alone)))
    subprocess.run(words, check=True, capture_output=True, env=environment)
    expected, divided = arrays(alone), arrays(two)
    assert expected.keys() == divided.keys()
    for key, array in expected.items():
        np.testing.assert_allclose(divided[key], array, rtol=1e-4, atol=1e-6, err_msg=str(key))
    assert scores(two)[STEPS] == pytest.approx(scores(alone)[STEPS], abs=1e-6)


@pytest.mark.slow
def test_two_processes_agree_on_the_steps_that_fit_into_minutes(scenes, tmp_path, start):
    # Two epochs of ten images end before the minutes.
    epochs = "data.train.num_epochs=2"
    processes = start(scenes, tmp_path / "run", epochs, parts=PARTS, words=("--minutes", "5"))
    (code, said), (other_code, other_said) = ends(processes)
    assert (code, other_code) == (0, 0), said + other_said
    planned = int(re.search(r"5 minutes: ([\d,]+) steps", said)[1].replace(",", ""))
    assert f"steps: {planned}\n" in (tmp_path / "run/experiment.yaml").read_text()
    assert ModelDirectory.open(tmp_path / "run").latest_step() == 5


@pytest.mark.slow
def test_a_killed_process_ends_the_job_and_a_stop_of_one_stops_both(scenes, tmp_path, start):
    directory = tmp_path / "run"
    processes = start(scenes, directory, steps=100_000, parts=PARTS)
    wait_for_checkpoint(directory, 2, processes)
    processes[1].kill()
    began = time.monotonic()
    ((code, said), (other_code, _)) = ends(processes)
    assert (code, other_code) == (128 + signal.SIGKILL, -signal.SIGKILL)
    assert f"process 1 (pid {processes[1].pid} on " in said
    assert "was killed, or its machine is gone; the job has ended" in said
    assert time.monotonic() - began < 60

    processes = start(scenes, directory, steps=100_000, parts=PARTS)
    wait_for_checkpoint(directory, ModelDirectory.open(directory).latest_step() + 2, processes)
    processes[1].send_signal(signal.SIGTERM)
    (said, errors), _ = (process.communicate(timeout=120) for process in processes)
    assert [process.returncode for process in processes] == [143, 143], errors
    stopped = ModelDirectory.open(directory).latest_step()
    assert f"stopped by SIGTERM after step {stopped}; run again to go on" in said
    # All steps that were done are in the checkpoint.
    assert max(line["step"] for line in read_history(directory / HISTORY).training) == stopped


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="takes disk space from a running process")
def test_no_room_and_then_a_damaged_record_end_the_job_and_nothing_is_lost(scenes, tmp_path, start):
    import resource

    records, directory = tmp_path / "records", tmp_path / "run"
    shutil.copytree(scenes, records)
    processes = start(records, directory, "train.log_every=1000", steps=100_000, parts=PARTS)
    wait_for_checkpoint(directory, 2, processes)
    # From now on no file of the process that writes may grow beyond a kilobyte.
    resource.prlimit(processes[0].pid, resource.RLIMIT_FSIZE, (1024, 1024))
    (code, said), (other_code, other_said) = ends(processes)
    assert (code, other_code) == (2, 2), said
    assert re.search(r"the checkpoint of step \d+ cannot be written: File too large", said)
    assert "make room on the disk and start again; finished checkpoints:" in said
    for text in (said, other_said):
        assert "Traceback" not in text and "stack trace" not in text
        assert re.search(r"process 0 \(pid .*\) ended with exit code 2, see its output; the", text)
    kept = ModelDirectory.open(directory).latest_step()
    assert kept >= 2

    processes = start(records, directory, steps=100_000, parts=PARTS)
    wait_for_checkpoint(directory, kept + 2, processes)
    (shard,) = records.glob("train.record*")
    os.truncate(shard, shard.stat().st_size // 2)
    (code, said), (other_code, other_said) = ends(processes)
    assert (code, other_code) == (2, 2), said
    assert f"resuming at step {kept}" in said
    assert re.search(rf"{shard}: record \d+ \(byte \d+\): unreadable record", said + other_said)
    assert "Traceback" not in said + other_said
    assert said.splitlines()[-1] == other_said.splitlines()[-1]


SLOW_DISK = """
import os, time
read, count = os.pread, 0
def pread(*arguments):
    global count
    count += 1
    if count == 60:
        time.sleep(40)
    return read(*arguments)
os.pread = pread
"""


@pytest.mark.slow
def test_a_process_that_waits_for_its_disk_prints_so_and_the_job_continues(scenes, tmp_path, start):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SLOW_DISK)
    path = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    environments = ({}, {"PYTHONPATH": path})
    processes = start(scenes, tmp_path / "run", environments=environments, steps=60)
    (code, said), (other_code, other_said) = ends(processes)
    assert (code, other_code) == (0, 0), said + other_said
    assert "still waiting after 3" in said and "the other processes (one of them is slow" in said
    where = re.escape(f"{scenes}/train.record-*")
    assert re.search(
        rf"process 1 of 2: still waiting after 3\d s: the next batch, from {where}", other_said
    )
    assert re.search(r"waiting for data 9\d% \(process 1\)|waiting for data 100% \(proc", said)

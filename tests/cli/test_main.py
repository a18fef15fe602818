"""The entry point and its exit codes, and what `stillbox completion` offers after some words."""

import argparse
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import stillbox as stillbox_package
from stillbox import __version__
from stillbox.cli import checks, main
from stillbox.cli.verbs import listed
from stillbox.devices.launcher import ProcessInfo
from stillbox.errors import UserError
from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import settings_of
from stillbox.training.signals import RunInterrupted


def test_a_wrong_or_missing_verb_leads_to_the_verbs(refused, stillbox):
    message = refused("trian", "demo_scenes")
    assert message.startswith("stillbox: there is no verb 'trian'\n  fix: did you mean 'train'")
    assert f"valid here: {', '.join(sorted(verb.name for verb in listed()))}" in refused("xyzzy")
    _, err = stillbox("--").ended(2)
    assert err.startswith("stillbox: VERB is missing\n  fix: give one of data, check, ")


def test_a_bare_command_shows_a_first_hour_and_where_the_rest_is(stillbox):
    code, out, err = stillbox()
    assert (code, err) == (0, "")
    verbs = re.findall(r"^  stillbox (\w+)", out, re.MULTILINE)
    assert verbs == ["train", "evaluate", "predict", "export", "serve"]
    assert "stillbox --help" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(("words", "message"), [
    ("train demo_scenes --modle-dir x",
     "there is no option --modle-dir\n  fix: did you mean '--model-dir'? "),
    ("recipes --jsn=1", "there is no option --jsn\n  fix: did you mean '--json'?"),
    ("weights save run", "--to is missing\n  fix: `stillbox weights save --help` shows what"),
    ("evaluate run more", "unrecognized arguments: more"),
    ("data", "VERB is missing\n  fix: give one of convert, check, stats"),
    ("data convert photos --ouput x",
     "there is no option --ouput\n  fix: did you mean '--output'?"),
    ("predict run https://x.org/a.jpg",
     "addresses are not taken: https://x.org/a.jpg\n  fix: give a file: curl "),
    ("train --data=https://x.org/a --model-dir x",
     "addresses are not taken: https://x.org/a\n"),
])  # fmt: skip
def test_a_wrong_command_line_is_one_message_with_its_remedy(refused, words, message):
    err = refused(*words.split())
    assert err.partition(": ")[2].startswith(message)
    assert "usage:" not in err


@pytest.mark.parametrize("verb", [verb.name for verb in listed()])
def test_every_verb_has_a_help(stillbox, verb):
    out, _ = stillbox(verb, "--help").ended()
    assert out.startswith(f"usage: stillbox {verb}")


def test_the_help_imports_neither_arrays_nor_other_verbs():
    code = (
        "import sys; sys.argv = ['stillbox', '--help']; from stillbox.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert "stillbox.cli.main" in loaded
    assert not {"numpy", "cv2", "jax", "yaml", "stillbox.cli.train"} & set(loaded)


def test_the_version_is_printed(stillbox):
    assert stillbox("--version").out == f"stillbox {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("bad", where="a.yaml:1:2", fix="mend it"), 2, "a.yaml:1:2: bad\n  fix: mend it"),
        (FloatingPointError("step 3: loss nan"), 3, "step 3: loss nan"),
        (OSError(errno.ENOSPC, "No space left on device"), 2,
         "No space left on device\n  fix: mak"),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), 2, "runs: Permission denied"),
        (OSError("no number"), 2, "no number"),
        (RuntimeError("RESOURCE_EXHAUSTED: 9 GiB\nmore"), 2, "the device has not enough memory"),
        (MemoryError(), 2, "this process has not enough memory: an allocation failed\n  fix: "),
        (MemoryError("Unable to allocate 45.8 GiB"), 2,
         "this process has not enough memory: Unable to allocate 45.8 GiB\n  fix: "),
        (RuntimeError("std::bad_alloc"), 2, "this process has not enough memory"),
        (RuntimeError("can't start new thread"), 2, "this process has not enough memory"),
        (ImportError("a.so: failed to map segment from shared object"), 2,
         "this process has not enough memory: a.so"),
        (RuntimeError("Unable to initialize backend 'tpu': INTERNAL: no libtpu.so"), 2,
         "JAX finds no tpu: Unable to initialize"),
        (RuntimeError("Unknown backend gpux"), 2, "JAX finds no gpux"),
    ],
)  # fmt: skip
def test_errors_become_one_message_and_a_code(stillbox, monkeypatch, error, code, message):
    def fail(arguments):
        raise error

    monkeypatch.setattr(checks, "run_config", fail)
    answer = stillbox("config", "demo_scenes")
    assert answer.code == code
    assert answer.err.startswith(f"stillbox config: {message}")


def test_an_interrupt_ends_with_130_and_prints_nothing(stillbox, monkeypatch):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(checks, "run_doctor", interrupt)
    assert stillbox("doctor") == (130, "", "")


@pytest.mark.parametrize("cause", [True, False], ids=["cause", "context"])
def test_an_interrupt_of_which_a_compiled_module_makes_another_error_is_one(
    stillbox, monkeypatch, cause
):
    def interrupt(arguments):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as stop:
            error = ImportError("Encountered an error while initializing the extension.")
            raise error from (stop if cause else None)

    monkeypatch.setattr(checks, "run_doctor", interrupt)
    assert stillbox("doctor") == (130, "", "")


@pytest.mark.parametrize("platform", ["tpu", "cuda", "rocm", "nonsense"])
def test_a_platform_that_this_machine_lacks_is_a_sentence(platform):
    done = subprocess.run(
        [sys.executable, "-c", PLATFORM],
        env=os.environ | {"JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode == 7:
        pytest.skip(f"this machine has {platform}")
    assert done.returncode == 2, done.stderr
    assert "stillbox doctor: JAX finds no " in done.stderr
    assert "fix: unset JAX_PLATFORMS" in done.stderr
    assert "Traceback" not in done.stderr


PLATFORM = """
import argparse, sys
from stillbox.cli import main
def run(parsed):
    import jax
    return 7 if jax.devices() else 0
sys.exit(main._run(argparse.Namespace(run=run), "doctor"))
"""

CLOSED = """
import os, sys
for number in map(int, sys.argv[1]):
    os.close(number)
words = [sys.executable, "-m", "stillbox.cli.main", "config", "demo_scenes"]
os.execv(sys.executable, words)
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "01", "12", "02", "012"])
def test_closed_standard_streams_are_opened_on_nothing(closed):
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, closed], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert ("1" in closed) == (done.stdout == "")
    assert done.stderr == ""


def test_a_file_gets_no_number_of_a_closed_stream(tmp_path):
    """Output would be written into it."""
    code = (
        "import os, sys; os.close(1); os.close(2); sys.argv = ['stillbox']; import stillbox.cli\n"
        f"file = open({str(tmp_path / 'checkpoint')!r}, 'wb'); assert file.fileno() > 2"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# Sends Ctrl-C at the beginning of an import.
INTERRUPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["config", "demo_scenes"], "argparse"),
        (["config", "demo_scenes"], "stillbox.errors"),
        (["config", "demo_scenes"], "stillbox.cli.checks"),
        (["config", "demo_scenes"], "stillbox.experiment.imports"),
        (["doctor"], "numpy"),
        (["doctor"], "numpy._core.multiarray"),
        (["doctor"], "numpy._core.shape_base"),
        (["doctor"], "jaxlib"),
        (["doctor"], "jax._src.core"),
    ],
)
def test_an_interrupt_of_a_program_that_starts_prints_no_traceback(tmp_path, words, module):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    folders = [str(tmp_path), str(Path(stillbox_package.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-m", "stillbox.cli.main", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders), "AT": module},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr in ("stillbox: stopped by SIGINT\n", "")


def test_an_interrupt_during_the_restart_waits_for_its_end():
    """With the handler that raises an exception, and an interpreter that cannot handle it yet."""
    code = """
import os, signal, sys
from stillbox.devices import process
signal.signal(signal.SIGINT, signal.default_int_handler)
process._on_demand, process._tuned = lambda: True, lambda: False
os.environ.pop("GLIBC_TUNABLES", None)
def restart(path, words):
    os.kill(os.getpid(), signal.SIGINT)
    sys.argv[0] = "stillbox"
    import stillbox.cli
process.os.execv = restart
process.restart_with_large_pages()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "stillbox: stopped by SIGINT\n")


@pytest.mark.parametrize(
    ("stop", "code"),
    [(RunInterrupted(signal.SIGTERM, "compiling"), 143), (KeyboardInterrupt(), 130)],
)
def test_a_signal_that_stops_one_process_ends_its_job_and_one_for_all_does_not(
    monkeypatch, stop, code
):
    failed, place = [], ProcessInfo(1, 2, "127.0.0.1:53000")
    watch = SimpleNamespace(fail=lambda code, lost: failed.append(code), close=lambda: None)
    monkeypatch.setattr("stillbox.devices.failures.FailureWatch", lambda place: watch)
    monkeypatch.setattr("stillbox.devices.job.join_job", lambda place: None)
    monkeypatch.setattr("jax.distributed.shutdown", lambda: None)

    def interrupt(arguments):
        raise stop

    for run in (interrupt, lambda arguments: code):
        parsed = argparse.Namespace(run=run)
        assert main.run_process(place, partial(main._run, parsed, "train", place)) == code
    assert failed == [code]


def test_unexpected_errors_are_raised(stillbox, monkeypatch):
    def fail(arguments):
        raise AssertionError("a bug")

    monkeypatch.setattr(checks, "run_config", fail)
    with pytest.raises(AssertionError, match="a bug"):
        stillbox("config", "demo_scenes")


def test_a_closed_pipe_is_no_error():
    # The output is smaller than the pipe's buffer, so that the loss shows only when it is flushed.
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "stillbox.cli.main", "config", "demo_scenes"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def offered(line, tmp_path, **variables):
    """Returns what stillbox answers the script of a shell at the end of a command line."""
    answer = tmp_path / "answer"
    asked = {
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "fish",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
    }
    program = [Path(sys.executable).with_name("stillbox")]
    subprocess.run(program, env=os.environ | asked | variables, cwd=tmp_path, check=True)
    return answer.read_text().splitlines()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("tr", ["train"]),
        ("train --st", ["--steps"]),
        ("train --model-dir x --ep", ["--epochs"]),
        ("train demo_s", ["demo_scenes"]),
        ("train tak", ["taken.yaml"]),
        ("data convert co", ["coco"]),
        ("data convert tak", ["taken.yaml"]),
        ("data convert --exif au", ["auto"]),
        ("data convert photos --format labelm", ["labelme"]),
        ("data convert coco --renum", ["--renumber"]),
        ("completion ba", ["bash"]),
        ("export run --format tf", ["tflite"]),
        ("weights get torchvision_resnet34", ["torchvision_resnet34"]),
        ("weights list faster", ["faster_rcnn"]),
        ("train --set train.precis", ["train.precision="]),
        ("train --set=train.precis", ["--set=train.precision="]),
        ("train --set train.ema_warmup=t", ["train.ema_warmup=true"]),
        ("ssd_resnet34 --model_d", ["--model_dir"]),
    ],
)
def test_verbs_options_values_and_files_are_completed(tmp_path, words, answer):
    (tmp_path / "taken.yaml").touch()
    assert offered(f"stillbox {words}", tmp_path) == answer


def test_a_setting_is_completed_up_to_its_next_dot(tmp_path):
    sections = offered("stillbox train --set ", tmp_path)
    assert {"data.", "model.", "train.", "name="} <= set(sections)
    # A shell would put a space after the only word.
    assert "train.optimizer.kind=" in offered("stillbox train --set train.o", tmp_path)


def test_bash_takes_the_end_of_a_word_from_its_last_equals_sign(tmp_path):
    breaks = {"_ARGCOMPLETE_COMP_WORDBREAKS": " \n=:", "_ARGCOMPLETE_SHELL": "bash"}
    line = "stillbox train --set model.backbone.kind=mobilenet_v1"
    assert offered(line, tmp_path, **breaks) == ["mobilenet_v1"]


def test_a_verb_is_completed_without_the_options_of_others(tmp_path):
    log = tmp_path / "imports"
    with log.open("w") as file:
        subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "stillbox.cli.main"],
            env=os.environ
            | {"_ARGCOMPLETE": "1", "COMP_LINE": "stillbox tr", "COMP_POINT": "11"}
            | {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "answer")},
            stderr=file,
            check=True,
        )
    imported = {line.rpartition("|")[2].strip() for line in log.read_text().splitlines()}
    assert "argcomplete" in imported
    assert not {"numpy", "jax", "yaml", "stillbox.cli.train"} & imported


def test_settings_are_those_that_the_schema_takes():
    words = set(settings_of(Experiment))
    assert {"train.steps=", "model.head.kind=weight_shared", "train.ema_warmup=true"} <= words


SHELLS = {
    "bash": "source {script}; COMP_LINE={line!r} COMP_POINT={point}; "
    '_python_argcomplete stillbox; printf "%s\n" "${{COMPREPLY[@]}}"',
    "fish": "source {script}; complete -C {line!r}",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_asks_stillbox(stillbox, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    script, line = tmp_path / "script", "stillbox train demo_sce"
    script.write_text(stillbox("completion", shell).out)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = SHELLS[shell].format(script=script, line=line, point=len(line))
    done = subprocess.run(
        [shell, "-c", words], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["demo_scenes"]


def test_the_script_of_zsh_completes_from_fpath_and_other_shells_are_refused(stillbox):
    assert stillbox("completion", "zsh").out.startswith("#compdef stillbox\n")
    _, err = stillbox("completion", "cmd").ended(2)
    assert "choose from" in err

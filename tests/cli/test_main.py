"""The entry point and its exit codes, and what `stillbox completion` offers after some words."""

import argparse
import errno
import os
import shlex
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
from stillbox.cli.completion import _brief, _Command, _fish, _zsh
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
    _, err = stillbox().ended(2)
    assert err.startswith("stillbox: VERB is missing\n  fix: give one of data, check, ")


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


ASKS = {
    "bash": "COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _stillbox; "
    'printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": "complete -C '{words}'",
}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_verbs_options_and_recipes(stillbox, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    script, _ = stillbox("completion", shell).ended()
    (tmp_path / "script").write_text(script)

    def offered(words):
        ask = ASKS[shell].format(words=words)
        program = f"source {tmp_path}/script; {ask}"
        answer = subprocess.run([shell, "-c", program], check=True, capture_output=True, text=True)
        return [line.split("\t")[0] for line in answer.stdout.splitlines()]

    assert offered("stillbox tr") == ["train"]
    assert offered("stillbox train --st") == ["--steps"]
    assert offered("stillbox train --model-dir x --ep") == ["--epochs"]
    assert offered("stillbox train demo_s") == ["demo_scenes"]
    assert "coco" in offered("stillbox data convert co")
    assert offered("stillbox completion ba") == ["bash"]
    assert "tflite" in offered("stillbox export --format tf")
    assert "label_studio" in offered("stillbox data convert --format lab")
    assert "torchvision_resnet34" in offered("stillbox weights get torch")
    assert "faster_rcnn" in offered("stillbox weights list fa")
    assert offered("stillbox train --set train.precis") == ["train.precision="]
    assert "train.optimizer." in offered("stillbox train --set train.o")
    # Bash divides words at the equals sign, and offers what comes behind it.
    kind = "model.backbone.kind = mobilenet_v" if shell == "bash" else "model.backbone.kind=mobil"
    assert any(word.endswith("mobilenet_v1") for word in offered(f"stillbox train --set {kind}"))


def test_settings_are_those_that_the_schema_takes():
    words = set(settings_of(Experiment))
    assert {"train.steps=", "model.head.kind=weight_shared", "train.ema_warmup=true"} <= words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_name_every_verb_and_quote_their_help(stillbox, shell):
    script = stillbox("completion", shell).out
    for word in ("data convert", "model_main", "--model-dir", "ssd_resnet34"):
        assert word.removeprefix("--") in script
    # Its own first lines aside, nothing that a shell would run.
    assert not any("`" in line for line in script.splitlines()[3:])


def test_the_script_of_zsh_completes_at_its_first_call_from_fpath(stillbox):
    first, *_, test, call, other, define, end = stillbox("completion", "zsh").out.splitlines()
    assert first == "#compdef stillbox"
    assert [test, call] == ["if [[ ${funcstack[1]} == _stillbox ]]; then", '  _stillbox "$@"']
    assert [other, define, end] == ["else", "  compdef _stillbox stillbox", "fi"]


@pytest.mark.parametrize(
    ("text", "brief"),
    [
        ("a model's folder; more", "a model's folder"),
        ("`--set` of 100%%: all", "--set of 100%"),
        ("word " * 30, ("word " * 15).strip() + " ..."),
    ],
)
def test_help_is_cut_at_a_clause_and_at_a_word(text, brief):
    assert _brief(text) == brief


def test_words_of_completion_are_quoted_and_unknown_shells_refused(stillbox):
    commands = [_Command("", {"train": r"a model's \ folder"})]
    assert r"-d 'a model\'s \\ folder'" in _fish(commands)
    (line,) = (line for line in _zsh(commands).splitlines() if "candidates=(" in line)
    quoted = line.partition("candidates=(")[2].partition(") ;;")[0]
    assert shlex.split(quoted) == [r"train:a model's \ folder"]
    _, err = stillbox("completion", "cmd").ended(2)
    assert "choose from" in err

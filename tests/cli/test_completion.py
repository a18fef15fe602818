"""`stillbox completion`: what a shell offers after some words."""

import shlex
import shutil
import subprocess

import pytest

from stillbox.cli.completion import _brief, _Command, _fish, _zsh
from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import settings_of

ASKS = {
    "bash": "COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _stillbox; "
    'printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": "complete -C '{words}'",
}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_verbs_options_and_recipes(stillbox, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    code, script, _ = stillbox("completion", shell)
    assert code == 0
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


def test_apostrophes_are_quoted(stillbox):
    commands = [_Command("", {"train": r"a model's \ folder"})]
    assert r"-d 'a model\'s \\ folder'" in _fish(commands)
    (line,) = (line for line in _zsh(commands).splitlines() if "candidates=(" in line)
    quoted = line.partition("candidates=(")[2].partition(") ;;")[0]
    assert shlex.split(quoted) == [r"train:a model's \ folder"]


def test_an_unknown_shell_is_refused(stillbox):
    code, _, err = stillbox("completion", "cmd")
    assert code == 2
    assert "choose from" in err

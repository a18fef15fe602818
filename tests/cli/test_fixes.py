"""Only the command line names options: below it, sentences refer to parameters and settings.

The source is parsed: no string outside `stillbox.cli` names an option, every parameter that one
refers to is an option of a verb, and the commands that messages show have their options.
"""

import argparse
import ast
import re
from functools import cache
from pathlib import Path

import pytest

import stillbox
from stillbox.checking.planning_records import records_of
from stillbox.cli.main import build_parser, wording_of
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.references import Command, Parameter, Setting, references, worded
from tests.helpers import is_absent

FLAG = re.compile(r"(?<![\w'-])--[a-z][\w-]*")
ROOT = Path(stillbox.__file__).parent
# Options of other programs, of the compiler, and variables of CSS.
FOREIGN = {
    *("checkpoints/downloading.py", "devices/process.py", "evaluation/charts.py", "extras.py"),
    *("experiment/known_weights.py", "scaling/ray_cluster.py"),
    *(
        "serving/bodies.py",
        "serving/foreign_bodies.py",
        "checkpoints/graphs/tfjs.py",
        "profiling/profiler.py",
    ),
}


@cache
def trees():
    """Returns the parsed modules below the command line, by path."""
    files = {file.relative_to(ROOT): file for file in ROOT.rglob("*.py")}
    return {
        name.as_posix(): ast.parse(file.read_text("utf-8"))
        for name, file in files.items()
        if name.parts[0] != "cli"
    }


def texts(tree):
    """Yields all strings but docstrings."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", 0), list)]
    said = {id(line.value) for body in bodies for line in body if isinstance(line, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def calls(name):
    """Yields the calls of a class of references with the module that has each."""
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
                yield module, node


@cache
def verbs():
    """Returns the parameters by verb, such as `data convert coco`."""

    def leaves(parser, words):
        inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        for action in inner:
            for name, child in action.choices.items():
                leaves(child, [*words, name])
        options = {word for action in parser._actions for word in action.option_strings}
        named = {word.lstrip("-").replace("-", "_") for word in options}
        options_of_verb[" ".join(words)] = named | {action.dest for action in parser._actions}
        if getattr(parser, "folder", None) is not None:
            leaves(parser.folder, [*words, "FOLDER"])

    options_of_verb = {}
    leaves(build_parser(), [])
    return options_of_verb


def test_no_sentence_below_the_command_line_names_an_option():
    named = {
        module: flags
        for module, tree in trees().items()
        if (flags := [text for text in texts(tree) if FLAG.search(text)])
    }
    assert named.keys() == FOREIGN, named.keys() - FOREIGN


def test_every_parameter_is_an_option_of_a_verb():
    known = set().union(*verbs().values())
    parameters = [(module, node.args[0].value) for module, node in calls("Parameter")
             if isinstance(node.args[0], ast.Constant)]  # fmt: skip
    assert len(parameters) > 100
    assert not [(module, name) for module, name in parameters if name not in known]


def test_commands_in_messages_have_their_options():
    commands = list(calls("Command"))
    assert len(commands) > 10
    for module, node in commands:
        if not isinstance(node.args[0], ast.Constant):  # the parser of marks
            continue
        verb = node.args[0].value
        if is_absent(verb):
            continue
        names = [name for name in verbs() if name == verb or name.startswith(f"{verb} ")]
        known = set().union(*(verbs()[name] for name in names))
        assert names, (module, verb)
        assert {option.arg for option in node.keywords} <= known, (module, verb)


@pytest.mark.parametrize(
    ("verb", "shown"),
    [
        ("train", "another --model-dir, --set train.steps=3"),
        ("model_main", "another --model_dir, --set train.steps=3"),
        ("export_saved_model", "another model dir, --set train.steps=3"),
        ("recipes", "another model dir, train.steps=3"),
    ],
)
def test_a_verb_names_its_own_options(verb, shown):
    text = f"another {Parameter('model_dir')}, {Setting('train.steps', 3)}"
    assert worded(text, wording_of(verb)) == shown


def test_an_original_names_the_folder_of_an_export_as_it_is_called_there():
    text = f"{Parameter('output')} and {Parameter('overwrite')}"
    shown = worded(text, wording_of("export_saved_model"))
    assert shown == "--export_dir and --override_export_dir"
    shown = worded(text, wording_of("exporter_main_v2"))
    assert shown == "--output_directory and --overwrite"


def test_references_survive_in_a_text_and_python_has_words_for_them():
    command = Command("data convert", "photos", output="OUT", overwrite=True)
    text = f"{Parameter('engine', 'ray')}; {Setting('a.b', [1, 'x'])}; {command}"
    parameter, setting, again = references(text)
    assert (parameter, setting) == (Parameter("engine", "ray"), Setting("a.b", "[1, x]"))
    assert again.words == "data convert photos"
    assert again.options == {"output": "OUT", "overwrite": True}
    python = (
        "engine=ray; a.b=[1, x]; `stillbox data convert photos` with output=OUT, overwrite=True"
    )
    assert worded(text) == python
    assert not set(python) & set("\u2060\u2061\u2062\u2063\u2064")
    shown = worded(text, wording_of("train"))
    assert shown.endswith("`stillbox data convert photos --output OUT --overwrite`")
    assert "--set a.b='[1, x]'" in shown


def test_python_is_told_its_own_words(tmp_path):
    calls = (
        lambda: stillbox.export(tmp_path, format="foo"),
        lambda: stillbox.train("demo_scenes", tmp_path / "run", workers=3),
        lambda: stillbox.train("demo_scenes", tmp_path / "run", steps=3, epochs=4),
        lambda: stillbox.train("demo_scenes", tmp_path / "run", steps=3, minutes=4),
        lambda: stillbox.read_experiment("demo_scenes", changes_of(["train.batchsize=8"])),
        lambda: stillbox.load("demo_scenes"),
        lambda: stillbox.evaluate(tmp_path / "nothing"),
    )
    for call in calls:
        with pytest.raises(UserError) as caught:
            call()
        assert "--" not in str(caught.value)


@pytest.mark.parametrize("formats", [("a.txt", "KITTI"), ("rows.csv", "format=")])
def test_training_names_the_command_whose_options_it_lacks(tmp_path, formats):
    from tests.records.test_folder import voc_folder

    name, said = formats
    folder = voc_folder(tmp_path / "photos")
    rows = "filename,class,ymin,xmin,ymax,xmax\na.png,cat,1,2,30,40\n"
    (folder / name).write_text(
        rows if name.endswith("csv") else "Car 0 0 0 1 2 3 4 1 1 1 1 1 1 1\n"
    )
    with pytest.raises(UserError, match=said) as caught:
        records_of(folder, tmp_path / "model/data")
    if "format=" in str(caught.value):
        shown = caught.value.describe(wording_of("train"))
        assert f"`stillbox data convert {folder} --output RECORDS`" in shown

"""A message names flags that the running verb has.

The source is parsed: the flags in its strings belong to the function, class or table that has them,
and a verb reaches what its `run` refers to, directly or through others.
"""

import argparse
import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import stillbox
from stillbox.checking.planning_records import records_of
from stillbox.cli.main import build_parser, own_flags
from stillbox.errors import UserError
from tests.helpers import is_absent

FLAG = re.compile(r"(?<![\w'-])--[a-z][\w-]*")
QUOTED = re.compile(r"`[^`]*`|='[^']*'")
COMMAND = re.compile(r"`stillbox ([^`]*)`")
ROOT = Path(stillbox.__file__).parent
JOBS = ("train", "model_main", "retinanet", "ssd_resnet34", "evaluate")
TRAINING = ("train", "model_main", "retinanet", "ssd_resnet34")
SETS = ("data convert coco", "data convert voc")
STORED = tuple(f"experiment.{module}" for module in ("overrides", "pipeline_config", "updating"))
ONLY = {
    # Settings of an export are checked where it is made, not where it is read.
    "exporting.settings.ExportSettings": ("export",),
    "exporting.program.ExportProgram": ("export",),
    "exporting.verification.agree": ("export",),
    "exporting.export._check_platforms": ("export",),
    # The originals' commands make no integers of a detector that has no ranges.
    "exporting.images.calibration_images": ("export", "benchmark"),
    # A benchmark looks whether the place is free.
    "exporting.export.check_free": (
        "export",
        "export_saved_model",
        "exporter_main_v2",
        "export_tflite_graph_tf2",
    ),
    "exporting.backend.find_loader": ("predict", "evaluate"),
    "api.load_model": ("evaluate", "predict", "export", "serve"),
    "api._is_export": ("predict", "evaluate"),
    # The folder is given with --data.
    "checking.planning_records._finished": ("train",),
    "checking.planning_records.refuse_other_source": ("train",),
    # Policies that stop are options of conversions.
    "records.problems.ConversionLog": (*SETS, "data convert FOLDER"),
    "predicting.images._nothing_in": ("predict",),
    # The others give no length, or one that is checked before.
    "training.length.set_length": ("train",),
    # Flags of mpirun and srun.
    "devices.process.binding_warning": (),
    # Flags of npm and pip.
    "checkpoints.downloading._command": (),
    "experiment.known_weights._FETCHING": (),
    "devices.launcher.find_process": JOBS,
    # Only a run writes into a model directory.
    "checkpoints.model_directory.ModelDirectory": TRAINING,
    "checkpoints.other_runs._refusal": TRAINING,
    # A stored experiment is read by verbs that take --set.
    "object_storage._check_address": (*TRAINING, "evaluate", "predict", "export"),
    "experiment.resolve._AUTOML_FIX": (*TRAINING, "check", "config"),
    "devices.launcher._refuse_indexed": JOBS,
    "devices.launcher._no_first": JOBS,
    "devices.launcher.ProcessInfo": JOBS,
    "devices.launcher._WHERE": JOBS,
    "records.formats.coco._own_ids": ("data convert coco",),
    # Unit and layout of boxes are an option of conversions.
    "records.box_numbers.BoxNumbers": (*SETS, "data convert FOLDER"),
    # Sets of folders and of scenes have names of ours.
    "records.tfrecord.prepare_folder --name": SETS,
    "records.tile_grid.check_grid": ("predict", "data tile"),
    "checking.planning.choose_epochs": ("train",),
    # `train` reads parts of what `check` prints.
    "checking.findings.render_findings": ("check",),
    "checking.config._check": ("check",),
    "checking.findings._FIXES": ("data check",),
    # The commands that it shows are of `train` and of uv.
    "cli.weights._get": ("train",),
    "cli.weights._list": ("train",),
    "cli.weights._commands": ("train", "predict"),
    "extras._pip_install": (),
    # `train` names its own option of slices.
    "devices.chips.parse_slice": ("check",),
    "devices.chips._names_near": ("check",),
    # The others train in this process.
    "scaling.ray_scale._WHERE": ("train",),
    "scaling.ray_scale.Workers": ("train",),
    "scaling.ray_scale.find_workers": ("train",),
    "scaling.ray_scale.refuse_uneven": ("train",),
    "scaling.ray_scale.refuse_shortage": ("train",),
    "scaling.ray_scale.refuse_slice": ("train",),
    "scaling.ray_scale._refuse_part_of_slice": ("train",),
    "scaling.ray_worker.Work": ("train",),
    "scaling.ray_worker._require_tpus": ("train",),
    # Others replace what they have written before.
    "checkpoints.trained._check_place": ("weights save",),
    # What is replaced by another way out.
    "checking.planning_records._without_flags": (),
}
"""Verbs that raise a message, where the references say more. A name may have one flag behind it."""
UNREACHED = {
    # They read experiments that are stored with a model, give no override and print no note.
    "weights save": STORED,
    "pack": STORED,
    "doctor": ("experiment.",),
    # They take no input.
    "recipes": ("",),
    "completion": ("",),
}
"""Where the names begin that a verb does not reach."""
COLOURS = ("evaluation.charts", "evaluation.charts")
"""Modules with variables of CSS."""


@cache
def trees():
    """Returns the parsed source by module, without `stillbox.`."""
    return {name: ast.parse(text) for name, text in sources().items()}


@cache
def sources():
    found = {}
    for file in ROOT.rglob("*.py"):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = file.read_text(encoding="utf-8")
    return found


@cache
def definitions():
    """Returns functions, classes and assignments of each module by name."""
    found = {}
    for module, tree in trees().items():
        own = found.setdefault(module, {})
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                own |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def imported(tree):
    """Returns the module and the name behind each name that a module imports."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stillbox"):
            module = node.module.removeprefix("stillbox").lstrip(".")
            names |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
    return names


@cache
def references():
    """Returns what each definition refers to; a registry, all that is registered in it."""
    graph, registered = {}, defaultdict(set)
    for module, own in definitions().items():
        names = imported(trees()[module])
        for name, node in own.items():
            graph[module, name] = found = set()
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name):
                    found.add((module, inner.id) if inner.id in own else names.get(inner.id))
                elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
                    found.add((".".join(names.get(inner.value.id, ())).lstrip("."), inner.attr))
            for call in getattr(node, "decorator_list", ()):
                for inner in filter(lambda part: isinstance(part, ast.Name), ast.walk(call)):
                    if names.get(inner.id, ("", ""))[1].startswith("register"):
                        registered[names[inner.id][0]].add((module, name))
    for module, entries in registered.items():
        for name in definitions()[module]:
            graph[module, name] |= entries
    # Its errors get another way out: see the test of training below.
    graph["checking.planning_records", "records_of"].discard(("records.folder", "convert_folder"))
    return graph


@cache
def flags():
    """Returns the texts with flags, by definition."""
    found = defaultdict(set)
    for module, own in definitions().items():
        if module in COLOURS:
            continue
        lines = sources()[module].splitlines()
        for name, node in own.items():
            if "--" not in "".join(lines[node.lineno - 1 : node.end_lineno]):
                continue
            for text in filter(FLAG.search, texts(node)):
                found[module, name].add(text)
    return found


def texts(node):
    """Yields all strings but docstrings: fixes come from calls, tables and functions."""
    bodies = [inner.body for inner in ast.walk(node) if isinstance(getattr(inner, "body", 0), list)]
    inside = {id(line.value) for body in bodies for line in body if isinstance(line, ast.Expr)}
    joined = [inner for inner in ast.walk(node) if isinstance(inner, ast.JoinedStr)]
    inside |= {id(part) for inner in joined for part in inner.values}
    for part in ast.walk(node):
        if isinstance(part, ast.Constant | ast.JoinedStr) and id(part) not in inside:
            yield plain(part)


def plain(node):
    """Returns a text, with `{}` in place of what is put into it."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    words = [getattr(part, "value", "") for part in parts]
    return "".join(word if isinstance(word, str) else "{}" for word in words)


@cache
def verbs():
    """Returns options and `run` by verb."""

    def leaves(parser, words, run):
        run = parser.get_default("weights_run") or parser.get_default("run") or run
        inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if not inner:
            options = {o for action in parser._actions for o in action.option_strings}
            found[" ".join(words)] = (options, run)
        for action in inner:
            for name, child in action.choices.items():
                leaves(child, [*words, name], run)
        if getattr(parser, "folder", None) is not None:
            leaves(parser.folder, [*words, "FOLDER"], run)

    found = {}
    leaves(build_parser(), [], None)
    return found


def reached(start):
    seen, open_ends = set(), [start]
    while open_ends:
        one = open_ends.pop()
        if one not in seen:
            seen.add(one)
            open_ends += references().get(one, ())
    return seen


def raises(verb, place, flag):
    """Says whether a verb can raise a message of a definition."""
    name = ".".join(place)
    if verb in UNREACHED and name.startswith(UNREACHED[verb]):
        return False
    return verb in ONLY.get(f"{name} {flag}", ONLY.get(name, (verb,)))


def test_flags_in_messages_are_flags_of_the_verb_that_runs():
    wrong = []
    for verb, (options, run) in verbs().items():
        for place in reached((run.__module__.removeprefix("stillbox."), run.__name__)):
            for text in flags().get(place, ()):
                shown = own_flags(QUOTED.sub("", text), options)
                missing = {f for f in FLAG.findall(shown) if raises(verb, place, f)} - options
                wrong += [f"{verb} has no {flag}: {'.'.join(place)}: {text}" for flag in missing]
    assert not wrong, "\n".join(sorted(wrong))
    # The source is understood, down to a message of a reader that a registry has.
    assert sum(map(len, flags().values())) > 400
    assert ("records.formats.coco", "_own_ids") in reached(("cli.data_convert", "run_folder"))


def test_commands_in_messages_have_their_flags():
    known = {name: options for name, (options, _) in verbs().items()}
    for place, found in flags().items():
        for command in (c for text in found for c in COMMAND.findall(text)):
            if is_absent(command.split()[0]):
                continue
            name = max((v for v in known if command.startswith(v)), key=len, default="")
            name = name or "data convert FOLDER" * command.startswith("data convert")
            assert set(FLAG.findall(command)) <= known[name], (place, command)


def test_the_table_of_exceptions_has_no_stale_row():
    named = {".".join(place) for place in flags()}
    assert {row.partition(" ")[0] for row in ONLY} <= named
    assert {verb for row in ONLY.values() for verb in row} <= verbs().keys()


def test_messages_of_the_originals_name_their_flags():
    assert own_flags("another --model-dir", {"--model_dir"}) == "another --model_dir"
    shown = own_flags("--output, or `stillbox export --output X`", {"--export_dir"})
    assert shown == "--export_dir, or `stillbox export --output X`"


@pytest.mark.parametrize("formats", [("a.txt", "KITTI"), ("rows.csv", "--format")])
def test_training_names_the_command_whose_flags_it_lacks(tmp_path, formats):
    from tests.records.test_folder import voc_folder

    name, said = formats
    folder = voc_folder(tmp_path / "photos")
    rows = "filename,class,ymin,xmin,ymax,xmax\na.png,cat,1,2,30,40\n"
    (folder / name).write_text(
        rows if name.endswith("csv") else "Car 0 0 0 1 2 3 4 1 1 1 1 1 1 1\n"
    )
    with pytest.raises(UserError, match=said) as caught:
        records_of(folder, tmp_path / "model/data")
    if "--" in caught.value.fix:
        assert f"`stillbox data convert {folder} --output RECORDS`" in caught.value.fix
        assert set(FLAG.findall(caught.value.fix)) <= verbs()["data convert FOLDER"][0]

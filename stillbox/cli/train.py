"""`stillbox train`: train an experiment into a model directory, or resume a run."""

import argparse
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillbox import numerals
from stillbox.cli.arguments import (
    add_overrides,
    add_processes,
    add_profile,
    add_resources,
    find_process_info,
    parse_resources,
    say_next,
)
from stillbox.cli.overrides import set_words
from stillbox.cli.running import (
    add_weights,
    fetch_weights,
    progress_bar,
    run_training,
    training_place,
)
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError, nearest
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.resolve import Resolved, is_recipe, read_config
from stillbox.experiment.rules.missing import CHECKPOINT
from stillbox.experiment.updating import Changes, merged
from stillbox.untrusted import named_path

if TYPE_CHECKING:
    from stillbox.checking.time_limit import TimeLimit

# YOLO's description of a data set, in its folder.
_DATA_FILES = ("data.yaml", "data.yml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    about = (
        "a recipe's name, a pipeline.config, or a stillbox YAML file; with --data it may be "
        "left out: recipe, batch and length are then picked for the data and the machine"
    )
    parser.add_argument("config", metavar="CONFIG", nargs="?", help=about)
    about = (
        "train on a folder of annotated images in any format that `data convert` reads, or of "
        "records with a label map; records go into DIR/data, paths and classes into the experiment"
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help=about)
    add_weights(parser, "weights to start from, or none for random ones")
    add_overrides(parser)
    about = (
        "folder of checkpoints, metrics and all other results, or a URL such as "
        "s3://bucket/run; a run found there is resumed (default: a folder in runs with the name of "
        "the data or of CONFIG: that of an unfinished run of the same command, or else a new one)"
    )
    parser.add_argument("--model-dir", type=Path, metavar="DIR", help=about)
    length = parser.add_mutually_exclusive_group()
    about = "train so many steps, with the schedule stretched to them (default: the config's)"
    length.add_argument("--steps", type=int, metavar="N", help=about)
    about = "train so many passes over the training records, likewise"
    length.add_argument("--epochs", type=float, metavar="N", help=about)
    about = (
        "be done in so many minutes, from the call to the last score: the steps that fit are "
        "measured and fixed before the first one"
    )
    length.add_argument("--minutes", type=float, metavar="N", help=about)
    add_profile(parser, "steps of this run", "DIR")
    add_processes(parser)
    _add_engine(parser)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a Ray cluster")
    about = "ray: on the cluster of RAY_ADDRESS, or a local one if that is not set (default: local)"
    group.add_argument("--engine", choices=("local", "ray"), default="local", help=about)
    about = "workers of --engine ray; with 2:8 the run goes on with any number from two to eight"
    group.add_argument("--workers", metavar="N|LEAST:MOST", help=about)
    add_resources(group, "all GPUs of a machine, or one CPU")
    group.add_argument(
        "--slice",
        metavar="TPU",
        help="workers are the machines of slices such as v6e:4x4; without --workers those of one",
    )


def run(arguments: argparse.Namespace) -> int:
    """Trains; returns 128 plus the signal's number if a signal ended the run early."""
    arguments.began = time.monotonic()
    engine = _engine(arguments)
    fetch_weights(arguments.weights, download=arguments.download)
    try:
        code = _run(arguments, engine) if arguments.model_dir else _run_in_runs(arguments, engine)
    except KeyboardInterrupt:
        say_next(*arguments.words)
        raise
    if code:
        say_next(*arguments.words)
    return code


def _run_in_runs(arguments: argparse.Namespace, engine: dict[str, Any]) -> int:
    """Trains into a folder in `runs`."""
    # Imported here: --help needs no jax.
    from stillbox.cli.run_folder import run_folder

    with run_folder(
        _run_name(arguments),
        _asked(arguments),
        lambda folder: _is_same_data(arguments.data, folder),
        say_aside,
    ) as folder:
        arguments.model_dir = folder.path
        code = _run(arguments, engine)
        if not code:
            folder.note(finished=True)
        return code


def _run(arguments: argparse.Namespace, engine: dict[str, Any]) -> int:
    if arguments.weights is not None:
        arguments.overrides = merged(_weights(arguments.weights), arguments.overrides)
    limit = _limit(arguments, engine)
    with training_place(arguments.model_dir, engine["engine"]) as place:
        if arguments.data:
            resolved = _plan(arguments, place.folder, engine)
        else:
            resolved = _resolve(arguments, place.folder)
        return run_training(
            resolved,
            place,
            profile=arguments.profile,
            engine=engine,
            limit=limit,
            hint=arguments.steps is None and arguments.epochs is None,
        )


def _limit(arguments: argparse.Namespace, engine: dict[str, Any]) -> "TimeLimit | None":
    # Imported here: --help and errors in the arguments need no jax.
    from stillbox.checking.time_limit import time_limit
    from stillbox.scaling.ray_scale import find_workers

    return time_limit(
        arguments.minutes,
        arguments.began,
        steps=arguments.steps,
        epochs=arguments.epochs,
        overrides=arguments.overrides,
        is_planned=bool(arguments.data)
        and (arguments.config is None or is_recipe(arguments.config)),
        on_ray=find_workers(**engine) is not None,
    )


def _engine(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the engine as arguments of `stillbox.train`."""
    # Imported here: --help needs no jax.
    from stillbox.scaling.ray_scale import find_workers

    engine = {
        "engine": arguments.engine,
        "workers": _workers(arguments.workers),
        "resources": parse_resources(arguments.resources),
        "tpu_slice": arguments.slice,
    }
    if find_workers(**engine) is not None and find_process_info(arguments) is not None:
        problem = "--engine ray starts the processes of a job itself"
        raise UserError(problem, where="--engine", fix="run this once, outside of mpirun and srun")
    return engine


def _workers(text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    match [numerals.count(part) for part in text.split(":")]:
        case [int(workers)]:
            return workers
        case [int(least), int(most)]:
            return least, most
    fix = "--workers 2, or --workers 2:8 for two to eight"
    raise UserError(f"{text!r} is no number of workers", where="--workers", fix=fix)


def _resolve(arguments: argparse.Namespace, folder: Path) -> Resolved:
    # Imported here: --help and errors in the arguments need no numpy.
    from stillbox.training.length import set_length

    if arguments.config is None:
        from stillbox.checking.planning import has_run, plan_resumed

        length = {"steps": arguments.steps, "epochs": arguments.epochs}
        if has_run(folder):
            say_aside(f"the experiment is that of the run in {arguments.model_dir}")
            return plan_resumed(folder, overrides=arguments.overrides, **length)
        raise _nothing_to_train()
    _refuse_data(arguments.config)
    read = read_config(arguments.config, arguments.overrides)
    return set_length(read, arguments.overrides, steps=arguments.steps, epochs=arguments.epochs)


def _run_name(arguments: argparse.Namespace) -> str:
    """Returns the name of the data or of CONFIG."""
    source = arguments.data or arguments.config
    if source is None:
        raise _nothing_to_train()
    if find_process_info(arguments) is not None:
        problem = "the processes of a job share one folder"
        raise UserError(problem, where="--model-dir", fix="give it to all of them")
    path = Path(source).resolve()
    path = path.parent if path.name in _DATA_FILES else path
    return path.name if path.is_dir() else path.stem


# Fields that say how a machine trains, and what it prints.
_HOW = (
    *("data.workers", "data.processes", "data.prefetch", "data.cache_images"),
    *("train.loggers", "train.log_every", "train.summary_every"),
)


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns what makes the command the same: all that decides on the model."""
    from stillbox.cli.run_folder import digest_of

    config, fields = arguments.config, arguments.overrides
    return {
        "CONFIG": config,
        "SHA-256 of CONFIG": digest_of(config) if config else "",
        "--data": bool(arguments.data),
        "--weights": arguments.weights,
        "--set": set_words({path: fields[path] for path in fields if not path.startswith(_HOW)}),
        "--import": arguments.imports,
        "--steps": arguments.steps,
        "--epochs": arguments.epochs,
        "--minutes": arguments.minutes,
    }


def _is_same_data(data: Path | None, folder: Path) -> bool:
    from stillbox.checking.planning_records import refuse_other_source

    with suppress(UserError):
        if data is not None:
            refuse_other_source(data, folder)
        return True
    return False


def _nothing_to_train() -> UserError:
    fix = "give --data FOLDER, a recipe (stillbox recipes lists them) or a config file"
    return UserError("nothing says what to train", where="CONFIG", fix=fix)


def _weights(text: str) -> Changes:
    """Returns the changes that start training from weights; a wrong path is refused at once."""
    from stillbox.checkpoints.model_directory import is_model_directory
    from stillbox.checkpoints.packed import is_packed

    row = known_weights().get(text)
    if row is not None:
        return row.changes()
    path = named_path(text)
    if text != "none" and not (path.exists() or Path(f"{path}.index").exists()):
        problem = f"there are no weights {text!r}"
        raise UserError(problem, where="--weights", fix=nearest(text, ["none", *known_weights()]))
    # Models of stillbox are detectors, whatever the recipe starts from.
    ours = is_model_directory(path) or is_packed(path)
    whole = {"train.fine_tune.scope": "detection", "train.fine_tune.load_heads": True}
    return {CHECKPOINT: "" if text == "none" else text} | (whole if ours else {})


def _refuse_data(config: str) -> None:
    """Refuses a data set that is given as a config."""
    path = Path(config)
    is_folder = config not in recipe_names() and path.is_dir()
    if is_folder and (path / "experiment.yaml").is_file():
        return
    if is_folder or path.name in _DATA_FILES:
        problem = f"{config} is {'a folder' if is_folder else 'the description of a data set'}"
        raise UserError(
            f"{problem}, not a config", where="CONFIG", fix=f"give it as --data {config}"
        )


def _plan(arguments: argparse.Namespace, folder: Path, engine: dict[str, Any]) -> Resolved:
    from stillbox.checking.memory_verdict import machine_for
    from stillbox.checking.planning import plan_run
    from stillbox.scaling.ray_scale import find_workers

    with progress_bar("images") as progress:
        return plan_run(
            arguments.config,
            arguments.data,
            folder,
            machine=machine_for(find_workers(**engine)),
            overrides=arguments.overrides,
            steps=arguments.steps,
            epochs=arguments.epochs,
            minutes=arguments.minutes,
            say=say_aside,
            on_image=lambda stage, done, total: progress(done, total),
        )

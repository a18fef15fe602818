"""Small functions that tests of many rooms share."""

import hashlib
import json
import re
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.cli.verbs import LEGACY, meant
from stillbox.errors import UserError
from stillbox.models.parts import BuildOptions
from stillbox.models.paths import named_modules


def refusal(call, *arguments, **options):
    """Returns the `UserError` that `call(*arguments, **options)` raises."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    return caught.value


@contextmanager
def refused(where="", *values, kind=UserError):
    """Expects an error; asks for its place and its values, and not for its words.

    Args:
        where: the error's `where`, or the end of its path; "": any; None: the error has none.
        values: numbers and names of its text, each as a whole.
        kind: its class.
    """
    with pytest.raises(kind) as caught:
        yield caught
    _check_refusal(caught.value, where, values)
    # The error's traceback has this frame: as a cycle it would keep open files until a collection.
    del caught


def _check_refusal(error, where, values):
    if where:
        assert f"/{error.where}".endswith(f"/{where}"), error
    elif where is None:
        assert error.where is None, error
    for value in values:
        assert re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", str(error)), (value, error)


def free_port():
    """Returns a port of this machine that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def count_compilations() -> list[str]:
    """Returns a list that grows with every program that is compiled from now on."""
    seen: list[str] = []

    def listen(event: str, _: float, **options: str) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seen


def read_json(path):
    """Returns the content of a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def digests(folder):
    """Returns the name of every file below a folder -> the checksum of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def draw_nothing(monkeypatch):
    """Gives reports empty charts."""
    module = "stillbox.evaluation.charts"
    monkeypatch.setattr(f"{module}.figure_svg", lambda figure, name: "<svg ></svg>")
    monkeypatch.setattr(f"{module}.figure_png", lambda figure, plain=None: b"")


def at_once(function, *arrays, **options):
    """Returns `function(*arrays, **options)` of one program.

    Each operation by itself would be a program, and compiled.
    """
    return jax.jit(lambda arrays: function(*arrays, **options))(arrays)


def build_options(*, dtype=jnp.float32, freeze_norm=False, **more):
    """Returns the options of a layer's construction, with kernels drawn from seed 0."""
    rng = np.random.default_rng(0)
    return BuildOptions(**{"dtype": dtype, "freeze_norm": freeze_norm, "rng": rng} | more)


def is_absent(verb):
    """Says whether a verb is in stillbox-legacy, and that is not installed."""
    return verb.removesuffix(".py") in LEGACY and not meant(verb)


def parts_of(module: nnx.Module) -> dict[str, Any]:
    """Returns the modules inside a module by path."""
    return {".".join(path): part for path, part in named_modules(module)}

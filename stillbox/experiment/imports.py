"""Parts of users: files, modules and packages that register kinds of their own.

Nothing is imported because a config or a model directory names it: that would run the code of its
author. The user names what is to run, by `--import`, or installs it as a package with an entry
point of the group `stillbox.parts`. Readers of configs, tables of names in checkpoints and verbs
have groups of their own.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Literal

from stillbox.errors import UserError
from stillbox.references import Parameter

Group = Literal["stillbox.parts", "stillbox.readers", "stillbox.name_tables", "stillbox.verbs"]
# Module -> the argument of `--import` that imports it again.
_IMPORTED: dict[str, str] = {}


def import_parts(names: Iterable[str]) -> None:
    """Imports files or modules, which register their parts.

    Raises:
        UserError: there is no such file or module, or it raises.
    """
    for name in names:
        is_file = name.endswith(".py")
        if is_file and not Path(name).is_file():
            raise UserError(
                f"there is no file {name}", where=Parameter("import"), fix="give its path"
            )
        try:
            module = _import_file(Path(name)) if is_file else importlib.import_module(name)
        except UserError:
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{name} cannot be imported: {type(error).__name__}: {error}"
            raise UserError(problem, where=f"{last.filename}:{last.lineno}") from error
        _IMPORTED[module.__name__] = name


@functools.cache
def import_entry_points(group: Group) -> None:
    """Imports the modules that installed packages name in the entry points of a group.

    Each registers what it has.
    """
    for entry in importlib.metadata.entry_points(group=group):
        import_parts([entry.module])


def imports_of(experiment: object) -> tuple[str, ...]:
    """Returns the arguments of `--import` that are needed to read an experiment."""
    # Imported here: the help needs no YAML.
    from stillbox.experiment.values import sections_of

    modules = dict.fromkeys(type(section).__module__ for _, section in sections_of(experiment))
    foreign = [module for module in modules if module.partition(".")[0] != "stillbox"]
    return tuple(_IMPORTED.get(module, module) for module in foreign)


def _import_file(path: Path) -> ModuleType:
    name, path = path.stem, path.resolve()
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        raise UserError(
            f"another module is called {name!r}", where=str(path), fix="give the file another name"
        )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

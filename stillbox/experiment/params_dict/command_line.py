"""The dictionary of a command line: a template or a file, an override, flags."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from stillbox.errors import UserError, nearest
from stillbox.experiment.params_dict.override_text import read_file, read_text
from stillbox.experiment.params_dict.reader import ParamsReading, read_layers
from stillbox.experiment.params_dict.templates import TEMPLATES, template_tree, tree_of
from stillbox.experiment.recipes import recipe_names
from stillbox.textformat.yaml_tree import Node


def read_params(
    *,
    config_file: str | Path = "",
    params_override: str = "",
    model: str = "retinanet",
    template: str = "",
    flags: Mapping[str, Node] | None = None,
    restrictions: Iterable[str] = (),
    used: Collection[str] = (),
    name: str = "",
) -> ParamsReading:
    """Reads the dictionary in the original's order: defaults, template, file, override, flags.

    Args:
        config_file: a YAML file; if there is no such file, the built-in template of its name.
        params_override: names and values as one text, see `override_text.read_text`.
        model: the model whose defaults are meant.
        template: the name of a built-in template that the file overrides.
        flags: dotted path -> value, `Node(8, "--num_cores=8")`; they override everything.
        restrictions: relations that the result must satisfy, `anchor.num_scales <= 3`.
        used: keys that the caller reads itself, `eval.eval_timeout`.
        name: the experiment's name; empty: that of the file, else the model's.

    Raises:
        UserError: there is no such file or template, or see `reader.read_layers`.
    """
    layers = [_template(template, "template")] if template else []
    if str(config_file):
        layers.append(_config_file(str(config_file)))
    layers.append(read_text(params_override, "--params_override"))
    layers += [tree_of({path: node.value}, node.where) for path, node in (flags or {}).items()]
    reading = read_layers(
        layers,
        name=name or Path(config_file).stem or template or model,
        model=model,
        restrictions=restrictions,
        used=used,
    )
    if not str(config_file) or Path(config_file).is_file():
        return reading
    note = f"there is no file {config_file}: the built-in template of this name is taken"
    return replace(reading, notes=(note, *reading.notes))


def _config_file(given: str) -> Node:
    path = Path(given)
    if path.is_file() or path.is_dir() or "://" in given:
        return read_file(given, "--config_file")
    # Scripts name `configs/yaml/retinanet_nasfpn.yaml`, a file of the original's repository.
    if path.stem in TEMPLATES:
        return template_tree(path.stem)
    beside = path.parent.glob("*.y*ml") if path.parent.is_dir() else ()
    names = [*(other.name for other in beside), *(f"{name}.yaml" for name in TEMPLATES)]
    fix = nearest(path.name, names)
    if path.stem in recipe_names():
        fix = f"stillbox train {path.stem} --set ... for the recipe of this name"
    raise UserError(f"there is no file {path}", where="--config_file", fix=fix)


def _template(name: str, where: str) -> Node:
    if name not in TEMPLATES:
        raise UserError(f"there is no template {name!r}", where=where, fix=nearest(name, TEMPLATES))
    return template_tree(name)

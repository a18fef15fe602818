"""`--set a.b.c=value`: changes to an experiment, typed by the schema."""

from collections.abc import Sequence

from stillbox.errors import UserError
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import update
from stillbox.textformat.yaml_tree import Node, compose


def apply_overrides(
    experiment: Experiment, overrides: Sequence[str], origins: dict[str, str]
) -> Experiment:
    """Applies overrides in order; a later one wins.

    Values are YAML. A bare value stands for a list of one, a number addresses an element
    (`train.augmentations.0.probability=0.3`), and a new `kind` takes that variant's defaults.

    Args:
        experiment: what they change.
        overrides: texts of the form `path=value`.
        origins: dotted path -> where; brought up to date.

    Raises:
        UserError: an unknown path or a value of the wrong type.
    """
    for override in overrides:
        experiment = update(experiment, _parse(override), origins)
    return experiment


def _parse(override: str) -> Node:
    where = f"--set {override}"
    path, equals, text = override.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise UserError(
            "an override is a path, an equals sign and a value",
            where=where,
            fix="for example --set train.batch_size=8",
        )
    node = _parse_value(text, where)
    for name in reversed(names):
        node = Node({name: node}, where)
    return node


def _parse_value(text: str, where: str) -> Node:
    try:
        value = compose(text, where, lines=False).value
    except UserError:
        # A text such as `a: b` is no YAML; a text field takes it as it is. Brackets are meant as a
        # list or a section, and must not become a file name.
        if text.lstrip().startswith(("[", "{")):
            raise
        value = text
    return Node(value, where, text=text)

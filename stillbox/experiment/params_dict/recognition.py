"""Whether a YAML file is a parameter dictionary or an experiment."""

import dataclasses

from stillbox.experiment.params_dict.foreign import SECTIONS
from stillbox.experiment.params_dict.keys import names_in
from stillbox.experiment.schema import Experiment, Training
from stillbox.experiment.values import Node

_EXPERIMENT = {"recipe", *(field.name for field in dataclasses.fields(Experiment))}
_DICTIONARY = {*names_in(""), *SECTIONS} - _EXPERIMENT
_TRAIN = {*names_in("train")} - {field.name for field in dataclasses.fields(Training)}


def is_dictionary(root: Node) -> bool:
    """Says whether the names at the top are those of a dictionary, of another model's even.

    Both forms have a section `train`; where there is nothing else, its names decide.
    """
    if not isinstance(root.value, dict):
        return False
    names = set(root.value)
    if names & (_EXPERIMENT - {"train"}):
        return False
    if names & _DICTIONARY:
        return True
    train = root.value.get("train")
    return train is not None and isinstance(train.value, dict) and bool(set(train.value) & _TRAIN)

"""The parameter dictionary of "Object Detection Models on TPU" as a dialect of experiments."""

from stillbox.experiment.params_dict.command_line import read_params
from stillbox.experiment.params_dict.merging import resolved_text
from stillbox.experiment.params_dict.reader import ParamsReading, is_dictionary, read_layers

__all__ = ["ParamsReading", "is_dictionary", "read_layers", "read_params", "resolved_text"]

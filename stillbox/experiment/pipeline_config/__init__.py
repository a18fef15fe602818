"""The reader of `pipeline.config`: one file for each of its parts.

Every field that a file sets ends in one of three ways: it becomes a value of the experiment, it is
listed in `no_effect.py` with the reason, or it is refused by name with its line.
"""

from stillbox.experiment.pipeline_config.reader import PipelineReading, read_pipeline_config

__all__ = ["PipelineReading", "read_pipeline_config"]

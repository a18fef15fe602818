"""The reader of `pipeline.config`: one file for each of its parts."""

from stillbox.experiment.pipeline_config.reader import read_pipeline_config

__all__ = ["read_pipeline_config"]

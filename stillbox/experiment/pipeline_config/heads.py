"""`BoxPredictor`: from feature maps to predictions."""

from stillbox.experiment.pipeline_config.layers import read_hyperparams
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import (
    ConvolutionalHead,
)


def read_head(section: Section, path: str) -> ConvolutionalHead:
    """Reads `box_predictor`."""
    _, chosen = section.choose("box_predictor", ("convolutional_box_predictor",))
    if not chosen.has("use_dropout"):
        chosen.log.notes.append(
            f"{chosen.where}: use_dropout is not set, and the format's default is true; "
            "--set model.head.dropout=false switches it off"
        )
    return ConvolutionalHead(
        conv=read_hyperparams(chosen.child("conv_hyperparams"), f"{path}.conv"),
        **chosen.fill(
            path,
            "min_depth",
            "max_depth",
            "dropout_keep_probability",
            "kernel_size",
            layers_before="num_layers_before_predictor",
            dropout="use_dropout",
            class_bias_init="class_prediction_bias_init",
        ),
    )

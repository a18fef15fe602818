"""`BoxPredictor`: from feature maps to predictions."""

import dataclasses

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.layers import read_hyperparams
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import ConvolutionalHead, Head, WeightSharedHead


def read_head(section: Section, path: str, *, keras: bool, code_size: int) -> Head:
    """Reads `box_predictor`.

    Args:
        section: the message.
        path: its place in the experiment.
        keras: whether it belongs to a model of the original's second generation.
        code_size: numbers that the box coder writes a box with.
    """
    name, chosen = section.choose(
        "box_predictor",
        ("convolutional_box_predictor", "weight_shared_convolutional_box_predictor"),
    )
    if chosen.has("box_code_size") and chosen.value("box_code_size") != code_size:
        raise UserError(
            f"box_code_size is {chosen.value('box_code_size')}, but the box coder writes a box as "
            f"{code_size} numbers",
            where=chosen.position("box_code_size"),
            fix="leave it out: the box coder decides",
        )
    if name == "convolutional_box_predictor":
        return _read_convolutional(chosen, path, keras=keras)
    return _read_weight_shared(chosen, path, keras=keras)


def _read_convolutional(section: Section, path: str, *, keras: bool) -> ConvolutionalHead:
    if not section.has("use_dropout"):
        section.log.notes.append(
            f"{section.where}: use_dropout is not set, and the format's default is true; "
            "--set model.head.dropout=false switches it off"
        )
    head = ConvolutionalHead(
        conv=read_hyperparams(section.child("conv_hyperparams"), f"{path}.conv", keras=keras),
        **section.fill(
            path,
            "min_depth",
            "max_depth",
            "dropout_keep_probability",
            "kernel_size",
            layers_before="num_layers_before_predictor",
            dropout="use_dropout",
            depthwise="use_depthwise",
            class_bias_init="class_prediction_bias_init",
        ),
    )
    if head.depthwise and head.class_bias_init and not keras:
        section.log.notes.append(
            f"{section.position('class_prediction_bias_init')}: the original forgets "
            "class_prediction_bias_init in depthwise heads and starts at 0, and so does this; "
            f"--set model.head.class_bias_init={head.class_bias_init:g} mends it"
        )
        head = dataclasses.replace(head, class_bias_init=0.0)
    return head


def _read_weight_shared(section: Section, path: str, *, keras: bool) -> WeightSharedHead:
    conv = read_hyperparams(section.child("conv_hyperparams"), f"{path}.conv", keras=keras)
    if not keras and conv.activation != "relu6":
        section.log.notes.append(
            f"{section.child('conv_hyperparams').position('activation')}: the original has relu6 "
            f"in the towers whatever is configured, and so has this; "
            f"--set model.head.conv.activation={conv.activation} follows the config"
        )
        conv = dataclasses.replace(conv, activation="relu6")
    return WeightSharedHead(
        conv=conv,
        **section.fill(
            path,
            "depth",
            "kernel_size",
            "dropout_keep_probability",
            layers_before="num_layers_before_predictor",
            share_tower="share_prediction_tower",
            depthwise="use_depthwise",
            dropout="use_dropout",
            class_bias_init="class_prediction_bias_init",
        ),
    )

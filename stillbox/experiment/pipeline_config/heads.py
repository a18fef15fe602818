"""`BoxPredictor`: from feature maps to predictions."""

import dataclasses

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.layers import read_hyperparams
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import ConvolutionalHead, Head, WeightSharedHead
from stillbox.experiment.sections import part

_NAMES = {
    "layers_before": "num_layers_before_predictor",
    "dropout": "use_dropout",
    "depthwise": "use_depthwise",
    "class_bias_init": "class_prediction_bias_init",
}
_read_convolutional = part(ConvolutionalHead, **_NAMES)
_read_weight_shared = part(WeightSharedHead, share_tower="share_prediction_tower", **_NAMES)


def read_head(section: MessageSection, path: str, *, keras: bool, code_size: int) -> Head:
    """Reads `box_predictor`.

    Args:
        section: the message.
        path: its place in the experiment.
        keras: whether it belongs to a model of the original's second generation.
        code_size: numbers of the box coder for a box.
    """
    readers = {
        "convolutional_box_predictor": _convolutional,
        "weight_shared_convolutional_box_predictor": _weight_shared,
    }
    name = section.member("box_predictor", readers)
    chosen = section.child(name)
    size = chosen.value("box_code_size")
    if chosen.has("box_code_size") and size != code_size:
        raise UserError(
            f"box_code_size is {size}, but the box coder writes a box as {code_size} numbers",
            where=chosen.where("box_code_size"),
            fix="leave it out: the box coder decides",
        )
    return readers[name](chosen, path, keras=keras)


def _convolutional(section: MessageSection, path: str, *, keras: bool) -> Head:
    if not section.has("use_dropout"):
        section.note(
            "",
            "use_dropout is not set, and the format's default is true; "
            "--set model.head.dropout=false switches it off",
        )
    conv = read_hyperparams(section.child("conv_hyperparams"), f"{path}.conv", keras=keras)
    head: ConvolutionalHead = _read_convolutional(section, path, conv=conv)
    if head.depthwise and head.class_bias_init and not keras:
        section.note(
            "class_prediction_bias_init",
            "the original ignores class_prediction_bias_init in depthwise heads and starts at 0, "
            "and so does stillbox; "
            f"--set model.head.class_bias_init={head.class_bias_init:g} applies it",
        )
        head = dataclasses.replace(head, class_bias_init=0.0)
    return head


def _weight_shared(section: MessageSection, path: str, *, keras: bool) -> Head:
    hyperparams = section.child("conv_hyperparams")
    conv = read_hyperparams(hyperparams, f"{path}.conv", keras=keras)
    if not keras and conv.activation != "relu6":
        hyperparams.note(
            "activation",
            "the original has relu6 in the towers whatever is configured, and so has stillbox; "
            f"--set model.head.conv.activation={conv.activation} follows the config",
        )
        conv = dataclasses.replace(conv, activation="relu6")
    head: WeightSharedHead = _read_weight_shared(section, path, conv=conv)
    return _with_defaults_of_keras(section, head) if keras and head.depthwise else head


def _with_defaults_of_keras(section: MessageSection, head: WeightSharedHead) -> WeightSharedHead:
    """Returns separable towers and heads as the second generation builds them.

    Keras passes hyperparameters to depthwise kernels alone, and the original to no kernel of the
    heads, unless the config asks for more.
    """
    pointwise = section.value("apply_conv_hyperparams_pointwise", "model.head.pointwise_defaults")
    heads = section.value("apply_conv_hyperparams_to_heads", "model.head.predictor_defaults")
    return dataclasses.replace(
        head,
        conv=dataclasses.replace(head.conv, regularize_depthwise=True),
        pointwise_defaults=not pointwise,
        predictor_defaults=not heads,
    )

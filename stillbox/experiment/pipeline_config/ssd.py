"""`Ssd`, a one-stage detector, and `BoxPredictor`, its head."""

import dataclasses

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.boxes import (
    read_anchors,
    read_box_coder,
    read_loss,
    read_matcher,
    read_postprocessing,
    read_similarity,
)
from stillbox.experiment.pipeline_config.extractors import read_extractor
from stillbox.experiment.pipeline_config.layers import (
    read_hyperparams,
    read_resizer,
    resizer_without_shape,
)
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.reading import field_mapping
from stillbox.references import Setting

_NAMES = {
    "layers_before": "num_layers_before_predictor",
    "dropout": "use_dropout",
    "depthwise": "use_depthwise",
    "class_bias_init": "class_prediction_bias_init",
}
_read_convolutional = field_mapping(
    schema.ConvolutionalHead, "min_depth max_depth dropout_keep_probability kernel_size", **_NAMES
)
_read_weight_shared = field_mapping(
    schema.WeightSharedHead,
    "depth kernel_size dropout_keep_probability",
    share_tower="share_prediction_tower",
    **_NAMES,
)


def read_head(section: MessageSection, path: str, *, keras: bool, code_size: int) -> schema.Head:
    """Reads `box_predictor`; `keras`: of a model of the second generation."""
    readers = {
        "convolutional_box_predictor": _convolutional,
        "weight_shared_convolutional_box_predictor": _weight_shared,
    }
    name = section.member("box_predictor", readers)
    chosen = section.child(name)
    size = chosen.value("box_code_size")
    if chosen.has("box_code_size") and size != code_size:
        problem = f"box_code_size is {size}, but the box coder writes a box as {code_size} numbers"
        fix = "leave it out: the box coder decides"
        raise UserError(problem, where=chosen.where("box_code_size"), fix=fix)
    return readers[name](chosen, path, keras=keras)


def _convolutional(section: MessageSection, path: str, *, keras: bool) -> schema.Head:
    if not section.has("use_dropout"):
        section.note(
            "",
            "use_dropout is not set, and the format's default is true; "
            f"{Setting('model.head.dropout', False)} switches it off",
        )
    conv = read_hyperparams(section.child("conv_hyperparams"), f"{path}.conv", keras=keras)
    head: schema.ConvolutionalHead = _read_convolutional(section, path, conv=conv)
    if head.depthwise and head.class_bias_init and not keras:
        section.note(
            "class_prediction_bias_init",
            "the original ignores class_prediction_bias_init in depthwise heads and starts at 0, "
            "and so does stillbox; "
            f"{Setting('model.head.class_bias_init', f'{head.class_bias_init:g}')} applies it",
        )
        head = dataclasses.replace(head, class_bias_init=0.0)
    return head


def _weight_shared(section: MessageSection, path: str, *, keras: bool) -> schema.Head:
    hyperparams = section.child("conv_hyperparams")
    conv = read_hyperparams(hyperparams, f"{path}.conv", keras=keras)
    if not keras and conv.activation != "relu6":
        hyperparams.note(
            "activation",
            "the original has relu6 in the towers whatever is configured, and so has stillbox; "
            f"{Setting('model.head.conv.activation', conv.activation)} follows the config",
        )
        conv = dataclasses.replace(conv, activation="relu6")
    head: schema.WeightSharedHead = _read_weight_shared(section, path, conv=conv)
    return _with_defaults_of_keras(section, head) if keras and head.depthwise else head


def _with_defaults_of_keras(
    section: MessageSection, head: schema.WeightSharedHead
) -> schema.WeightSharedHead:
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


def read_ssd(ssd: MessageSection) -> schema.OneStage:
    """Reads `model.ssd`."""
    features = ssd.child("feature_extractor")
    extractor = read_extractor(features)
    never_frozen = isinstance(extractor.backbone, schema.MobileDet) or isinstance(
        extractor.neck, schema.MnasFpn
    )
    if never_frozen and ssd.value("freeze_batchnorm"):
        ssd.note(
            "freeze_batchnorm",
            "the original goes on training the batch norms of this feature extractor; stillbox "
            "freezes them",
        )
    box_coder = read_box_coder(ssd.child("box_coder"), "model.box_coder")
    return schema.OneStage(
        resizer=_read_resizer(ssd.child("image_resizer"), extractor.pixels),
        pixels=extractor.pixels,
        backbone=extractor.backbone,
        neck=extractor.neck,
        head=read_head(
            ssd.child("box_predictor"),
            "model.head",
            keras=extractor.keras,
            code_size=box_coder.code_size,
        ),
        anchors=read_anchors(ssd.child("anchor_generator"), "model.anchors"),
        box_coder=box_coder,
        matcher=read_matcher(ssd.child("matcher"), "model.matcher"),
        similarity=read_similarity(ssd.child("similarity_calculator"), "model.similarity"),
        loss=read_loss(ssd, "model.loss"),
        postprocessing=read_postprocessing(
            ssd.child("post_processing"), "model.postprocessing", ssd.child("box_predictor")
        ),
        **features.read_fields("model", "pad_to_multiple"),
        **ssd.read_fields(
            "model",
            "num_classes",
            background_class="add_background_class",
            freeze_batch_norm="freeze_batchnorm",
        ),
    )


def _read_resizer(section: MessageSection, pixels: schema.PixelNormalization) -> schema.Resizer:
    resizer = read_resizer(section, "model.resizer")
    # A rule refuses a colour with another number of channels.
    if isinstance(resizer, schema.KeepAspectRatioResizer | schema.CanvasResizer) and len(
        resizer.pad_value
    ) == len(pixels.mean):
        # A detector of one stage pads what it has normalised, so that zeros are the mean colour.
        colours = zip(resizer.pad_value, pixels.mean, pixels.std, strict=True)
        pad_value = tuple(mean + std * padding for padding, mean, std in colours)
        resizer = dataclasses.replace(resizer, pad_value=pad_value)
    unpadded = resizer_without_shape(section)
    if unpadded is not None and section.has("keep_aspect_ratio_resizer"):
        unpadded.warn(
            "pad_to_max_dimension",
            "keep_aspect_ratio_resizer without pad_to_max_dimension gives images of many shapes; "
            "stillbox pads them to max_dimension squared, and anchors are relative to that square",
        )
    return resizer

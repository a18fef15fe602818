"""From the text of a `pipeline.config` to an experiment."""

from collections.abc import Collection
from dataclasses import replace

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.evaluation import read_evaluation
from stillbox.experiment.pipeline_config.inputs import read_data
from stillbox.experiment.pipeline_config.model import extractor_of, read_model
from stillbox.experiment.pipeline_config.section import ROOT, MessageSection, load_schema
from stillbox.experiment.pipeline_config.training import (
    as_trained_by_keras,
    read_quantization,
    read_training,
)
from stillbox.experiment.reading import Reading
from stillbox.experiment.schema import Experiment, RmsProp, Training
from stillbox.experiment.sections import ReadLog
from stillbox.textformat.decoder import Decoder
from stillbox.textformat.parser import Block, parse


class NoModelError(UserError):
    """A file describes no model."""


def read_pipeline_config(
    text: str, file: str, *, name: str = "experiment", override: str = ""
) -> Reading:
    """Reads a `TrainEvalPipelineConfig` in text format.

    Args:
        text: the file's content.
        file: the name of the file in positions.
        name: the experiment's name; the format has none.
        override: another text of the same format, merged into the first as protobuf does.

    Raises:
        UserError: the text cannot be parsed, or sets something that stillbox does not have.
    """
    merged = parse(override, "--config_override") if override else None
    return read_block(parse(text, file), name=name, override=merged)


def read_block(
    block: Block,
    *,
    name: str = "experiment",
    override: Block | None = None,
    damaged: Collection[str] = (),
) -> Reading:
    """Reads a syntax tree; else as `read_pipeline_config`.

    Args:
        block: the tree.
        name: the experiment's name.
        override: a tree that is merged into it.
        damaged: positions of messages from which refused fields were cut; where such a message
            chooses nothing, a choice is made for it.

    Raises:
        NoModelError: there is no model.
        UserError: as `read_pipeline_config`.
    """
    decoder, log = Decoder(load_schema()), ReadLog(damaged)
    message = decoder.decode(block, ROOT)
    if override:
        decoder.merge(message, override)
    root = MessageSection(message, log)
    if not root.has("model"):
        raise NoModelError(
            "there is no model in this file", where=root.where(), fix="add model { ... }"
        )
    # First, because what is said of the rest depends on it.
    model = read_model(root.child("model"))
    train = read_training(root.child("train_config")) if root.has("train_config") else Training()
    if root.has("train_config"):
        train = as_trained_by_keras(train, extractor_of(root.child("model")))
    _note_differences(root, train)
    experiment = Experiment(
        name=name,
        model=model,
        data=read_data(root),
        train=replace(train, quantization=read_quantization(root)),
        evaluation=read_evaluation(root.child("eval_config")),
    )
    # Last, when all parts are read.
    root.finish()
    if experiment.train.ema_decay is not None and not experiment.evaluation.use_ema:
        root.note(
            "eval_config",
            "training keeps a moving average of the parameters, but use_moving_averages is false, "
            "so evaluation does not use it; --set evaluation.use_ema=true does",
        )
    return Reading(
        experiment=experiment,
        origins=log.origins,
        warnings=(*decoder.warnings, *log.warnings),
        notes=tuple(log.notes),
    )


def _note_differences(root: MessageSection, train: Training) -> None:
    """Notes what the original's own training makes otherwise of fields that are read here."""
    config, model = root.child("train_config"), root.child("model")
    detector = model.child("ssd" if model.has("ssd") else "faster_rcnn")
    keras = str(detector.child("feature_extractor").get("type")).endswith("_keras")
    if keras and isinstance(train.optimizer, RmsProp):
        config.note(
            "optimizer",
            "rms_prop_optimizer.decay is the share of the mean square that is kept, as the format "
            "says; for _keras models the original takes it for a decay of the learning rate",
        )
    if keras and train.freeze:
        config.note(
            "freeze_variables",
            "these are frozen; the original's model_lib_v2.py, which trains _keras models, does "
            "not read the field",
        )
    if train.bias_gradient_multiplier != 1.0:
        config.note(
            "bias_grad_multiplier",
            "biases have this multiplier; in the original only the legacy train.py reads the field",
        )

"""From the text of a `pipeline.config` to an experiment."""

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.evaluation import read_evaluation
from stillbox.experiment.pipeline_config.inputs import read_data
from stillbox.experiment.pipeline_config.model import read_model
from stillbox.experiment.pipeline_config.section import ROOT, MessageSection, load_schema
from stillbox.experiment.pipeline_config.training import read_training
from stillbox.experiment.reading import Reading
from stillbox.experiment.schema import Experiment, Training
from stillbox.experiment.sections import ReadLog
from stillbox.textformat.decoder import Decoder
from stillbox.textformat.parser import parse


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
    decoder, log = Decoder(load_schema()), ReadLog()
    message = decoder.decode(parse(text, file), ROOT)
    if override:
        decoder.merge(message, parse(override, "--config_override"))
    root = MessageSection(message, log)
    if not root.has("model"):
        raise UserError(
            "there is no model in this file", where=root.where(), fix="add model { ... }"
        )
    experiment = Experiment(
        name=name,
        model=read_model(root.child("model")),
        data=read_data(root),
        train=read_training(root.child("train_config")) if root.has("train_config") else Training(),
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

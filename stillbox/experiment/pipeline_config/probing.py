"""What becomes of every field of a `pipeline.config`, found by reading files that set it.

Nothing is looked up: a file with the field and the same file without it go through the reader, and
what differs is the answer. Text format merges what is written twice, so that a probe is a sound
file with one more line behind it.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.augmentations import POLICIES
from stillbox.experiment.pipeline_config.evaluation import METRICS
from stillbox.experiment.pipeline_config.extractors import EXTRACTORS
from stillbox.experiment.pipeline_config.messages import ROOT, load_schema
from stillbox.experiment.pipeline_config.reader import PipelineReading, read_pipeline_config
from stillbox.experiment.values import differences
from stillbox.textformat.schema import FieldType, MessageType

Path = tuple[str, ...]
"""Names of the fields that lead to a message."""

_START = "initializer { truncated_normal_initializer { } }"
_HEADS = {
    "convolutional_box_predictor": "num_layers_before_predictor: 1 max_depth: 8",
    "weight_shared_convolutional_box_predictor": "num_layers_before_predictor: 1 depth: 8",
}
_BASE = """
model {{ ssd {{
  image_resizer {{ fixed_shape_resizer {{ }} }}
  feature_extractor {{
    type: "{extractor}" override_base_feature_extractor_hyperparams: true
    conv_hyperparams {{ {start} }}
  }}
  box_coder {{ faster_rcnn_box_coder {{ }} }}
  matcher {{ argmax_matcher {{ }} }}
  similarity_calculator {{ iou_similarity {{ }} }}
  anchor_generator {{ {anchors} {{ }} }}
  box_predictor {{ {head} {{ {inside} conv_hyperparams {{ {start} activation: RELU_6 }} }} }}
  loss {{
    classification_loss {{ weighted_sigmoid {{ }} }}
    localization_loss {{ weighted_smooth_l1 {{ }} }}
  }}
}} }}
train_config {{
  optimizer {{ momentum_optimizer {{ learning_rate {{ constant_learning_rate {{ }} }} }} }}
}}
train_input_reader {{ tf_record_input_reader {{ }} }}
"""
BASES = tuple(
    _BASE.format(extractor=extractor, anchors=anchors, head=head, inside=_HEADS[head], start=_START)
    for extractor, anchors, head in (
        ("ssd_mobilenet_v1", "ssd_anchor_generator", "convolutional_box_predictor"),
        (
            "ssd_resnet50_v1_fpn",
            "multiscale_anchor_generator",
            "weight_shared_convolutional_box_predictor",
        ),
        (
            "ssd_mobilenet_v2_fpn_keras",
            "multiscale_anchor_generator",
            "convolutional_box_predictor",
        ),
    )
)
"""Sound files that differ in what depends on the feature extractor and the predictor."""

# What a message needs before anything else in it can be asked about.
_NEEDS = {
    "LearningRate": "constant_learning_rate { }",
    "Optimizer": "momentum_optimizer { learning_rate { constant_learning_rate { } } }",
    "RMSPropOptimizer": "learning_rate { constant_learning_rate { } }",
    "AdamOptimizer": "learning_rate { constant_learning_rate { } }",
    "MomentumOptimizer": "learning_rate { constant_learning_rate { } }",
    "InputReader": "tf_record_input_reader { }",
    "Hyperparams": _START,
    "Initializer": "truncated_normal_initializer { }",
    "Regularizer": "l2_regularizer { }",
    "PreprocessingStep": "random_horizontal_flip { }",
    "SubtractChannelMean": "means: [1, 2, 3]",
    "ConvolutionalBoxPredictor": f"conv_hyperparams {{ {_START} }}",
    "WeightSharedConvolutionalBoxPredictor": f"conv_hyperparams {{ {_START} }}",
    "CalibrationConfig": "sigmoid_calibration { }",
}
# Values that are among those that a text may have; any other text is as good as the next.
_TEXTS: dict[str, tuple[str, ...]] = {
    "SsdFeatureExtractor.type": EXTRACTORS,
    "EvalConfig.metrics_set": tuple(METRICS),
    "AutoAugmentImage.policy_name": POLICIES,
    "TrainConfig.fine_tune_checkpoint_type": ("classification", "detection", "full"),
}
# One more than the default is out of range.
_NUMBERS = {"SsdFeatureExtractor.num_layers": ("5",)}


@dataclass
class Fate:
    """What becomes of one field."""

    honoured: dict[str, None] = field(default_factory=dict)
    """Paths in the experiment that follow it, in the order in which they were found."""
    ignored: dict[str, None] = field(default_factory=dict)
    """What the reader says where it takes the field without effect."""
    refused: dict[str, str] = field(default_factory=dict)
    """Value -> why it is refused."""
    taken: bool = False
    """Some value is read, and says no more than that a message is there."""


@functools.cache
def fates() -> dict[str, dict[str, Fate]]:
    """Returns the fate of every field of every message that is read, by message and field."""
    found: dict[str, dict[str, Fate]] = {}
    for path, message in read_messages():
        fields = found.setdefault(message.name, {})
        for kind in message.fields.values():
            fate = fields.setdefault(kind.name, Fate())
            for base in BASES:
                _probe(fate, base, path, message, kind)
    return found


@functools.cache
def read_messages() -> tuple[tuple[Path, MessageType], ...]:
    """Returns every message that the reader goes into, once for each way to it."""
    return tuple(_walk((), load_schema().messages[ROOT]))


def _walk(path: Path, message: MessageType) -> Iterator[tuple[Path, MessageType]]:
    yield path, message
    for kind in message.fields.values():
        inner = load_schema().messages.get(kind.type)
        if inner is None:
            continue
        texts = [_snippet((*path, kind.name)) for base in BASES]
        if any(_is_read(base, path, base + text) for base, text in zip(BASES, texts, strict=True)):
            yield from _walk((*path, kind.name), inner)


def _is_read(base: str, path: Path, text: str) -> bool:
    """Says whether anything in a message can matter: it is not refused or ignored as a whole."""
    before, after = _read(base + _snippet(path)), _read(text)
    if isinstance(before, UserError) or isinstance(after, UserError):
        return False
    return not any("has no effect" in said for said in _new_sayings(before, after))


def _probe(fate: Fate, base: str, path: Path, message: MessageType, kind: FieldType) -> None:
    before = _read(base + _snippet(path))
    if isinstance(before, UserError):
        return
    siblings = _siblings(message, kind)
    for value in _values(message, kind):
        after = _read(base + _snippet(path, f"{kind.name}{value}"))
        if isinstance(after, UserError):
            fate.refused.setdefault(value, _reason(after, message, kind))
            continue
        paths = [place for place, _, _ in differences(before.experiment, after.experiment)]
        # The first member of a choice changes nothing where it is the one that was there.
        for sibling in siblings if not paths else ():
            other = _read(base + _snippet(path, sibling))
            if isinstance(other, PipelineReading) and not paths:
                changed = differences(other.experiment, after.experiment)
                paths = [place for place, _, _ in changed]
        fate.honoured |= dict.fromkeys(paths)
        fate.taken = True
        if not paths:
            fate.ignored |= dict.fromkeys(_new_sayings(before, after))


def _siblings(message: MessageType, kind: FieldType) -> list[str]:
    """Returns the other members of the choice that a message belongs to, empty."""
    if kind.oneof is None:
        return []
    return [
        f"{other.name} {{ {_NEEDS.get(other.type, '')} }}"
        for other in message.fields.values()
        if other.oneof == kind.oneof
        and other.name != kind.name
        and other.type in load_schema().messages
    ]


def _values(message: MessageType, kind: FieldType) -> list[str]:
    """Returns what to write behind a field's name, other than its default."""
    schema, label = load_schema(), f"{message.name}.{kind.name}"
    default = kind.default
    if kind.is_message:
        return [f" {{ {_NEEDS.get(kind.type, '')} }}"]
    if kind.type in schema.enums:
        return [f": {name}" for name in schema.enums[kind.type] if name != default]
    if kind.type == "bool":
        # Where ours is another default than the format's, only one of the two shows.
        return [f": {str(value).lower()}" for value in (not default, default)]
    if kind.type == "string":
        return [f': "{text}"' for text in _TEXTS.get(label, ("probe",))]
    if kind.type in ("float", "double"):
        return [f": {float(default or 0) + 0.25}"]
    return [f": {text}" for text in _NUMBERS.get(label, (str(int(default or 0) + 1),))]


def _snippet(path: Path, content: str = "") -> str:
    """Returns the text that puts `content` into the message at the end of a path."""
    message, opening = load_schema().messages[ROOT], ""
    for name in path:
        kind = message.fields[name]
        message = load_schema().messages[kind.type]
        opening += f"{name} {{ {_NEEDS.get(message.name, '')} "
    return f"\n{opening}{content}{' }' * len(path)}"


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> PipelineReading | UserError:
    try:
        return read_pipeline_config(text, "p")
    except UserError as error:
        return error


def _reason(error: UserError, message: MessageType, kind: FieldType) -> str:
    """Returns why, without the field's name and value, which stand beside it anyway."""
    first = error.what.partition("\n")[0]
    return re.sub(rf"^{re.escape(message.name)}\.{kind.name}( = \S+)?(: | )?", "", first)


def _new_sayings(before: PipelineReading, after: PipelineReading) -> list[str]:
    """Returns what the reader said of one of two files alone, without places."""
    first, second = (
        [re.sub(r"p:\d+:\d+: ", "", text) for text in (*reading.notes, *reading.warnings)]
        for reading in (before, after)
    )
    without = [f"without it: {text}" for text in first if text not in second]
    return [text for text in second if text not in first] + without

"""The page of the language of pipeline.config: `python -m tools.pipeline_config`.

Text format merges what is written twice, so that a sound file with one more line behind it is the
same file with another value of one field.
"""

import functools
import re
import sys
from collections.abc import Iterable, Iterator

from stillbox.cli.main import wording_of
from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.extractors import EXTRACTORS
from stillbox.experiment.pipeline_config.faster_rcnn import (
    EXTRACTORS as FASTER_RCNN_EXTRACTORS,
)
from stillbox.experiment.pipeline_config.reader import METRICS, read_pipeline_config
from stillbox.experiment.pipeline_config.section import ROOT, load_schema
from stillbox.experiment.pipeline_config.training import POLICIES
from stillbox.experiment.reading import Reading
from stillbox.references import worded
from stillbox.textformat.messages import FieldType, MessageType
from tools.effects import PROBE, Effect, changed_paths, new_messages, shorten, table

Path = tuple[str, ...]
"""Names of the fields that lead to a message."""

_HEADER = """\
# The language of pipeline.config

Made by `python -m tools.pipeline_config > docs/pipeline_config.md`, which sets every field to
another value than its default and lists what the reader does:

- **honoured**: the experiment changes, in the fields that are named (see
  [All fields](fields.md)); `section` leads to a message of its own;
- **no effect**: the field is accepted with a note and changes nothing, for the reason given;
- **refused**: reading stops with file, line, this reason and a remedy. A value that is the default
  is never refused.
"""

_START = "initializer { truncated_normal_initializer { } }"
_HEADS = {
    "convolutional_box_predictor": "num_layers_before_predictor: 1 max_depth: 8",
    "weight_shared_convolutional_box_predictor": "num_layers_before_predictor: 1 depth: 8",
}
_BASE = """
model {{ ssd {{
  image_resizer {{ fixed_shape_resizer {{ }} }}
  feature_extractor {{
    type: "{extractor}" override_base_feature_extractor_hyperparams: {override}
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
_TWO_STAGES = """
model {{ faster_rcnn {{
  image_resizer {{ keep_aspect_ratio_resizer {{ pad_to_max_dimension: true }} }}
  feature_extractor {{ {extractor} }}
  first_stage_anchor_generator {{ {anchors} }}
  first_stage_box_predictor_conv_hyperparams {{ {start} activation: RELU_6 }}
  initial_crop_size: 14 maxpool_kernel_size: 2 maxpool_stride: 2
  second_stage_box_predictor {{ mask_rcnn_box_predictor {{ {predictor} }} }}
  second_stage_classification_loss {{ weighted_softmax {{ }} }}
  second_stage_post_processing {{ score_converter: SOFTMAX }}
}} }}
train_config {{
  optimizer {{ momentum_optimizer {{ learning_rate {{ constant_learning_rate {{ }} }} }} }}
}}
train_input_reader {{ tf_record_input_reader {{ }} }}
"""
_BASES_OF = {
    "ssd": tuple(
        _BASE.format(
            extractor=extractor,
            # An EfficientNet has no such hyperparameters.
            override="false" if "efficientnet" in extractor else "true",
            anchors=anchors,
            head=head,
            inside=f"{_HEADS[head]} {more}",
            start=_START,
        )
        for extractor, anchors, head, more in (
            ("ssd_mobilenet_v1", "ssd_anchor_generator", "convolutional_box_predictor", ""),
            (
                "ssd_resnet50_v1_fpn",
                "multiscale_anchor_generator",
                "weight_shared_convolutional_box_predictor",
                "",
            ),
            (
                "ssd_mobilenet_v2_fpn_keras",
                "multiscale_anchor_generator",
                "convolutional_box_predictor",
                "",
            ),
            (
                "ssd_efficientnet-b0_bifpn_keras",
                "multiscale_anchor_generator",
                "weight_shared_convolutional_box_predictor",
                "use_depthwise: true",
            ),
        )
    ),
    "faster_rcnn": tuple(
        _TWO_STAGES.format(extractor=extractor, anchors=anchors, predictor=predictor, start=_START)
        for extractor, anchors, predictor in (
            (
                'type: "faster_rcnn_resnet50"',
                "grid_anchor_generator { }",
                f"fc_hyperparams {{ {_START} op: FC activation: NONE }}",
            ),
            (
                'type: "faster_rcnn_resnet50_fpn_keras" '
                "override_base_feature_extractor_hyperparams: true "
                f"conv_hyperparams {{ {_START} }}",
                "multiscale_anchor_generator { normalize_coordinates: false }",
                "",
            ),
        )
    ),
}
BASES = (*_BASES_OF["ssd"], *_BASES_OF["faster_rcnn"])
"""Sound files with different detectors, feature extractors and box predictors."""

# Content without which a message is refused, whatever else is in it.
_NEEDS = {
    "BidirectionalFeaturePyramidNetworks": "num_iterations: 2 num_filters: 32",
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
# Legal values of strings that are not free text.
_TEXTS: dict[str, tuple[str, ...]] = {
    "SsdFeatureExtractor.type": EXTRACTORS,
    "FasterRcnnFeatureExtractor.type": FASTER_RCNN_EXTRACTORS,
    "BidirectionalFeaturePyramidNetworks.combine_method": ("sum", "attention"),
    "EvalConfig.metrics_set": tuple(METRICS),
    "AutoAugmentImage.policy_name": POLICIES,
    "TrainConfig.fine_tune_checkpoint_type": ("classification", "detection", "full"),
}
# One more than the default is out of range.
_NUMBERS = {
    # At least `min_depth`.
    "BidirectionalFeaturePyramidNetworks.num_filters": ("40",),
    "SsdFeatureExtractor.num_layers": ("5",),
    "FasterRcnn.number_of_stages": ("1", "3"),
    "FasterRcnnFeatureExtractor.first_stage_features_stride": ("8",),
}


@functools.cache
def effects() -> dict[str, dict[str, Effect]]:
    """Returns the effect of every field of every message that is read, by message and field."""
    by_message: dict[str, dict[str, Effect]] = {}
    for path, message in _read_messages():
        fields = by_message.setdefault(message.name, {})
        for kind in message.fields.values():
            effect = fields.setdefault(kind.name, Effect())
            for base in _bases_with((*path, kind.name)):
                if _is_read(base, path):
                    probe(effect, base, path, kind)
    return by_message


def _bases_with(path: Path) -> tuple[str, ...]:
    """Returns the sound files with the detector that a path leads into."""
    return next((_BASES_OF[name] for name in path if name in _BASES_OF), BASES)


@functools.cache
def _read_messages() -> tuple[tuple[Path, MessageType], ...]:
    """Returns every message that is read, once for each path to it."""
    return tuple(_walk((), load_schema().messages[ROOT]))


def _walk(path: Path, message: MessageType) -> Iterator[tuple[Path, MessageType]]:
    yield path, message
    for kind in message.fields.values():
        inner = load_schema().messages.get(kind.type)
        if inner is not None and any(
            _is_read(base, (*path, kind.name)) for base in _bases_with((*path, kind.name))
        ):
            yield from _walk((*path, kind.name), inner)


def _is_read(base: str, path: Path) -> bool:
    """Says whether no message on a path is refused or ignored as a whole."""
    if not path:
        return True
    before, after = _read(base + _snippet(path[:-1])), _read(base + _snippet(path))
    if isinstance(before, UserError) or isinstance(after, UserError):
        return False
    ignored = any("has no effect" in said for said in new_messages(before, after))
    return not ignored and _is_read(base, path[:-1])


def probe(effect: Effect, base: str, path: Path, kind: FieldType) -> None:
    """Enters the effect of a field of the message at `path`, in one of the sound files."""
    before, message = _read(base + _snippet(path)), _message_at(path)
    if isinstance(before, UserError):
        return
    for value in _values(message, kind):
        after = _read(base + _snippet(path, f"{kind.name}{value}"))
        if isinstance(after, UserError):
            effect.refuse(value, after, f"{message.name}.{kind.name}")
            continue
        paths = changed_paths(before, after)
        # The member of a choice that the file has already differs from its siblings alone.
        for sibling in _siblings(message, kind):
            other = _read(base + _snippet(path, sibling))
            if not paths and not isinstance(other, UserError):
                paths = changed_paths(other, after)
        effect.add(value, before, after, paths, skip="is set again")


def _message_at(path: Path) -> MessageType:
    message = load_schema().messages[ROOT]
    for name in path:
        message = load_schema().messages[message.fields[name].type]
    return message


def _siblings(message: MessageType, kind: FieldType) -> list[str]:
    """Returns the other members of the choice that a message belongs to, empty."""
    return [
        f"{other.name} {{ {_NEEDS.get(other.type, '')} }}"
        for other in message.fields.values()
        if kind.oneof and other.oneof == kind.oneof and other.name != kind.name
        if other.type in load_schema().messages
    ]


def _values(message: MessageType, kind: FieldType) -> list[str]:
    """Returns texts behind a field's name that give it another value than its default."""
    label, default = f"{message.name}.{kind.name}", kind.default
    if kind.is_message:
        return [f" {{ {_NEEDS.get(kind.type, '')} }}"]
    if kind.type in load_schema().enums:
        return [f": {name}" for name in load_schema().enums[kind.type]]
    if kind.type == "bool":
        # Where ours is another default than the format's, only one of the two shows.
        return [f": {str(value).lower()}" for value in (not default, default)]
    if kind.type == "string":
        return [f': "{text}"' for text in _TEXTS.get(label, ("probe",))]
    number = float(default or 0)
    if kind.type in ("float", "double"):
        return [f": {number + 0.25}"]
    return [f": {text}" for text in _NUMBERS.get(label, (str(int(number) + 1),))]


def _snippet(path: Path, content: str = "") -> str:
    """Returns the text that puts `content` into the message at the end of a path."""
    opening = (
        f"{name} {{ {_NEEDS.get(_message_at(path[: depth + 1]).name, '')} "
        for depth, name in enumerate(path)
    )
    return f"\n{''.join(opening)}{content}{' }' * len(path)}"


@functools.cache
def _read(text: str) -> Reading | UserError:
    try:
        return read_pipeline_config(text, PROBE)
    except UserError as error:
        return error


def page() -> str:
    """Returns the page, which names options as the command line does."""
    return worded(_page(), wording_of("train"))


def _page() -> str:
    """Returns a Markdown page: one section for each message, one row for each field."""
    places: dict[str, list[Path]] = {}
    for path, message in _read_messages():
        places.setdefault(message.name, []).append(path)
    messages = load_schema().messages
    sections = "".join(_section(messages[name], paths) for name, paths in places.items())
    return _HEADER + _summary() + sections + _unread(places)


def _summary() -> str:
    messages = load_schema().messages
    words = [
        _word(effect, messages[message], messages[message].fields[name])
        for message, fields in effects().items()
        for name, effect in fields.items()
    ]
    honoured = words.count("honoured") + words.count("section")
    others = ", ".join(f"{words.count(word)} {word}" for word in ("no effect", "refused"))
    return f"\nOf {len(words)} fields that a file can hold: {honoured} honoured, {others}.\n"


def _section(message: MessageType, paths: list[Path]) -> str:
    where = ", ".join(f"`{'.'.join(path)}`" for path in paths if path) or "the whole file"
    rows = [
        (
            f"`{kind.name}`",
            _type(kind),
            _word(effect, message, kind),
            _explain(effect, message, kind),
        )
        for kind, effect in zip(
            message.fields.values(), effects()[message.name].values(), strict=True
        )
    ]
    content = table("field|type and default||where to, or why", rows) if rows else "No fields.\n"
    return f"\n## {message.name}\n\nAt {where}.\n\n{content}"


def _type(kind: FieldType) -> str:
    many = "repeated " if kind.repeated else ""
    if kind.is_message:
        return f"{many}message"
    default = kind.default
    shown = str(default).lower() if isinstance(default, bool) else default
    # A repeated field has no default, and an empty text needs no mention.
    known = "" if kind.repeated or shown == "" else f"`{shown}`"
    if kind.type in load_schema().enums:
        names = ", ".join(f"`{name}`" for name in load_schema().enums[kind.type])
        return f"one of {names}; {known}"
    return ", ".join(filter(None, (f"{many}{kind.type}", known)))


def _word(effect: Effect, message: MessageType, kind: FieldType) -> str:
    return "section" if (message.name, kind.name) in _sections() else effect.word()


@functools.cache
def _sections() -> frozenset[tuple[str, str]]:
    """Returns message and field of all messages that are read."""
    paths = [path for path, _ in _read_messages() if path]
    return frozenset((_message_at(path[:-1]).name, path[-1]) for path in paths)


def _explain(effect: Effect, message: MessageType, kind: FieldType) -> str:
    word, parts = _word(effect, message, kind), []
    if word == "section":
        parts.append(f"[{kind.type}](#{re.sub('[^a-z0-9]', '', kind.type.lower())})")
    elif word == "honoured":
        parts.append(shorten(effect.honoured))
    elif word == "no effect":
        parts.append("; ".join(effect.reasons()))
    reasons = effect.refused_by_reason()
    for reason, values in reasons.items():
        reason = reason.removeprefix("is ")
        named = kind.type in load_schema().enums or kind.type == "string"
        everywhere = [value for value in values if value not in effect.accepted]
        by_value = named and everywhere and (word != "refused" or effect.accepted)
        if by_value or (word == "refused" and len(reasons) > 1):
            shown = ", ".join(f"`{value.strip(' :{}')}`" for value in everywhere or values)
            parts.append(f"{shown} refused: {reason}")
        elif word == "refused":
            parts.append(reason)
        elif kind.type != "string":
            parts.append(f"Elsewhere refused: {reason}")
    return ". ".join(parts)


def _unread(read: Iterable[str]) -> str:
    """Returns a line for each message that only refused or ignored fields lead to."""
    lines = []
    for name, through in _reachable().items():
        if name not in read:
            count = len(load_schema().messages[name].fields)
            lines.append(f"- `{name}` ({count} field{'s' * (count != 1)}), through `{through}`\n")
    return (
        "\n## Messages that are not read\n\n"
        "Only fields above that are refused, or have no effect, lead to them.\n\n" + "".join(lines)
    )


def _reachable() -> dict[str, str]:
    """Returns every message of the language with the first field that leads to it."""
    schema, leading, left = load_schema(), {ROOT: ""}, [ROOT]
    while left:
        name = left.pop(0)
        for kind in schema.messages[name].fields.values():
            if kind.type in schema.messages and kind.type not in leading:
                leading[kind.type] = f"{name}.{kind.name}"
                left.append(kind.type)
    return leading


if __name__ == "__main__":
    sys.stdout.write(page())

"""The metadata of a TFLite file: order and names of its outputs, normalisation, labels.

MediaPipe's ObjectDetector requires the metadata of https://www.tensorflow.org/lite/models/convert/metadata
(schema `metadata_schema.fbs` of MediaPipe): a flatbuffer inside the model, and the labels in a ZIP
archive behind it.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import numpy as np

from stillbox.errors import UserError
from stillbox.exporting.settings import ExportSettings
from stillbox.numerals import count
from stillbox.printing import count_text
from stillbox.references import Parameter
from stillbox.untrusted import open_zip

if TYPE_CHECKING:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

OUTPUTS = ("detection_boxes", "detection_classes", "detection_scores", "num_detections")
"""In the order of `TFLite_Detection_PostProcess`: `[1, K, 4]`, `[1, K]`, `[1, K]`, `[1]`."""
LABELS, LABEL_IDS = "labels.txt", "label_ids.txt"
# Ids of a hundred thousand classes take half of it.
_MOST_LABEL_BYTES, _GREATEST_ID = 2**21, 2**31 - 1

# MediaPipe identifies the outputs by these names.
_NAMES = ("location", "category", "score", "number of detections")
_METADATA = "TFLITE_METADATA"
_IMAGE, _BOXES = np.uint8(2), np.uint8(3)  # members of the union ContentProperties
_NORMALIZATION = np.uint8(1)  # of the union ProcessUnitOptions
_BOUNDARIES, _VALUE_LABELS = np.int8(1), np.int8(3)
# Space of colours by the number of channels. There is none for four: MediaPipe takes no such model.
_SPACES = {
    1: ("gray pixels", np.int8(2)),
    3: ("RGB pixels", np.int8(1)),
    4: ("RGB pixels and one more channel", np.int8(0)),
}

_Stored = Union[str, np.ndarray, list["_Stored"], "_Table"]
_Table = Mapping[int, np.generic | _Stored]
"""Values by the number of their field."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The content of the metadata."""

    name: str
    labels: Sequence[str]
    """Name of every class index; `???` for an unused one."""
    label_ids: Sequence[int]
    """Label map id of every class index."""
    mean: Sequence[float]
    std: Sequence[float]
    """For a float32 input the client subtracts the mean from the pixels and divides by `std`."""
    channels: int
    """Channels of the images."""


def describe(content: bytes, settings: ExportSettings, description: Description) -> bytes:
    """Returns a TFLite file with named outputs in their order, metadata and labels.

    `content` is a model with the outputs `output_0` to `output_3` in its signature.
    """
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.tools import flatbuffer_utils

    # The quantiser writes weights behind the flatbuffer; this reader moves them into it.
    model = flatbuffer_utils.read_model_from_bytearray(content)
    for held in model.buffers:
        if held.data is not None:  # an array is not copied byte by byte
            held.data = np.frombuffer(held.data, np.uint8)
    _name_tensors(model, settings.input, settings.output_names or OUTPUTS)
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(_metadata(description), np.uint8)
    model.buffers.append(buffer)
    entry = schema.MetadataT()
    entry.name, entry.buffer = _METADATA, len(model.buffers) - 1
    model.metadata = [*(model.metadata or []), entry]
    packed = bytes(flatbuffer_utils.convert_object_to_bytearray(model))
    return _with_archive(packed, description)


def operators(content: bytes) -> set[str]:
    """Returns the names of a model's operations."""
    from ai_edge_litert import schema_py_generated as schema

    names = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(index) for index in range(model.OperatorCodesLength())]
    # Operations up to 127 are in a deprecated field too, for older readers.
    return {names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())] for code in codes}


def least_runtime(content: bytes) -> str:
    """Returns the least TensorFlow Lite that runs a model, by its converter's metadata."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(content, 0)
    notes = [model.Metadata(index) for index in range(model.MetadataLength())]
    (note,) = (note for note in notes if note.Name() == b"min_runtime_version")
    return str(model.Buffers(note.Buffer()).DataAsNumpy().tobytes().rstrip(b"\0").decode())


def label_ids(content: bytes, where: str) -> list[int]:
    """Returns the label map id of every class index, as written by `describe`.

    Raises:
        UserError: the archive behind the model is damaged or has no ids, these unpack to more than
            2 MiB, or one is no id.
    """
    try:
        archive = open_zip(io.BufferedReader(io.BytesIO(content)))
        with archive, archive.open(LABEL_IDS) as file:
            # The size in the archive's directory may be false.
            lines = file.read(_MOST_LABEL_BYTES + 1)
        if len(lines) > _MOST_LABEL_BYTES:
            raise ValueError(f"they unpack to more than {_MOST_LABEL_BYTES:,} bytes")
        words = lines.decode(errors="replace").split()
        ids = [label for word in words if (label := count(word)) is not None]
        if not ids or len(ids) < len(words) or max(ids) > _GREATEST_ID:
            counted = count_text(len(words), "number")
            raise ValueError(f"they are {counted}, not all from 0 to {_GREATEST_ID}")
        return ids
    # zipfile and zlib can raise any exception for broken bytes.
    except Exception as error:
        problem = f"the label ids behind the model cannot be read: {error or type(error).__name__}"
        fix = f"copy the file again, or export the model again with {Parameter('format', 'tflite')}"
        raise UserError(problem, where=f"{where}, {LABEL_IDS}", fix=fix) from error


def _name_tensors(model: "schema.ModelT", input_name: str, outputs: Sequence[str]) -> None:
    (signature,) = model.signatureDefs
    graph = model.subgraphs[signature.subgraphIndex]
    signature.inputs[0].name = input_name
    graph.tensors[signature.inputs[0].tensorIndex].name = input_name
    signature.outputs.sort(key=lambda output: output.name)
    for output, name, usual in zip(signature.outputs, outputs, OUTPUTS, strict=True):
        output.name = name
        graph.tensors[output.tensorIndex].name = usual
    graph.outputs = [output.tensorIndex for output in signature.outputs]


def _with_archive(content: bytes, description: Description) -> bytes:
    """Appends a ZIP archive; MediaPipe reads only uncompressed ones."""
    buffer = io.BytesIO(content)
    texts = {LABELS: description.labels, LABEL_IDS: map(str, description.label_ids)}
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, lines in texts.items():
            # Without a date, so that files of the same model are equal.
            archive.writestr(zipfile.ZipInfo(name), "".join(f"{line}\n" for line in lines))
    return buffer.getvalue()


def _metadata(description: Description) -> bytes:
    import flatbuffers

    labels: _Table = {0: LABELS, 1: "names of the classes by index", 2: _VALUE_LABELS}
    outputs: list[_Stored] = [
        {
            0: _NAMES[0],
            1: "ymin, xmin, ymax, xmax in 0..1 of the image",
            3: {0: _BOXES, 1: {0: np.array([1, 0, 3, 2], np.uint32), 1: _BOUNDARIES}},
        },
        {0: _NAMES[1], 1: "class index, from 0", 6: [labels]},
        {0: _NAMES[2], 1: "confidence in 0..1, falling"},
        {0: _NAMES[3], 1: "how many of the rows are detections"},
    ]
    group: _Table = {0: "detection_result", 1: list(_NAMES[:3])}
    graph: _Table = {2: [_input(description)], 3: outputs, 8: [group]}
    builder = flatbuffers.Builder(4096)
    # 1.5.0 is the first parser that supports all fields above.
    root = _write(builder, {0: description.name, 3: [graph], 7: "1.5.0"})
    builder.Finish(root, b"M001")
    return bytes(builder.Output())


def _input(description: Description) -> _Table:
    both = description.mean, description.std
    normalization: _Table = {
        field: np.array(values, np.float32) for field, values in enumerate(both)
    }
    about, space = _SPACES[description.channels]
    return {
        0: "image",
        1: about,
        3: {0: _IMAGE, 1: {0: space}},
        4: [{0: _NORMALIZATION, 1: normalization}],
    }


def _write(builder: "flatbuffers.Builder", value: _Stored) -> int:
    """Writes a table, a list, a vector or a string, and returns its offset."""
    match value:
        case str():
            return int(builder.CreateString(value))
        case np.ndarray():
            return int(builder.CreateNumpyVector(value))
        case list():
            offsets = [_write(builder, item) for item in value]
            builder.StartVector(4, len(offsets), 4)
            for offset in reversed(offsets):
                builder.PrependUOffsetTRelative(offset)
            return int(builder.EndVector())
    parts = {
        field: part if isinstance(part, np.generic) else _write(builder, part)
        for field, part in value.items()
    }
    builder.StartObject(max(parts) + 1)
    for field, part in parts.items():
        if isinstance(part, np.generic):
            # 0 is the default, which is not written.
            prepend = getattr(builder, f"Prepend{part.dtype.name.capitalize()}Slot")
            prepend(field, part.item(), 0)
        else:
            builder.PrependUOffsetTRelativeSlot(field, part, 0)
    return int(builder.EndObject())

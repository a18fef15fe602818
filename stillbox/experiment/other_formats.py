"""Files of other programs that are taken for configs: recognised, and refused by their names."""

from pathlib import Path

from stillbox.errors import UserError
from stillbox.textformat.yaml_tree import Node

_ANOTHER = "write the experiment as a pipeline.config or as YAML of stillbox: `stillbox recipes`"
_DATA = "convert the data set, `stillbox data convert --help`, and name a recipe as the config"
_NO_MODEL = "give the config of a model"
# Names at the top, all of which a file has; what it is; the remedy. The first that fits counts.
_SIGNATURES: tuple[tuple[frozenset[str], str, str], ...] = tuple(
    (frozenset(names.split()), what, fix)
    for names, what, fix in (
        ("apiVersion kind", "a manifest of Kubernetes", _NO_MODEL),
        ("task trainer", "an experiment of TensorFlow Model Garden", _ANOTHER),
        ("runtime task", "an experiment of TensorFlow Model Garden", _ANOTHER),
        ("runtime trainer", "an experiment of TensorFlow Model Garden", _ANOTHER),
        ("nc backbone head", "a model of Ultralytics (YOLO)", _ANOTHER),
        ("task mode model", "the arguments of a run of Ultralytics (YOLO)", _ANOTHER),
        ("train names", "a data.yaml of Ultralytics (YOLO)", _DATA),
        ("val names", "a data.yaml of Ultralytics (YOLO)", _DATA),
        ("nc names", "a data.yaml of Ultralytics (YOLO)", _DATA),
        ("images annotations", "annotations of COCO", _DATA),
        ("images categories", "annotations of COCO", _DATA),
        ("MODEL SOLVER", "a config of Detectron2", _ANOTHER),
        ("MODEL DATASETS", "a config of Detectron2", _ANOTHER),
        ("_BASE_", "a config of Detectron2 or PaddleDetection", _ANOTHER),
        ("model_type", "a config of Hugging Face Transformers", _ANOTHER),
        ("architectures", "a config of Hugging Face Transformers", _ANOTHER),
        ("image_processor_type", "a preprocessor of Hugging Face Transformers", _ANOTHER),
        ("TrainReader EvalReader", "a config of PaddleDetection", _ANOTHER),
        ("services", "a file of Docker Compose", _NO_MODEL),
        ("dependencies channels", "an environment of conda", _NO_MODEL),
        ("dependencies name", "an environment of conda", _NO_MODEL),
        ("jobs", "a workflow of GitHub", _NO_MODEL),
        ("cluster_name provider", "a cluster of Ray", _NO_MODEL),
    )
)


def refuse_python(path: Path) -> None:
    """Refuses a config that is a program.

    Raises:
        UserError: the name is one of Python.
    """
    if path.suffix == ".py":
        what = "this is a Python program, as configs of MMDetection and Detectron2 are"
        raise UserError(what, where=str(path), fix=_ANOTHER)


def refuse_others(root: Node) -> None:
    """Refuses YAML or JSON of another program.

    Raises:
        UserError: names the program.
    """
    names = set(root.value) if isinstance(root.value, dict) else set()
    for signature, what, fix in _SIGNATURES:
        if signature <= names:
            raise UserError(f"this is {what}, not a config of stillbox", where=root.where, fix=fix)

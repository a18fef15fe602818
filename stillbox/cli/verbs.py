"""The verbs of the command line: help, module, and names of the originals with the same flags.

Installed packages add verbs by the entry points `stillbox.verbs`, modules that call `register`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stillbox.experiment.imports import import_entry_points


@dataclass(frozen=True)
class Verb:
    """A verb, of which the help is known before its module is imported.

    The module has `add_arguments(parser)` and `run(arguments)`, with its own docstring as the
    description; or `add_VERB`, with its docstring as the description, and `run_VERB`.
    """

    name: str
    module: str
    about: str = ""
    """Line of the verb in the help, which lists no verb without a line."""
    spellings: tuple[str, ...] = ()
    """Names of the original program."""
    is_original: bool = False
    """The verb takes the flags of an original, as absl does: no abbreviations, one dash or two."""


VERBS: dict[str, Verb] = {}
"""All verbs by name, in the order of the help."""


def register(*verbs: Verb) -> None:
    """Adds verbs."""
    VERBS.update({verb.name: verb for verb in verbs})


def known(word: str = "") -> Mapping[str, Verb]:
    """Returns the verbs that a word can mean: stillbox's suffice for their own names."""
    if word not in VERBS:
        import_entry_points("stillbox.verbs")
    return VERBS


def listed() -> Iterator[Verb]:
    """Yields the verbs that the help lists."""
    return (verb for verb in known().values() if verb.about)


def meant(word: str) -> list[Verb]:
    """Returns the verbs of a name; several originals are called `train.py`."""
    verbs = known(word)
    return [verb for verb in verbs.values() if word == verb.name or word in verb.spellings]


_API = "the Object Detection API"
_TPU_PAGE = '"Object Detection Models on TPU"'
_OWN = {
    "data": ("data", "convert, check, count and show data"),
    "check": ("checks", "find everything that is wrong with a config"),
    "anchors": ("checks", "show how well anchors cover a data set"),
    "train": ("train", "train an experiment into a model directory"),
    "evaluate": ("measuring", "score a model and write a report"),
    "compare": ("compare", "tell which of two models is better, and whether it is chance"),
    "predict": ("predict", "detect objects in images and videos"),
    "serve": ("serve", "serve a model over HTTP"),
    "export": ("export", "write a model for other runtimes"),
    "benchmark": ("measuring", "measure a model in every format and runtime"),
    "pack": ("export", "write a trained model without its training into one file"),
    "recipes": ("weights", "list the recipes with input, size, score and memory"),
    "config": ("checks", "print the resolved experiment as YAML"),
    "weights": ("weights", "get pretrained weights; write weights for other programs"),
    "doctor": ("checks", "show versions, devices, extras and weights"),
    "completion": ("completion", "print a script that completes words for bash, zsh or fish"),
}
register(*(Verb(name, f"stillbox.cli.{module}", about) for name, (module, about) in _OWN.items()))

_ORIGINALS = {
    "model_main": (
        "detection_api",
        f"train or evaluate with the flags of {_API}",
        ("model_main.py", "model_main_tf2", "model_main_tf2.py"),
    ),
    "retinanet": (
        "official_models",
        f"train, evaluate or predict with the flags of {_TPU_PAGE}",
        ("main.py",),
    ),
    "ssd_resnet34": (
        "ssd_resnet34",
        "train, evaluate or predict with the flags of SSD ResNet-34's script",
        ("ssd.py",),
    ),
    "export_saved_model": (
        "official_models",
        f"export with the flags of {_TPU_PAGE}",
        ("export_saved_model.py",),
    ),
    "exporter_main_v2": (
        "detection_api_exports",
        f"export a SavedModel with the flags of {_API}",
        ("exporter_main_v2.py",),
    ),
    "export_tflite_graph_tf2": (
        "detection_api_exports",
        f"export a TFLite model with the flags of {_API}",
        ("export_tflite_graph_tf2.py",),
    ),
    # The first generation's, which no help lists.
    "legacy_train": ("detection_api", "", ("train.py",)),
    "legacy_eval": ("detection_api", "", ("eval.py",)),
    "export_inference_graph": ("detection_api_exports", "", ("export_inference_graph.py",)),
    "export_tflite_ssd_graph": ("detection_api_exports", "", ("export_tflite_ssd_graph.py",)),
}
register(
    *(
        Verb(name, f"stillbox.cli.{module}", about, spellings, is_original=True)
        for name, (module, about, spellings) in _ORIGINALS.items()
    )
)

LEGACY = (
    *("tutorial", "model_garden", "generate_tfrecord", "create_tfrecord", "xml_to_csv"),
    *("create_csv", "partition_dataset", "train_val_test_split"),
    *("model_builder_tf1_test", "model_builder_tf2_test"),
    *("create_pascal_tf_record", "create_pet_tf_record", "create_coco_tf_record"),
)
"""The verbs of the package stillbox-legacy."""

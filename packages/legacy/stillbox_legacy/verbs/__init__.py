"""The verbs of this package, which the entry point `stillbox.verbs` adds to stillbox."""

from stillbox.cli.verbs import Verb, register

_HERE = "stillbox_legacy.verbs"
_LABELS, _TUTORIAL = f"{_HERE}.label_scripts", f"{_HERE}.tutorial"

register(
    Verb(
        "tutorial",
        _TUTORIAL,
        "write a folder in which tutorials of the Object Detection API run",
    ),
    Verb(
        "model_garden",
        f"{_HERE}.model_garden",
        "train or evaluate with the flags of TensorFlow Model Garden",
        ("train.py",),
        is_original=True,
    ),
    *(
        Verb(name, module, spellings=(f"{name}.py",), is_original=True)
        for module, names in (
            (_LABELS, ("generate_tfrecord", "create_tfrecord", "xml_to_csv", "create_csv")),
            (_LABELS, ("partition_dataset", "train_val_test_split")),
            (_TUTORIAL, ("model_builder_tf1_test", "model_builder_tf2_test")),
            (_TUTORIAL, ("create_pascal_tf_record", "create_pet_tf_record")),
            (_TUTORIAL, ("create_coco_tf_record",)),
        )
        for name in names
    ),
)

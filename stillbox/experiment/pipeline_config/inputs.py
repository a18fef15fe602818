"""`InputReader`: where records lie and how they are read."""

import dataclasses

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import Data, Records


def read_data(root: Section) -> Data:
    """Reads both input readers."""
    readers = root.children("eval_input_reader")
    if len(readers) > 1:
        raise UserError(
            "there is a second eval_input_reader, and stillbox scores one set of records",
            where=readers[1].where,
            fix="keep one; other records are named on the command line of evaluate",
        )
    # A config without readers is still good for predicting with a model.
    train, evaluation = Records(), Records(shuffle=False)
    if root.has("train_input_reader"):
        train = _read_records(root.child("train_input_reader"), "data.train")
    for reader in readers:
        evaluation = _read_evaluation_records(reader, "data.evaluation")
    return _with_box_limit(root, Data(train=train, evaluation=evaluation))


def _read_records(section: Section, path: str) -> Records:
    _, chosen = section.choose("input_reader", ("tf_record_input_reader",))
    # The format calls the same thing INPUT_DEFAULT.
    if section.value("input_type") == "TF_SEQUENCE_EXAMPLE":
        raise UserError(
            "InputReader.input_type = TF_SEQUENCE_EXAMPLE: sequences of frames are not supported",
            where=section.position("input_type"),
            fix="write a tf.Example for each frame",
        )
    return Records(
        paths=chosen.values("input_path", f"{path}.paths"),
        **section.fill(
            path,
            "shuffle",
            "use_display_name",
            "num_epochs",
            label_map="label_map_path",
            max_boxes="max_number_of_boxes",
            sample_1_of_n="sample_1_of_n_examples",
        ),
    )


def _read_evaluation_records(section: Section, path: str) -> Records:
    records = _read_records(section, path)
    if section.has("shuffle") and records.shuffle:
        section.log.notes.append(
            f"{section.position('shuffle')}: shuffle has no effect on evaluation: "
            "it scores every image once, in order"
        )
    return dataclasses.replace(records, shuffle=False)


def _with_box_limit(root: Section, data: Data) -> Data:
    """Copies the deprecated `train_config.max_number_of_boxes` into both readers."""
    # The original overwrites the readers, whatever they say themselves.
    train_config = root.child("train_config")
    if not train_config.has("max_number_of_boxes"):
        return data
    limit = train_config.value("max_number_of_boxes", "data.train.max_boxes")
    train_config.value("max_number_of_boxes", "data.evaluation.max_boxes")
    return dataclasses.replace(
        data,
        train=dataclasses.replace(data.train, max_boxes=limit),
        evaluation=dataclasses.replace(data.evaluation, max_boxes=limit),
    )

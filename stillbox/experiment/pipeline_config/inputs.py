"""`InputReader`: where records lie and how they are read."""

import dataclasses

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.section import MessageSection
from stillbox.experiment.schema import Data, Records
from stillbox.experiment.sections import part

_read = part(
    Records,
    label_map="label_map_path",
    max_boxes="max_number_of_boxes",
    sample_1_of_n="sample_1_of_n_examples",
)


def read_data(root: MessageSection) -> Data:
    """Reads both input readers. A config without any still serves for predicting."""
    readers = root.children("eval_input_reader")
    if len(readers) > 1:
        raise UserError(
            "there is a second eval_input_reader, and stillbox scores one set of records",
            where=readers[1].where(),
            fix="keep one; other records are named on the command line of evaluate",
        )
    train, evaluation = Records(), Records(shuffle=False)
    if root.has("train_input_reader"):
        train = _read_records(root.child("train_input_reader"), "data.train")
    for reader in readers:
        evaluation = _read_records(reader, "data.evaluation")
        if reader.has("shuffle") and evaluation.shuffle:
            reader.note(
                "shuffle",
                "shuffle has no effect on evaluation: it scores every image once, in order",
            )
        if evaluation.num_epochs > 1:
            reader.note(
                "num_epochs",
                f"num_epochs = {evaluation.num_epochs} is read as 1: the original reads the images "
                "as often, and scores each of them once",
            )
        epochs = min(evaluation.num_epochs, 1)
        evaluation = dataclasses.replace(evaluation, shuffle=False, num_epochs=epochs)
    return Data(train=train, evaluation=evaluation)


def _read_records(section: MessageSection, path: str) -> Records:
    name = section.member("input_reader", {"tf_record_input_reader": None})
    # The format calls the same thing INPUT_DEFAULT.
    if section.value("input_type") == "tf_sequence_example":
        raise UserError(
            "InputReader.input_type = TF_SEQUENCE_EXAMPLE: sequences of frames are not supported",
            where=section.where("input_type"),
            fix="write a tf.Example for each frame",
        )
    paths = section.child(name).value("input_path", f"{path}.paths")
    records: Records = _read(section, path, paths=paths)
    return records

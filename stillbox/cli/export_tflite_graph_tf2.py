"""`stillbox export_tflite_graph_tf2`: the TFLite export of the Object Detection API with its flags.

`stillbox export --format tflite` does the same with stillbox's own options.
"""

import argparse

from stillbox.cli.arguments import add_option, add_switch, note
from stillbox.cli.export import show_export
from stillbox.cli.exporter_main_v2 import add_model_flags, model_flags
from stillbox.devices.announcing import say_aside


def add_export_tflite_graph_tf2(parser: argparse.ArgumentParser) -> None:
    """`stillbox export_tflite_graph_tf2`: the TFLite export of the Detection API with its flags.

    `stillbox export --format tflite` does the same with stillbox's own options.
    """
    add_model_flags(parser)
    about = "most detections in an image"
    add_option(parser, "--max_detections", 10, about, "K")
    about = "suppress in each class; otherwise each box has its best class only"
    add_switch(parser, "ssd_use_regular_nms", about)


def run_export_tflite_graph_tf2(arguments: argparse.Namespace) -> int:
    """Writes `model.tflite`; the original writes a SavedModel for TFLite's converter."""
    from stillbox.api import export

    changes = []
    if not arguments.ssd_use_regular_nms:
        # TFLite_Detection_PostProcess suppresses across classes by default.
        changes.append("model.postprocessing.nms.class_agnostic=true")
    exported = export(
        **model_flags(arguments, changes),
        output=arguments.output_directory,
        overwrite=arguments.overwrite,
        say=say_aside,
        format="tflite",
        signature="detection_api",
        max_detections=arguments.max_detections,
    )
    note("model.tflite is what TFLite's converter would make of the original's SavedModel")
    show_export(exported)
    return 0

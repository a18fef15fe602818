"""The check of the installation that tutorials begin with, `model_builder_tf2_test.py`."""

import sys
import time
import unittest
from pathlib import Path
from typing import TextIO

import numpy as np

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.resolve import resolve
from stillbox.records.example import Example
from stillbox.records.label_map import LabelMap
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import frame, unframe

_RECIPES = {
    "ssd": ("ssd_mobilenet_v2_fpnlite_320x320", "ssd_resnet50_v1_fpn_640x640"),
    "efficientdet": ("efficientdet_d0_512x512",),
    "faster_rcnn": ("faster_rcnn_resnet50_v1_640x640",),
}


class ModelBuilderTF2Test(unittest.TestCase):
    """Devices, models, configs and records, without data."""

    def test_session(self) -> None:
        """A device computes."""
        import jax

        self.assertEqual(int(jax.numpy.arange(4).sum()), 6)

    def test_create_ssd_models_from_config(self) -> None:
        """The usual SSDs can be built."""
        self._build("ssd")

    def test_create_efficientdet_from_config(self) -> None:
        """An EfficientDet can be built."""
        self._build("efficientdet")

    def test_create_faster_rcnn_models_from_config(self) -> None:
        """A Faster R-CNN can be built."""
        self._build("faster_rcnn")

    def _build(self, family: str) -> None:
        from stillbox.models.build import abstract_detector

        for recipe in _RECIPES[family]:
            with self.subTest(recipe):
                model = resolve(recipe).experiment.model
                self.assertTrue(abstract_detector(model, "float32").params)

    def test_unknown_ssd_feature_extractor(self) -> None:
        """A config with an unknown word is refused by file and line."""
        text = 'model {\n ssd { feature_extractor { type: "ssd_unknown" } } }'
        with self.assertRaisesRegex(UserError, "pipeline.config:2"):
            read_pipeline_config(text, "pipeline.config", name="pipeline")

    def test_records(self) -> None:
        """A record is written and read."""
        none = np.zeros((0, 4), np.float32)
        example = Example(
            image_id="1",
            encoded=b"",
            filename="",
            height=1,
            width=1,
            boxes=none,
            class_ids=np.zeros(0, np.int32),
        )
        payload = serialize_example(example, LabelMap.from_names(["cat"]))
        self.assertEqual(unframe(frame(payload)), payload)

    def test_protos(self) -> None:
        """The messages of pipeline.config can be made."""
        from stillbox_legacy.tutorials.protos import load_module

        config = load_module("pipeline").TrainEvalPipelineConfig()
        config.model.ssd.num_classes = 3
        self.assertEqual(config.model.WhichOneof("model"), "ssd")


class _Result(unittest.TestResult):
    """Prints each test as the original's runner does."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def _say(self, word: str, test: unittest.TestCase) -> None:
        print(f"[ {word:>8} ] {_name(test)}", file=self._stream, flush=True)

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Prints the beginning of a test."""
        super().startTest(test)
        print(f"[ RUN      ] {_name(test)}", file=self._stream, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Prints a success."""
        super().addSuccess(test)
        self._say("OK", test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        """Prints why a test is left out."""
        super().addSkip(test, reason)
        self._say("SKIPPED", test)
        print(reason, file=self._stream)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Prints a failure."""
        for failed, trace in (*self.failures, *self.errors):
            # A failed part of a test stands for itself in these lists.
            if getattr(failed, "test_case", failed) is test:
                self._say("FAILED", test)
                print(trace, file=self._stream)
        super().stopTest(test)


def _name(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def check_installation(stream: TextIO) -> bool:
    """Runs the tests, prints them as the original does, and returns whether all have passed."""
    python = sys.version.split()[0]
    print(f"Running tests under Python {python}: {Path(sys.executable)}", file=stream)
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(ModelBuilderTF2Test)
    result, started = _Result(stream), time.perf_counter()
    tests.run(result)
    seconds = time.perf_counter() - started
    print(f"{'-' * 70}\nRan {result.testsRun} tests in {seconds:.3f}s\n", file=stream)
    skipped = f" (skipped={len(result.skipped)})" if result.skipped else ""
    failed = f"FAILED (failures={len(result.failures) + len(result.errors)})"
    print(f"OK{skipped}" if result.wasSuccessful() else failed, file=stream)
    return result.wasSuccessful()

from stillbox.api import evaluate as evaluate
from stillbox.api import export as export
from stillbox.api import load as load
from stillbox.api import train as train
from stillbox.errors import UserError as UserError
from stillbox.evaluation.tiling import Tiling as Tiling
from stillbox.experiment.imports import import_parts as import_parts
from stillbox.experiment.schema import Experiment as Experiment
from stillbox.exporting.benchmarking.runner import benchmark as benchmark
from stillbox.exporting.benchmarking.subjects import BenchmarkSettings as BenchmarkSettings
from stillbox.exporting.settings import ExportSettings as ExportSettings
from stillbox.predicting.detections import Detection as Detection
from stillbox.predicting.detections import Detections as Detections
from stillbox.predicting.predictor import Predictor as Predictor
from stillbox.predicting.selection import Selection as Selection

__version__: str

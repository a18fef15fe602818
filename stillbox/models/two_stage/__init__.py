"""Two-stage detectors: Faster R-CNN."""

from stillbox.experiment.variants import import_all

import_all(__name__, __path__)

"""Box heads; each file registers its own."""

from stillbox.experiment.variants import import_all

import_all(__name__, __path__)

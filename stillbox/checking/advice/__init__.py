"""What experience says about an experiment that no rule forbids; one small function each.

Rules (`experiment/rules`) refuse what contradicts itself. Advice is about what trains badly, is
lost, or has no effect. `COUNSELS` is the list of all of them: a new one is a function and a line.
"""

from stillbox.checking.advice.advice import Advice, Counsel
from stillbox.checking.advice.averages import AVERAGE_COUNSELS
from stillbox.checking.advice.files import FILE_COUNSELS
from stillbox.checking.advice.freezing import FREEZING_COUNSELS
from stillbox.checking.advice.rates import RATE_COUNSELS
from stillbox.checking.advice.steps import STEP_COUNSELS
from stillbox.checking.advice.targets import TARGET_COUNSELS
from stillbox.checking.advice.unused import UNUSED_COUNSELS

COUNSELS: tuple[Counsel, ...] = (
    *TARGET_COUNSELS,
    *RATE_COUNSELS,
    *STEP_COUNSELS,
    *AVERAGE_COUNSELS,
    *UNUSED_COUNSELS,
    *FILE_COUNSELS,
    *FREEZING_COUNSELS,
)
"""All of them."""

__all__ = ["COUNSELS", "Advice", "Counsel"]

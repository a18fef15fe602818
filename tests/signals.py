"""Signals that come at a step of a run."""

import os
import signal

from stillbox.training import loop


def send_at(monkeypatch, step, number=signal.SIGTERM):
    """Sends this process a signal as soon as a step of the next runs has been dispatched."""

    class Trigger(loop.MetricsGuard):
        def push(self, done, *rest):
            super().push(done, *rest)
            if done == step:
                os.kill(os.getpid(), number)

    monkeypatch.setattr(loop, "MetricsGuard", Trigger)

"""The ends of passes over the records."""

from datetime import timedelta

from stillbox.training.speed import Speedometer


class Epochs:
    """Finds the steps at which an epoch ends, and summarises the epoch.

    If epochs are short, one sentence summarises several.

    Args:
        records: images of an epoch.
        batch_size: images of a step.
        first: steps done before this run.
        apart: least number of steps between two sentences.
        speedometer: looked at for nothing but epochs.
    """

    def __init__(
        self, *, records: int, batch_size: int, first: int, apart: int, speedometer: Speedometer
    ) -> None:
        self._records, self._batch_size = records, batch_size
        self._apart, self._speedometer = apart, speedometer
        self._first = self._said_at = first
        self._said = self._ended_by(first)

    def ended(self, step: int, done: int) -> str:
        """Returns a sentence if an epoch ends with this step and a sentence is due.

        Args:
            step: every step is asked about, in order.
            done: steps of this run that are done by now.
        """
        now = self._ended_by(step)
        if now == self._ended_by(step - 1) or step - self._said_at < self._apart:
            return ""
        stretch = self._speedometer.look(done)
        before, self._said, since, self._said_at = self._said, now, self._said_at, step
        which = f"epoch {now}" if now == before + 1 else f"epochs {before + 1} to {now}"
        # A run that was resumed in the middle of an epoch trains on the rest of it only.
        part = since == self._first and since * self._batch_size % self._records
        from_where = f" (from step {since} on)" if part else ""
        duration, rate = timedelta(seconds=round(stretch.seconds)), stretch.images_per_second
        return f"{which} finished{from_where}: {duration}, {rate:,.1f} images/s"

    def _ended_by(self, step: int) -> int:
        return step * self._batch_size // self._records

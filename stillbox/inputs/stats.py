"""Counts over the output of a loader."""

import threading
from dataclasses import dataclass, field
from typing import Any

from stillbox.printing import count_text


@dataclass
class InputStats:
    """Counts over all batches of a loader so far, repeated epochs included."""

    max_boxes: int
    """Boxes in a row of the batch."""
    images: int = 0
    """Rows filled with an image."""
    left_out: int = 0
    """Rows whose record or image could not be used; not counted elsewhere."""
    boxes: int = 0
    """Boxes after augmentation."""
    truncated_boxes: int = 0
    """Boxes beyond `max_boxes`."""
    truncated_images: int = 0
    """Images with boxes beyond `max_boxes`."""
    most_boxes: int = 0
    """Most boxes of one image."""
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def truncated_share(self) -> float:
        """Share of all boxes that was truncated."""
        return self.truncated_boxes / self.boxes if self.boxes else 0.0

    def add_image(self, boxes: int) -> None:
        """Counts an image with a number of boxes."""
        beyond = max(boxes - self.max_boxes, 0)
        with self._lock:
            self.images += 1
            self.boxes += boxes
            self.truncated_boxes += beyond
            self.truncated_images += beyond > 0
            self.most_boxes = max(self.most_boxes, boxes)

    def add_left_out(self) -> None:
        """Counts a row that stays empty."""
        with self._lock:
            self.left_out += 1

    def summary(self) -> str:
        """Returns the counts in one line."""
        parts = [f"inputs: {count_text(self.images, 'image')} with {count_text(self.boxes, 'box')}"]
        if self.truncated_boxes:
            parts.append(
                f"{count_text(self.truncated_boxes, 'box')} ({self.truncated_share:.2%}) in "
                f"{count_text(self.truncated_images, 'image')} cut off beyond "
                f"max_boxes={self.max_boxes}; the fullest image has {self.most_boxes}"
            )
        if self.left_out:
            parts.append(f"{count_text(self.left_out, 'unusable record')} left out")
        return "; ".join(parts)

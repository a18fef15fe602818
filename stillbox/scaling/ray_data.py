"""Detects in many image files by Ray Data, into a table that a later run continues."""

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from stillbox.devices.setup import prepare_process
from stillbox.errors import UserError
from stillbox.extras import import_extra
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.selection import USUAL, Selection
from stillbox.scaling.image_files import ImageFile, list_images
from stillbox.scaling.ray_cluster import connected
from stillbox.scaling.ray_map import outcome_row, outcomes
from stillbox.scaling.table import DetectionTable, PartCount, write_part

if TYPE_CHECKING:
    from ray import ObjectRef

_MOST_IN_PART = 512
_UNREAD_KEPT = 20


@dataclass(kw_only=True)
class Summary:
    """Results of a run."""

    images: int
    """Images that match the patterns."""
    others: int
    """Other files that match the patterns."""
    done_before: int
    """Images that were in the table before."""
    predicted: int = 0
    """Images with detections that this run has added."""
    bad: int = 0
    """Images that this run has added with an error."""
    unread: int = 0
    """Images that could not be read, because of permissions or the network. They are not in the
    table, and the next run tries them again."""
    first_unread: list[str] = field(default_factory=list)
    """The first of them, with the reason."""

    def lines(self) -> list[str]:
        """Returns a line of text for each count that is not 0."""
        counts = {
            "images found": self.images,
            "files passed over, which are no images by their suffix": self.others,
            "images were in the table before": self.done_before,
            "images detected in": self.predicted,
            "images entered with an error": self.bad,
            "images could not be read and are tried again by the next run": self.unread,
        }
        return [f"{count:,} {name}" for name, count in counts.items() if count] + self.first_unread


def predict_files(
    predictor: Predictor,
    patterns: Sequence[str],
    output: str,
    *,
    selection: Selection = USUAL,
    workers: int = 0,
    on_image: Callable[[int, int], None] = lambda done, total: None,
    ray_options: Mapping[str, object] | None = None,
) -> Summary:
    """Detects in image files and writes a `DetectionTable`.

    The same call continues a run that was killed: images in the table are left out.

    Args:
        predictor: sent to every worker, which compiles it once.
        patterns: see `list_images`.
        output: folder of the table, a path or an address such as `s3://bucket/detections`.
        workers: processes; 0: one for each GPU of the cluster, or for each machine if there is
            none, since one process uses all processors of a machine.
        on_image: called with the numbers of images that are done and that are to do.
        ray_options: further arguments of Ray Data's `map_batches`, such as `num_cpus`.

    Raises:
        UserError: an extra is missing, a pattern matches nothing, or the table is of another
            model.
        OSError: the table cannot be written to.
    """
    import_extra("pyarrow", "ray")
    listing = list_images(patterns)
    made_by = f"{predictor.backend.source}, {selection}"
    if predictor.tiling is not None:
        made_by += f", {predictor.tiling}"
    table = DetectionTable.open(output, made_by)
    done = table.images()
    todo = [image for image in listing.images if image.name not in done]
    summary = Summary(
        images=len(listing.images),
        others=listing.others,
        done_before=len(listing.images) - len(todo),
    )
    if todo:
        with connected():
            counts = _run(predictor, todo, table, selection, workers, dict(ray_options or {}))
            for count in counts:
                _add(summary, count)
                on_image(summary.predicted + summary.bad + summary.unread, len(todo))
    return summary


def _run(
    predictor: Predictor,
    todo: Sequence[ImageFile],
    table: DetectionTable,
    selection: Selection,
    workers: int,
    options: dict[str, object],
) -> Iterator[PartCount]:
    """Returns the counts of each part, as they come."""
    import ray

    gpus = int(ray.cluster_resources().get("GPU", 0))
    if gpus:
        options.setdefault("num_gpus", 1)
    machines = sum(node["Alive"] and "CPU" in node["Resources"] for node in ray.nodes())
    # With an autoscaler, no machine may have been started yet.
    workers = workers or gpus or max(machines, 1)
    size = _part_size(len(todo), workers, predictor.batch_size)
    parts = [pickle.dumps(todo[start : start + size]) for start in range(0, len(todo), size)]
    return outcomes(
        _Worker,
        parts,
        ordered=False,
        # By reference: one copy of the weights in the memory of each machine.
        fn_constructor_args=(ray.put(predictor), table, selection),
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(parts))),
        **options,
    )


def _part_size(images: int, workers: int, batch_size: int) -> int:
    """Returns images in a part: full batches, and at least four parts for each worker."""
    wanted = min(_MOST_IN_PART, math.ceil(images / (4 * workers)))
    return math.ceil(wanted / batch_size) * batch_size


def _add(summary: Summary, count: PartCount) -> None:
    summary.predicted += count.predicted
    summary.bad += count.bad
    summary.unread += len(count.unread)
    summary.first_unread += count.unread[: _UNREAD_KEPT - len(summary.first_unread)]


class _Worker:
    """Writes the parts that Ray Data sends to one process."""

    def __init__(self, predictor: "ObjectRef", table: DetectionTable, selection: Selection) -> None:
        self._predictor, self._table, self._selection = predictor, table, selection

    @cached_property
    def _compiled(self) -> Predictor:
        import ray

        prepare_process()
        predictor: Predictor = ray.get(self._predictor)
        predictor.warm_up()
        return predictor

    def __call__(self, batch: dict[str, Sequence[bytes]]) -> dict[str, list[bytes]]:
        images = pickle.loads(batch["part"][0])
        try:
            return outcome_row(write_part(self._compiled, self._table, images, self._selection))
        except (UserError, OSError) as error:
            return outcome_row(error)

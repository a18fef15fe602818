"""All metrics of an experiment, under one set of names, and as plain-text tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stillbox.evaluation.coco import (
    NO_TRUTH,
    ORIGINAL_NAMES,
    SUMMARY_MEANINGS,
    ClassScores,
    CocoScores,
    score_coco,
)
from stillbox.evaluation.matching import Confidence
from stillbox.evaluation.results import FloatArray, ImageResult, ImageTruth
from stillbox.evaluation.voc import VocRules, VocScores, score_voc
from stillbox.experiment.schema.training import Metric
from stillbox.printing import printable_line

VOC_MEANINGS: dict[str, str] = {
    "VOC_mAP": "mean over classes",
    "VOC_weighted_mAP": "all classes in one list",
}
"""The keys of Pascal VOC's metrics in `Scores.summary`, with their meaning."""
OPEN_IMAGES_MEANINGS: dict[str, str] = {
    "OpenImages_mAP": "mean over classes, detections inside groups ignored",
}
"""The key of Open Images' metric in `Scores.summary`, with its meaning."""
_CLASS_COLUMNS = {"voc": "VOC_AP", "open_images": "OpenImages_AP"}

# object_detection/utils/object_detection_evaluation.py
_VOC_PREFIXES = {"VOC_mAP": "PascalBoxes_", "VOC_weighted_mAP": "WeightedPascalBoxes_"}
_OPEN_IMAGES_PREFIX = "OpenImagesV2_"
MEANINGS: dict[str, str] = SUMMARY_MEANINGS | VOC_MEANINGS | OPEN_IMAGES_MEANINGS
"""All keys that `Scores.summary` may have, in the order in which they are shown."""

HEADLINE = ("AP", "AP50", "AP75", *VOC_MEANINGS, *OPEN_IMAGES_MEANINGS)
"""The keys that the headline shows, the curves of a report draw and checkpoints are compared by."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The requested metrics of one set of detections."""

    coco: CocoScores | None = None
    voc: VocScores | None = None
    voc_keys: tuple[str, ...] = ()
    """The requested keys of `VOC_MEANINGS`."""
    open_images: VocScores | None = None

    @property
    def summary(self) -> dict[str, float | None]:
        """The numbers under the keys of `MEANINGS`; `None`: nothing to find."""
        summary = dict(self.coco.summary) if self.coco else {}
        if self.voc:
            both = {"VOC_mAP": self.voc.mean_ap, "VOC_weighted_mAP": self.voc.pooled_ap}
            summary |= {key: both[key] for key in self.voc_keys}
        if self.open_images:
            summary["OpenImages_mAP"] = self.open_images.mean_ap
        return summary

    @property
    def first(self) -> CocoScores | VocScores:
        """The scores that counts and classes are shown of: COCO's, else VOC's or Open Images'."""
        first = self.coco or self.voc or self.open_images
        assert first is not None  # an experiment has at least one metric
        return first

    def text(self, key: str) -> str:
        """Returns a number of the summary to three places, or why there is none."""
        if self.coco and key in self.coco.summary:
            return self.coco.text(key)
        value = self.summary[key]
        return NO_TRUTH if value is None else f"{value:.3f}"

    def meaning(self, key: str) -> str:
        """Returns the meaning of a number of the summary."""
        if self.voc is None or key not in VOC_MEANINGS:
            return MEANINGS[key]
        rules = self.voc.rules
        pixels = ", inclusive pixels" * rules.inclusive
        points = ", eleven points" * (rules.interpolation == "eleven_points")
        iou = f"{rules.min_iou:.2f}".removeprefix("0")
        return f"{MEANINGS[key]}, IoU at least {iou}{pixels}{points}"

    def headline(self) -> str:
        """Returns the most important numbers in one line."""
        keys = [key for key in HEADLINE if key in self.summary]
        return ", ".join(f"{key} {self.text(key)}" for key in keys)

    def class_numbers(self, name: str, *, all_metrics: bool = False) -> dict[str, float | None]:
        """Returns the numbers of a class of `first.per_class`, all twelve of COCO's or four."""
        numbers: dict[str, float | None] = {}
        if self.coco:
            keys = SUMMARY_MEANINGS if all_metrics else ("AP", "AP50", "AP75", "AR100")
            numbers |= {key: self.coco.per_class[name].numbers[key] for key in keys}
        if self.voc:
            numbers["VOC_AP"] = self.voc.per_class[name].ap
        if self.open_images:
            numbers["OpenImages_AP"] = self.open_images.per_class[name].ap
        return numbers

    @property
    def class_columns(self) -> tuple[str, ...]:
        """The keys of `class_numbers` beside COCO's."""
        return tuple(key for name, key in _CLASS_COLUMNS.items() if getattr(self, name))

    def curves(self) -> dict[str, tuple[float, FloatArray]]:
        """Returns AP and precision `[101]` at IoU .50 of every class with something to find."""
        curves = {}
        for name, class_scores in self.first.per_class.items():
            ap = (
                class_scores.numbers["AP50"]
                if isinstance(class_scores, ClassScores)
                else class_scores.ap
            )
            precision = (
                class_scores.precision50
                if isinstance(class_scores, ClassScores)
                else class_scores.precision
            )
            if ap is not None and precision is not None:
                curves[name] = ap, precision
        return curves

    def original_names(
        self, *, per_category: bool = False, all_metrics: bool = False
    ) -> dict[str, float | None]:
        """Returns the numbers, of every class too, named as in the Object Detection API."""
        iou = f"{self.voc.rules.min_iou if self.voc else 0.5}IOU"
        of_voc = {key: f"{_VOC_PREFIXES[key]}Precision/mAP@{iou}" for key in self.voc_keys}
        of_open_images = {"OpenImages_mAP": f"{_OPEN_IMAGES_PREFIX}Precision/mAP@0.5IOU"}
        names = ORIGINAL_NAMES | of_voc | of_open_images
        named = {names[key]: value for key, value in self.summary.items()}
        for name in self.first.per_class if per_category else ():
            numbers = self.class_numbers(name, all_metrics=all_metrics)
            if self.coco:
                named[f"DetectionBoxes_PerformanceByCategory/mAP/{name}"] = numbers["AP"]
            if self.coco and all_metrics:
                for key in ORIGINAL_NAMES:
                    named[f"{ORIGINAL_NAMES[key]} ByCategory/{name}"] = numbers[key]
            for key in self.voc_keys:
                prefix = _VOC_PREFIXES[key]
                named[f"{prefix}PerformanceByCategory/AP@{iou}/{name}"] = numbers["VOC_AP"]
            if self.open_images:
                key = f"{_OPEN_IMAGES_PREFIX}PerformanceByCategory/AP@0.5IOU/{name}"
                named[key] = numbers["OpenImages_AP"]
        return named


def score(
    truths: Sequence[ImageTruth],
    results: Sequence[ImageResult],
    class_names: Mapping[int, str],
    *,
    metrics: Sequence[Metric] = ("coco",),
    rules: VocRules | None = None,
) -> Scores:
    """Computes the metrics.

    `truths`, `results` and `class_names`: see `score_coco`; `rules` apply to Pascal VOC's metrics.

    Raises:
        UserError: see `number_images`.
    """
    keys = {"pascal_voc": "VOC_mAP", "weighted_pascal_voc": "VOC_weighted_mAP"}
    voc_keys = tuple(keys[metric] for metric in keys if metric in metrics)
    data = truths, results, class_names
    groups = VocRules(ignore_crowds=True)
    return Scores(
        coco=score_coco(*data) if "coco" in metrics else None,
        voc=score_voc(*data, rules=rules or VocRules()) if voc_keys else None,
        voc_keys=voc_keys,
        open_images=score_voc(*data, rules=groups) if "open_images" in metrics else None,
    )


def scores_table(scores: Scores, *, per_category: bool, all_metrics: bool = False) -> str:
    """Returns the numbers with their meanings, and a line for every class with ground truth."""
    keys = list(scores.summary)
    width = max(6, *map(len, keys))
    lines = [f"{key:{width}} {scores.text(key):>6}  {scores.meaning(key)}" for key in keys]
    return "\n".join([*lines, *(_class_lines(scores, all_metrics) if per_category else ())])


def threshold_text(overall: Confidence) -> str:
    """Returns the threshold with the highest F1 of all classes together, and its figures."""
    if overall.threshold is None:
        return "best threshold: none, because no detection is correct"
    numbers = ", ".join(f"{name} {value:.3f}" for name, value in overall.at_best.items())
    return f"best threshold: {overall.threshold:.3f}, {numbers}"


def steps_table(evaluations: Sequence[tuple[int, Mapping[str, float | None]]], best: str) -> str:
    """Returns a line for every (step, scores). `best` is the first column, its maximum marked."""
    computed = {key for _, scores in evaluations for key in scores}
    keys = [best, *(key for key in HEADLINE if key != best and key in computed)]
    width = max(7, *map(len, keys))
    highest = max((scores.get(best) or 0.0 for _, scores in evaluations), default=0.0)
    lines = [" ".join([f"{'step':>8}", *(f"{key:>{width}}" for key in keys)])]
    for step, scores in evaluations:
        values = [scores.get(key) for key in keys]
        texts = ["-" if value is None else f"{value:.5f}" for value in values]
        mark = ["best"] if highest and values[0] == highest else []
        lines.append(" ".join([f"{step:8d}", *(f"{text:>{width}}" for text in texts), *mark]))
    return "\n".join(lines)


def _class_lines(scores: Scores, all_metrics: bool) -> list[str]:
    columns = [*SUMMARY_MEANINGS] if all_metrics else ["AP", "AP50"]
    columns = [*(columns if scores.coco else ()), *scores.class_columns]
    lines = ["", f"{'class':24} {' '.join(f'{column:>6}' for column in columns)} {'boxes':>6}"]
    for name, class_scores in scores.first.per_class.items():
        if class_scores.truths:
            numbers = scores.class_numbers(name, all_metrics=all_metrics)
            row = " ".join(f"{_number(numbers[column]):>{len(column)}}" for column in columns)
            lines.append(f"{printable_line(name):24} {row} {class_scores.truths:6d}")
    return lines


def _number(value: float | None) -> str:
    return f"{'-':>6}" if value is None else f"{value:6.3f}"

"""Data sets of six pictures in each format, right and as people have them.

A situation changes one thing of a set; `docs/data.md` says what each reader does with it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tests.records.builders import put

HEIGHT, WIDTH = 240, 320
STEMS = tuple(f"p{number}" for number in range(6))
Box = tuple[float, float, float, float]
"""ymin, xmin, ymax, xmax in pixels."""


def box_of(number: int) -> Box:
    return (24 + 12 * number, 36 + 18 * number, 144 + 12 * number, 216 + 18 * number)


def native_pixels(value: float, side: float) -> float:
    return value


def fractions(value: float, side: float) -> float:
    return value / side


def percent(value: float, side: float) -> float:
    return 100 * value / side


@dataclass(frozen=True)
class Boxes:
    """What the annotations of a set say."""

    rows: Sequence[tuple[str, str, Box]] = tuple(
        (f"{stem}.png", "cat", box_of(number)) for number, stem in enumerate(STEMS)
    )
    """Image name, class and box."""
    unit: Callable[[float, float], float] | None = None
    """Makes a pixel the number of the file; None: as the format says."""
    spell: Callable[[float], object] = float
    """Makes a number what is written."""
    classes: Sequence[str] = ("cat",)

    def by_image(self) -> dict[str, list[tuple[str, Box]]]:
        images: dict[str, list[tuple[str, Box]]] = {}
        for image, name, box in self.rows:
            images.setdefault(image, []).append((name, box))
        return images

    def sides(
        self, box: Box, unit_of_format: Callable[[float, float], float]
    ) -> tuple[object, ...]:
        """xmin, ymin, xmax, ymax as written."""
        unit, (y, x, v, u) = self.unit or unit_of_format, box
        pairs = ((x, WIDTH), (y, HEIGHT), (u, WIDTH), (v, HEIGHT))
        return tuple(self.spell(unit(*pair)) for pair in pairs)

    def corner_and_size(
        self, box: Box, unit_of_format: Callable[[float, float], float]
    ) -> tuple[object, ...]:
        unit, (y, x, v, u) = self.unit or unit_of_format, box
        pairs = ((x, WIDTH), (y, HEIGHT), (u - x, WIDTH), (v - y, HEIGHT))
        return tuple(self.spell(unit(*pair)) for pair in pairs)


def yolo(root: Path, boxes: Boxes, place: str = "labels") -> None:
    unit = boxes.unit or fractions
    names = "".join(f"  {n}: {name}\n" for n, name in enumerate(boxes.classes))
    put(root, "data.yaml", f"path: .\ntrain: .\nnames:\n{names}")
    for image, objects in boxes.by_image().items():
        lines = ""
        for name, (y, x, v, u) in objects:
            numbers = (unit((x + u) / 2, WIDTH), unit((y + v) / 2, HEIGHT),
                       unit(u - x, WIDTH), unit(v - y, HEIGHT))  # fmt: skip
            lines += (
                f"{boxes.classes.index(name)} {' '.join(str(boxes.spell(n)) for n in numbers)}\n"
            )
        put(root, f"{place}/{Path(image).stem}.txt", lines)


def voc(root: Path, boxes: Boxes, place: str = "ann") -> None:
    for image, objects in boxes.by_image().items():
        inside = ""
        for name, box in objects:
            x, y, u, v = boxes.sides(box, native_pixels)
            inside += (
                f"<object><name>{name}</name><bndbox><xmin>{x}</xmin><ymin>{y}</ymin>"
                f"<xmax>{u}</xmax><ymax>{v}</ymax></bndbox></object>"
            )
        size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"
        content = f"<annotation><filename>{image}</filename>{size}{inside}</annotation>"
        put(root, f"{place}/{Path(image).stem}.xml", content)


def coco(root: Path, boxes: Boxes, place: str = "a") -> None:
    images = {image: number for number, image in enumerate(boxes.by_image(), 1)}
    put(root, f"{place}.json", {
        "images": [{"id": n, "file_name": image, "height": HEIGHT, "width": WIDTH}
                   for image, n in images.items()],
        "annotations": [
            {"id": n, "image_id": images[image], "category_id": 1 + boxes.classes.index(name),
             "bbox": boxes.corner_and_size(box, native_pixels)}
            for n, (image, name, box) in enumerate(boxes.rows, 1)],
        "categories": [{"id": n, "name": name} for n, name in enumerate(boxes.classes, 1)],
    })  # fmt: skip


def cvat(root: Path, boxes: Boxes, place: str = "a") -> None:
    content = ""
    for number, (image, objects) in enumerate(boxes.by_image().items()):
        content += f'<image id="{number}" name="{image}" width="{WIDTH}" height="{HEIGHT}">'
        for name, box in objects:
            x, y, u, v = boxes.sides(box, native_pixels)
            content += f'<box label="{name}" xtl="{x}" ytl="{y}" xbr="{u}" ybr="{v}"/>'
        content += "</image>"
    labels = "".join(f"<label><name>{name}</name></label>" for name in boxes.classes)
    meta = f"<meta><task><labels>{labels}</labels></task></meta>"
    put(root, f"{place}.xml", f"<annotations>{meta}{content}</annotations>")


def labelme(root: Path, boxes: Boxes, place: str = "json") -> None:
    for image, objects in boxes.by_image().items():
        shapes = []
        for name, box in objects:
            x, y, u, v = boxes.sides(box, native_pixels)
            shape = {"label": name, "shape_type": "rectangle", "points": [[x, y], [u, v]]}
            shapes.append(shape)
        put(root, f"{place}/{Path(image).stem}.json", {
            "shapes": shapes, "imagePath": image, "imageData": None,
            "imageHeight": HEIGHT, "imageWidth": WIDTH,
        })  # fmt: skip


def _table(root: Path, name: str, rows: Sequence[Sequence[object]]) -> None:
    lines = (",".join(f'"{cell}"' for cell in map(str, row)) for row in rows)
    put(root, name, "\n".join(lines) + "\n")


def open_images(root: Path, boxes: Boxes, place: str = "a") -> None:
    header = ("ImageID", "LabelName", "Confidence", "XMin", "YMin", "XMax", "YMax")
    rows = [(Path(image).stem, name, 1, *boxes.sides(box, fractions))
            for image, name, box in boxes.rows]  # fmt: skip
    _table(root, f"{place}.csv", [header, *rows])


def voc_csv(root: Path, boxes: Boxes, place: str = "a") -> None:
    header = ("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax")
    rows = [(image, WIDTH, HEIGHT, name, *boxes.sides(box, native_pixels))
            for image, name, box in boxes.rows]  # fmt: skip
    _table(root, f"{place}.csv", [header, *rows])


def label_studio(root: Path, boxes: Boxes, place: str = "a") -> None:
    tasks = []
    for image, objects in boxes.by_image().items():
        results = []
        for number, (name, box) in enumerate(objects):
            x, y, w, h = boxes.corner_and_size(box, percent)
            value = {"x": x, "y": y, "width": w, "height": h, "rectanglelabels": [name]}
            results.append({"id": f"r{number}", "type": "rectanglelabels", "value": value,
                            "original_width": WIDTH, "original_height": HEIGHT})  # fmt: skip
        task = {"data": {"image": f"/data/upload/{image}"}, "annotations": [{"result": results}]}
        tasks.append(task)
    put(root, f"{place}.json", tasks)


def hugging_face(root: Path, boxes: Boxes, place: str = "images") -> None:
    lines = []
    for image, objects in boxes.by_image().items():
        bboxes = [boxes.corner_and_size(box, native_pixels) for _, box in objects]
        names = [name for name, _ in objects]
        lines.append({"file_name": image, "objects": {"bbox": bboxes, "category": names}})
    put(root, f"{place}/metadata.jsonl", "\n".join(map(json.dumps, lines)) + "\n")


Writer = Callable[..., None]
FORMATS: dict[str, Writer] = {
    "YOLO": yolo,
    "VOC": voc,
    "COCO": coco,
    "CVAT": cvat,
    "LabelMe": labelme,
    "Open Images": open_images,
    "CSV": voc_csv,
    "Label Studio": label_studio,
    "Hugging Face": hugging_face,
}


def save_picture(path: Path, number: int) -> None:
    """Writes a picture that is near-identical to none of another number."""
    blocks = np.random.default_rng(number).integers(0, 255, (5, 6, 3), dtype=np.uint8)
    image = Image.fromarray(blocks).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def pictures(root: Path) -> None:
    for number, stem in enumerate(STEMS):
        save_picture(root / "images" / f"{stem}.png", number)


def annotation_files(root: Path) -> list[Path]:
    files = (".json", ".xml", ".csv", ".jsonl", ".txt")
    return sorted(f for f in root.rglob("*") if f.suffix in files)


def right(root: Path, write: Writer) -> None:
    write(root, Boxes())


def cut_off(root: Path, write: Writer) -> None:
    """The last file ends in the middle, as after a full disk."""
    write(root, Boxes())
    last = annotation_files(root)[-1]
    last.write_bytes(last.read_bytes()[: last.stat().st_size * 2 // 3])


def in_fractions(root: Path, write: Writer) -> None:
    write(root, Boxes(unit=fractions))


def in_pixels(root: Path, write: Writer) -> None:
    write(root, Boxes(unit=native_pixels))


def in_percent(root: Path, write: Writer) -> None:
    write(root, Boxes(unit=percent))


def twice(root: Path, write: Writer) -> None:
    write(root, Boxes(rows=3 * Boxes().rows))


def in_two_places(root: Path, write: Writer) -> None:
    other = [(image, name, (1.0, 1.0, 90.0, 90.0)) for image, name, _ in Boxes().rows]
    write(root, Boxes(), place="one")
    write(root, Boxes(rows=other), place="two")


def half(root: Path, write: Writer) -> None:
    write(root, Boxes(rows=Boxes().rows[:3]))


def as_text(root: Path, write: Writer) -> None:
    write(root, Boxes(spell=lambda value: f"{value:.5f}"))


def with_commas(root: Path, write: Writer) -> None:
    write(root, Boxes(spell=lambda value: f"{value:.5f}".replace(".", ",")))


def odd_names(root: Path, write: Writer) -> None:
    names = ("yes", "no", "010", "1.10", "~", "12:30")
    rows = [(image, name, box) for (image, _, box), name in zip(Boxes().rows, names, strict=True)]
    write(root, Boxes(rows=rows, classes=names))


def other_suffix(root: Path, write: Writer) -> None:
    write(root, Boxes(rows=[(Path(i).stem + ".jpg", name, box) for i, name, box in Boxes().rows]))


def other_case(root: Path, write: Writer) -> None:
    write(root, Boxes(rows=[(image.upper(), name, box) for image, name, box in Boxes().rows]))


def one_absent(root: Path, write: Writer) -> None:
    write(root, Boxes())
    (root / "images" / "p5.png").rename(root / "images" / "q5.png")


def no_boxes(root: Path, write: Writer) -> None:
    write(root, Boxes(spell=lambda value: "none"))


def twelve_bits(root: Path, write: Writer) -> None:
    write(root, Boxes())
    for file in (root / "images").glob("*.png"):
        with Image.open(file) as image:
            gray = np.asarray(image.convert("L"), np.uint16)
        Image.fromarray(gray << 4).save(file)


def damaged_image(root: Path, write: Writer) -> None:
    write(root, Boxes())
    (root / "images" / "p5.png").write_bytes(b"<!DOCTYPE html><html></html>")


def beside_notes(root: Path, write: Writer) -> None:
    write(root, Boxes())
    put(root, "settings.json", {"theme": "dark"})


SITUATIONS: dict[str, Callable[[Path, Writer], None]] = {
    "as the format says": right,
    "a file is cut off": cut_off,
    "all boxes in fractions": in_fractions,
    "all boxes in pixels": in_pixels,
    "all boxes in percent": in_percent,
    "the same box three times": twice,
    "an image annotated in two places": in_two_places,
    "images without annotation": half,
    "numbers as text": as_text,
    "decimal commas": with_commas,
    "classes `yes`, `010`, `~`, `12:30`": odd_names,
    "image names with another suffix": other_suffix,
    "image names in capitals": other_case,
    "an image is missing": one_absent,
    "no box is a number": no_boxes,
    "images with 12 bits": twelve_bits,
    "an image file is a web page": damaged_image,
    "another JSON file": beside_notes,
}

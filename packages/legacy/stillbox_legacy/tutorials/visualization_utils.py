"""`object_detection.utils.visualization_utils`: boxes, labels, masks and keypoints on arrays.

The functions have the names, arguments and defaults of the original, and change the image that they
are given. Functions that make graphs of TensorFlow are
left out.
"""

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw

from stillbox.evaluation.drawing import load_font, text_color

STANDARD_COLORS = sorted(set(ImageColor.colormap) - {"black", "white"})
"""Names of the colours of classes, in the order of their ids."""
_MARGIN = 0.05
_LABEL_SIZE = 15


def visualize_boxes_and_labels_on_image_array(
    image: np.ndarray,
    boxes: np.ndarray,
    classes: np.ndarray,
    scores: np.ndarray | None,
    category_index: Mapping[int, Mapping[str, Any]],
    instance_masks: np.ndarray | None = None,
    instance_boundaries: np.ndarray | None = None,
    keypoints: np.ndarray | None = None,
    keypoint_scores: np.ndarray | None = None,
    keypoint_edges: Sequence[tuple[int, int]] | None = None,
    track_ids: np.ndarray | None = None,
    use_normalized_coordinates: bool = False,
    max_boxes_to_draw: int | None = 20,
    min_score_thresh: float = 0.5,
    agnostic_mode: bool = False,
    line_thickness: int = 4,
    mask_alpha: float = 0.4,
    groundtruth_box_visualization_color: str = "black",
    skip_boxes: bool = False,
    skip_scores: bool = False,
    skip_labels: bool = False,
    skip_track_ids: bool = False,
) -> np.ndarray:
    """Draws detections on an image; boxes in the same place share their label.

    Args:
        image: `[H, W, 3]` uint8; it is changed.
        boxes: `[N, 4]`, ymin, xmin, ymax, xmax.
        classes: `[N]`, ids of the category index.
        scores: `[N]`; None: the boxes are ground truth.
        category_index: categories with `name`, by id.
        instance_masks: `[N, H, W]` of 0 and 1.
        instance_boundaries: `[N, H, W]`, drawn opaque.
        keypoints: `[N, K, 2]`, y and x.
        keypoint_scores: `[N, K]`; those below `min_score_thresh` are left out.
        keypoint_edges: pairs of keypoints to join.
        track_ids: `[N]`, which choose the colours.
        use_normalized_coordinates: boxes and keypoints are in 0..1.
        max_boxes_to_draw: of the first rows; None: all.
        min_score_thresh: least score.
        agnostic_mode: one colour, and no names.
        line_thickness: of outlines, in pixels.
        mask_alpha: opacity of masks.
        groundtruth_box_visualization_color: colour without scores.
        skip_boxes: draw no outlines.
        skip_scores: write no scores.
        skip_labels: write no names.
        skip_track_ids: write no track ids.

    Returns:
        The image.
    """
    texts: dict[tuple[float, ...], list[str]] = defaultdict(list)
    colors: dict[tuple[float, ...], str] = {}
    rows: dict[tuple[float, ...], int] = {}
    count = boxes.shape[0] if max_boxes_to_draw is None else min(max_boxes_to_draw, boxes.shape[0])
    for row in range(count):
        if scores is not None and not scores[row] > min_score_thresh:
            continue
        box = tuple(boxes[row].tolist())
        rows[box] = row
        if scores is None:
            colors[box] = groundtruth_box_visualization_color
            continue
        parts = []
        if not skip_labels and not agnostic_mode:
            known = category_index.get(int(classes[row]))
            parts.append(str(known["name"]) if known else "N/A")
        if not skip_scores:
            parts.append(f"{round(100 * float(scores[row]))}%")
        text = ": ".join(parts)
        color = int(classes[row])
        if track_ids is not None:
            color = int(track_ids[row]) * 7
            if not skip_track_ids:
                text = f"{text}: ID {track_ids[row]}" if text else f"ID {track_ids[row]}"
        texts[box].append(text)
        colors[box] = (
            "darkorange" if agnostic_mode else STANDARD_COLORS[color % len(STANDARD_COLORS)]
        )
    for box, color_name in colors.items():
        row = rows[box]
        if instance_masks is not None:
            draw_mask_on_image_array(image, instance_masks[row], color_name, mask_alpha)
        if instance_boundaries is not None:
            draw_mask_on_image_array(image, instance_boundaries[row], "red", 1.0)
        ymin, xmin, ymax, xmax = box
        draw_bounding_box_on_image_array(
            image,
            *(ymin, xmin, ymax, xmax),
            color=color_name,
            thickness=0 if skip_boxes else line_thickness,
            display_str_list=texts[box],
            use_normalized_coordinates=use_normalized_coordinates,
        )
        if keypoints is not None:
            draw_keypoints_on_image_array(
                image,
                keypoints[row],
                None if keypoint_scores is None else keypoint_scores[row],
                min_score_thresh=min_score_thresh,
                color=color_name,
                radius=line_thickness / 2,
                use_normalized_coordinates=use_normalized_coordinates,
                keypoint_edges=keypoint_edges,
                keypoint_edge_color=color_name,
                keypoint_edge_width=line_thickness // 2,
            )
    return image


def draw_bounding_box_on_image_array(
    image: np.ndarray,
    ymin: float,
    xmin: float,
    ymax: float,
    xmax: float,
    color: str = "red",
    thickness: int = 4,
    display_str_list: Sequence[str] = (),
    use_normalized_coordinates: bool = True,
) -> None:
    """Draws a box with its texts on an array `[H, W, 3]`."""
    canvas = Image.fromarray(np.uint8(image)).convert("RGB")
    draw_bounding_box_on_image(
        canvas,
        *(ymin, xmin, ymax, xmax, color, thickness, display_str_list, use_normalized_coordinates),
    )
    np.copyto(image, np.array(canvas))


def draw_bounding_box_on_image(
    image: Image.Image,
    ymin: float,
    xmin: float,
    ymax: float,
    xmax: float,
    color: str = "red",
    thickness: int = 4,
    display_str_list: Sequence[str] = (),
    use_normalized_coordinates: bool = True,
) -> None:
    """Draws a box on a picture, and its texts above it, or below if there is no room."""
    draw = ImageDraw.Draw(image)
    width, height = image.size if use_normalized_coordinates else (1, 1)
    left, right, top, bottom = xmin * width, xmax * width, ymin * height, ymax * height
    if thickness > 0:
        corners = [(left, top), (left, bottom), (right, bottom), (right, top), (left, top)]
        draw.line(corners, width=thickness, fill=color)
    font = load_font(_LABEL_SIZE)
    sizes = [font.getbbox(text) for text in display_str_list if text]
    total = sum((1 + 2 * _MARGIN) * size[3] for size in sizes)
    at = top if top > total else bottom + total
    red, green, blue = ImageColor.getrgb(color)[:3]
    for text in [text for text in display_str_list if text][::-1]:
        _, _, across, down = font.getbbox(text)
        margin = np.ceil(_MARGIN * down)
        draw.rectangle([left, at - down - 2 * margin, left + across, at], fill=color)
        ink = text_color((red, green, blue))
        draw.text((left + margin, at - down - margin), text, fill=ink, font=font)
        at -= down + 2 * margin


def draw_bounding_boxes_on_image_array(
    image: np.ndarray,
    boxes: np.ndarray,
    color: str = "red",
    thickness: int = 4,
    display_str_list_list: Sequence[Sequence[str]] = (),
) -> None:
    """Draws boxes `[N, 4]` in 0..1 on an array `[H, W, 3]`."""
    canvas = Image.fromarray(np.uint8(image)).convert("RGB")
    draw_bounding_boxes_on_image(canvas, boxes, color, thickness, display_str_list_list)
    np.copyto(image, np.array(canvas))


def draw_bounding_boxes_on_image(
    image: Image.Image,
    boxes: np.ndarray,
    color: str = "red",
    thickness: int = 4,
    display_str_list_list: Sequence[Sequence[str]] = (),
) -> None:
    """Draws boxes `[N, 4]` in 0..1 on a picture.

    Raises:
        ValueError: the boxes have another shape.
    """
    if boxes.size and (boxes.ndim != 2 or boxes.shape[1] != 4):
        raise ValueError("Input must be of size [N, 4]")
    for row, (ymin, xmin, ymax, xmax) in enumerate(np.reshape(boxes, (-1, 4)).tolist()):
        texts = display_str_list_list[row] if row < len(display_str_list_list) else ()
        draw_bounding_box_on_image(image, ymin, xmin, ymax, xmax, color, thickness, texts)


def draw_mask_on_image_array(
    image: np.ndarray, mask: np.ndarray, color: str = "red", alpha: float = 0.4
) -> None:
    """Blends a mask `[H, W]` of 0 and 1 into an array `[H, W, 3]`.

    Raises:
        ValueError: image or mask have another type, shape or value.
    """
    if image.dtype != np.uint8 or mask.dtype != np.uint8:
        raise ValueError("`image` and `mask` are not of type np.uint8")
    if np.any((mask != 1) & (mask != 0)):
        raise ValueError("`mask` elements should be in [0, 1]")
    if image.shape[:2] != mask.shape:
        raise ValueError(f"The image has {image.shape[:2]} pixels but the mask has {mask.shape}")
    share = (mask * alpha)[..., None]
    paint = np.array(ImageColor.getrgb(color)[:3], np.float64)
    np.copyto(image, np.uint8(np.rint(image * (1 - share) + paint * share)))


def draw_keypoints_on_image_array(
    image: np.ndarray,
    keypoints: np.ndarray,
    keypoint_scores: np.ndarray | None = None,
    min_score_thresh: float = 0.5,
    color: str = "red",
    radius: float = 2,
    use_normalized_coordinates: bool = True,
    keypoint_edges: Sequence[tuple[int, int]] | None = None,
    keypoint_edge_color: str = "green",
    keypoint_edge_width: int = 2,
) -> None:
    """Draws keypoints `[K, 2]`, y and x, on an array `[H, W, 3]`, and lines between them."""
    canvas = Image.fromarray(np.uint8(image)).convert("RGB")
    draw = ImageDraw.Draw(canvas)
    scale = np.array(image.shape[:2]) if use_normalized_coordinates else np.ones(2)
    points = np.asarray(keypoints, np.float64) * scale
    shown = np.logical_not(np.isnan(points).any(axis=1)).astype(np.bool_)
    if keypoint_scores is not None:
        shown = shown & (np.asarray(keypoint_scores) > min_score_thresh)
    for y, x in points[shown].tolist():
        place = [(x - radius, y - radius), (x + radius, y + radius)]
        draw.ellipse(place, outline=color, fill=color)
    for start, end in keypoint_edges or ():
        if max(start, end) < len(points) and shown[start] and shown[end]:
            (y0, x0), (y1, x1) = points[start].tolist(), points[end].tolist()
            draw.line([(x0, y0), (x1, y1)], fill=keypoint_edge_color, width=keypoint_edge_width)
    np.copyto(image, np.array(canvas))


def encode_image_array_as_png_str(image: np.ndarray) -> bytes:
    """Returns an array `[H, W, 3]` as the content of a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(np.uint8(image)).save(buffer, "PNG")
    return buffer.getvalue()


def save_image_array_as_png(image: np.ndarray, output_path: str) -> None:
    """Writes an array `[H, W, 3]` as a PNG file."""
    Path(output_path).write_bytes(encode_image_array_as_png_str(np.asarray(image)))

// Boxes over the image, and a picture with boxes to keep.

const PALETTE = [
  "#e63946", "#0090d9", "#ffb703", "#2a9d5d", "#9b5de5", "#fb6f24", "#00bbbb", "#f15bb5",
  "#7cb518", "#3f51b5", "#bc6c25", "#95d5b2", "#b4145a", "#90beff", "#6a4c32", "#ff8a80",
];

/** The colour of a class, the same as in pictures that the server draws. */
export function colorOf(id) {
  return PALETTE[(((id - 1) % PALETTE.length) + PALETTE.length) % PALETTE.length];
}

function inkOn(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000000" : "#ffffff";
}

/** Colours an element for a class. */
export function paint(element, id) {
  element.style.setProperty("--class", colorOf(id));
  element.style.setProperty("--on-class", inkOn(colorOf(id)));
}

export const labelOf = (one) => `${one.class} ${one.score.toFixed(2)}`;

/** Returns the elements of all detections, best on top. */
export function boxElements(detections, height, width, chosen) {
  return detections.map((one) => {
    const { ymin, xmin, ymax, xmax } = one.box;
    const box = document.createElement("div");
    box.className = "box";
    box.classList.toggle("left", xmin / width > 0.75);
    box.classList.toggle("chosen", one === chosen);
    paint(box, one.class_id);
    box.style.top = `${(100 * ymin) / height}%`;
    box.style.left = `${(100 * xmin) / width}%`;
    box.style.height = `${(100 * (ymax - ymin)) / height}%`;
    box.style.width = `${(100 * (xmax - xmin)) / width}%`;
    const label = document.createElement("span");
    label.textContent = labelOf(one);
    box.append(label);
    return box;
  }).reverse();
}

/**
 * Puts each label above its box, inside it or below, where it covers no label of a better one and
 * stays on the image. A label without a place is seen when its box is chosen.
 */
export function placeLabels(boxes, frame) {
  const edge = frame.getBoundingClientRect();
  const taken = [];
  for (const box of boxes) {
    const label = box.firstChild;
    const free = ["", "inside", "below"].some((place) => {
      box.classList.remove("inside", "below");
      if (place) box.classList.add(place);
      const rect = label.getBoundingClientRect();
      if (rect.top < edge.top - 1 || rect.bottom > edge.bottom + 1) return false;
      if (taken.some((other) => overlap(rect, other))) return false;
      taken.push(rect);
      return true;
    });
    box.classList.toggle("silent", !free);
  }
}

const overlap = (a, b) =>
  a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

/** Returns the detections that no better one overlaps by more than `iou`; they come best first. */
export function withoutOverlaps(detections, iou) {
  const kept = [];
  for (const one of detections) {
    if (kept.every((better) => overlapOf(better.box, one.box) <= iou)) kept.push(one);
  }
  return kept;
}

function overlapOf(a, b) {
  const side = (low, high) => Math.max(0, Math.min(a[high], b[high]) - Math.max(a[low], b[low]));
  const area = (box) => (box.ymax - box.ymin) * (box.xmax - box.xmin);
  const both = side("ymin", "ymax") * side("xmin", "xmax");
  return both / Math.max(area(a) + area(b) - both, 1e-12);
}

/** Draws image and detections at full size; resolves to a PNG blob. */
export function picture(image, detections) {
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const side = Math.max(canvas.width, canvas.height);
  const line = Math.max(2, Math.round(side / 320));
  const text = Math.min(32, Math.max(13, Math.round(side / 40)));
  pen.font = `600 ${text}px system-ui, sans-serif`;
  pen.textBaseline = "top";
  for (const one of [...detections].reverse()) drawOutline(pen, one, line);
  const taken = [];
  for (const one of detections) drawLabel(pen, one, text, taken);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function drawOutline(pen, one, line) {
  const { ymin, xmin, ymax, xmax } = one.box;
  // A dark rim, or a green box is lost on grass.
  for (const [width, color] of [[line + 2, "rgb(33 37 41 / .8)"], [line, colorOf(one.class_id)]]) {
    pen.lineWidth = width;
    pen.strokeStyle = color;
    pen.strokeRect(xmin, ymin, xmax - xmin, ymax - ymin);
  }
}

/** Draws a label above its box, inside it or below, where there is room, or leaves it out. */
function drawLabel(pen, one, text, taken) {
  const label = labelOf(one);
  const width = pen.measureText(label).width + text * 0.6;
  const height = text * 1.25;
  const left = Math.max(0, Math.min(one.box.xmin, pen.canvas.width - width));
  const spot = [one.box.ymin - height, one.box.ymin, one.box.ymax]
    .map((top) => ({ left, top, right: left + width, bottom: top + height }))
    .filter((rect) => rect.top >= 0 && rect.bottom <= pen.canvas.height)
    .find((rect) => !taken.some((other) => overlap(rect, other)));
  if (!spot) return;
  taken.push(spot);
  pen.fillStyle = colorOf(one.class_id);
  pen.fillRect(left, spot.top, width, height);
  pen.fillStyle = inkOn(colorOf(one.class_id));
  pen.fillText(label, left + text * 0.3, spot.top + text * 0.12);
}

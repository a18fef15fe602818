// The page: a list of images, one of them shown with its detections.

import { detect } from "./api.js";
import { boxElements, paint, picture, placeLabels, withoutOverlaps } from "./draw.js";
import { listen } from "./files.js";

const MIN_SCORE = 0.01; // of requests; the slider filters what they return
const MAX_REQUESTS = 2;
const $ = (id) => document.getElementById(id);
const settings = document.body.dataset;

const state = {
  images: [], at: 0, threshold: Number(settings.minScore), off: new Set(), chosen: null,
  oneClass: settings.classesPerObject === "one", iou: Number(settings.iou),
};
let running = 0;

const current = () => state.images[state.at];
const wanted = (one) => one.score >= state.threshold && !state.off.has(one.class_id);
const shown = (image) => objects(image).filter(wanted);
const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** The detections of an image; with one class per object, none that overlaps a better one. */
function objects(image) {
  const found = image?.answer?.detections ?? [];
  return state.oneClass ? withoutOverlaps(found, state.iou) : found;
}

function take(files) {
  if (!files.length) {
    $("status").textContent = "None of these files is an image.";
    return;
  }
  const first = state.images.length;
  state.images.push(...files.map((file) => ({ file, url: URL.createObjectURL(file) })));
  state.at = first;
  state.chosen = null;
  showStrip();
  show();
  work();
}

/** Requests the detections of images that have none yet, a few at a time. */
async function work() {
  while (running < MAX_REQUESTS) {
    const next = state.images.find((image) => !image.requested);
    if (!next) return;
    next.requested = true;
    running += 1;
    request(next).finally(() => {
      running -= 1;
      work();
    });
  }
}

async function request(image) {
  try {
    if (image.file.size > Number(settings.maxBody)) {
      throw new Error(`The file is larger than the ${settings.maxBody} bytes that this server accepts.`);
    }
    Object.assign(image, await detect(image.file, MIN_SCORE));
  } catch (error) {
    image.failure = error.message;
  }
  image.thumb?.classList.toggle("failed", Boolean(image.failure));
  if (image === current()) show();
}

function showStrip() {
  $("strip").hidden = $("walk").hidden = state.images.length < 2;
  $("strip").replaceChildren(...state.images.map((image, at) => {
    image.thumb ??= document.createElement("button");
    image.thumb.type = "button";
    image.thumb.ariaLabel = image.file.name;
    image.thumb.onclick = () => go(at);
    if (!image.thumb.firstChild) {
      image.thumb.append(Object.assign(new Image(), { src: image.url, alt: "", loading: "lazy" }));
    }
    const item = document.createElement("li");
    item.append(image.thumb);
    return item;
  }));
}

function go(at) {
  state.at = Math.max(0, Math.min(at, state.images.length - 1));
  state.chosen = null;
  show();
}

function show() {
  const image = current();
  $("empty").hidden = Boolean(image);
  $("view").hidden = $("panel").hidden = !image;
  if (!image) return;
  if ($("image").src !== image.url) $("image").src = image.url;
  $("frame").hidden = Boolean(image.failure);
  $("frame").classList.toggle("busy", !image.answer);
  $("failure").hidden = !image.failure;
  $("failure").textContent = image.failure ?? "";
  $("caption").textContent = `${state.at + 1} of ${state.images.length} · ${image.file.name}`;
  $("previous").disabled = state.at === 0;
  $("next").disabled = state.at === state.images.length - 1;
  state.images.forEach((one, at) => { if (one.thumb) one.thumb.ariaCurrent = String(at === state.at); });
  image.thumb?.scrollIntoView({ block: "nearest", inline: "nearest" });
  showClasses(image);
  showFound();
  fit();
}

/** Shows what depends on threshold, classes and the chosen box. */
function showFound() {
  const image = current();
  const found = shown(image);
  const number = count(found.length, "object");
  $("threshold-value").value = state.threshold.toFixed(2);
  $("iou-value").value = state.iou.toFixed(2);
  $("iou").disabled = !state.oneClass;
  $("status").textContent = image.failure ? "Not detected"
    : image.answer ? `${number} · ${Math.round(1000 * image.seconds)} ms` : "Detecting …";
  $("image").alt = `${image.file.name}${image.answer ? `, ${number} found` : ""}`;
  const { height = 1, width = 1 } = image.answer ?? {};
  $("boxes").replaceChildren(...boxElements(found, height, width, state.chosen));
  $("boxes").classList.toggle("dimmed", found.includes(state.chosen));
  placeLabels([...$("boxes").children].reverse(), $("frame"));
  $("found").replaceChildren(...found.map(foundItem));
  for (const id of ["save-json", "save-picture", "copy-json"]) $(id).disabled = !image.answer;
}

function foundItem(one) {
  const button = document.createElement("button");
  button.type = "button";
  button.ariaPressed = String(one === state.chosen);
  paint(button, one.class_id);
  const score = document.createElement("small");
  score.textContent = one.score.toFixed(2);
  button.append(document.createTextNode(one.class), score);
  button.onclick = () => {
    const at = [...$("found").children].indexOf(item);
    state.chosen = one === state.chosen ? null : one;
    showFound();
    $("found").children[at]?.firstChild.focus();
  };
  const item = document.createElement("li");
  item.append(button);
  return item;
}

function showClasses(image) {
  const counts = new Map();
  for (const one of objects(image)) {
    if (one.score < state.threshold && !state.off.has(one.class_id)) continue;
    const known = counts.get(one.class_id) ?? { name: one.class, count: 0 };
    known.count += one.score >= state.threshold;
    counts.set(one.class_id, known);
  }
  $("classes-field").hidden = !counts.size;
  $("classes").replaceChildren(...[...counts].map(([id, { name, count: total }]) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: !state.off.has(id) });
    box.onchange = () => {
      state.off[box.checked ? "delete" : "add"](id);
      showFound();
    };
    const number = document.createElement("small");
    number.textContent = total;
    paint(label, id);
    label.append(box, document.createTextNode(name), number);
    return label;
  }));
}

/** Scales the image to the available room, at most threefold. */
function fit() {
  const image = $("image");
  const { naturalWidth: width, naturalHeight: height } = image;
  if (!width || $("view").hidden) return;
  const narrow = matchMedia("(max-width: 760px)").matches;
  const room = $("view").getBoundingClientRect();
  const tallest = narrow ? innerHeight * 0.7 : room.height;
  const scale = Math.min(room.width / width, tallest / height, 3);
  image.style.width = `${Math.floor(width * scale)}px`;
  image.style.height = `${Math.floor(height * scale)}px`;
  placeLabels([...$("boxes").children].reverse(), $("frame"));
}

function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const stem = (image) => image.file.name.replace(/\.[^.]*$/, "") || "image";

/** The shown detections of every image: one object, or a list for several images. */
export function shownAsJson() {
  const all = state.images.filter((image) => image.answer).map((image) => ({
    ...image.answer, image: image.file.webkitRelativePath || image.file.name, detections: shown(image),
  }));
  return JSON.stringify(state.images.length === 1 ? all[0] : all, null, 1);
}

function clear() {
  state.images.forEach((image) => URL.revokeObjectURL(image.url));
  Object.assign(state, { images: [], at: 0, chosen: null });
  state.off.clear();
  $("image").removeAttribute("src");
  $("status").textContent = "";
  showStrip();
  show();
  document.querySelector("#empty button").focus();
}

function press(event) {
  if (document.querySelector("dialog[open]") || !state.images.length) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step && event.target.type !== "range") go(state.at + step);
  if (event.key === "Escape") {
    state.chosen = null;
    showFound();
  }
}

$("threshold").value = state.threshold;
$("one-class").checked = state.oneClass;
$("iou").value = state.iou;
for (const id of ["threshold", "one-class", "iou"]) {
  $(id).addEventListener("input", () => {
    state.threshold = Number($("threshold").value);
    state.oneClass = $("one-class").checked;
    state.iou = Number($("iou").value);
    if (!current()) return;
    showClasses(current());
    showFound();
  });
}
$("image").addEventListener("load", fit);
addEventListener("resize", fit);
addEventListener("keydown", press);
$("previous").addEventListener("click", () => go(state.at - 1));
$("next").addEventListener("click", () => go(state.at + 1));
$("clear").addEventListener("click", clear);
$("save-json").addEventListener("click", () => {
  const name = state.images.length === 1 ? stem(current()) : "detections";
  save(new Blob([shownAsJson()], { type: "application/json" }), `${name}.json`);
});
// Browsers give no clipboard to unencrypted pages of other machines.
$("copy-json").hidden = !navigator.clipboard;
$("copy-json").addEventListener("click", async () => {
  const said = navigator.clipboard.writeText(shownAsJson()).then(() => "Copied", () => "The browser allows no copying");
  $("status").textContent = await said;
});
$("save-picture").addEventListener("click", async () => {
  save(await picture($("image"), shown(current())), `${stem(current())}-detections.png`);
});
listen(take);

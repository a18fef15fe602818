// Detection in the browser itself: LiteRT.js runs `model.tflite`.

import { prepare } from "./resize.js";

const here = (path) => new URL(path, import.meta.url).href;
const note = document.getElementById("runtime");
note.textContent = "Loading the model …";

const ready = start();
ready.then(
  ({ about }) => { note.textContent = about; },
  (error) => { note.textContent = error.message; },
);
let last = ready;

/**
 * Detects in a file; resolves to the answer, as the server's `/detect` gives it, and the seconds
 * that resizing and the model took. Images wait for one another.
 */
export function detect(file, minScore) {
  const result = last.then(() => run(file, minScore));
  last = result.catch(() => ready);
  return result;
}

async function start() {
  const { library, input, classes } = await (await fetched(here("model.json"))).json();
  const content = fetched(here("../model.tflite")).then((response) => response.arrayBuffer());
  content.catch(() => {}); // awaited below
  const { litert, base } = await load(library);
  const model = await litert.loadAndCompile(new Uint8Array(await content), { accelerator: "wasm" });
  const from = base.startsWith(location.origin) ? "this folder" : new URL(base).host;
  const about = `LiteRT.js ${library.version} from ${from}. Images stay in this browser.`;
  return { litert, model, input, classes, about };
}

async function fetched(url, integrity = "") {
  const response = await fetch(url, { integrity }).catch(() => null);
  if (!response?.ok) throw new Error(`${url} cannot be loaded.`);
  return response;
}

/** Loads LiteRT.js of the pinned version from this folder or, if it is not there, from the CDN. */
async function load({ version, folder, cdn, integrity }) {
  for (const base of [here(`../${folder}`), cdn]) {
    try {
      const litert = await import(`${base}dist/index.js`);
      const kind = await litert.supportsFeature("relaxedSimd") ? "" : "compat_";
      const [script, binary] = await Promise.all(["js", "wasm"].map((suffix) => {
        const path = `wasm/litert_wasm_${kind}internal.${suffix}`;
        return fetched(`${base}${path}`, integrity[path]);
      }));
      self.Module = { wasmBinary: await binary.arrayBuffer() };
      const text = new Blob([await script.text()], { type: "text/javascript" });
      // The loader takes a name that ends so for a script and anything else for a folder.
      await litert.loadLiteRt(`${URL.createObjectURL(text)}#.js`);
      return { litert, base };
    } catch (error) {
      console.warn(`LiteRT.js from ${base}: ${error.message}`);
    }
  }
  throw new Error(`LiteRT.js cannot be loaded. Connect to the internet, or install it beside this page: npm install --prefix FOLDER @litertjs/core@${version}`);
}

async function run(file, minScore) {
  const { litert, model, input, classes } = await ready;
  const image = await pixelsOf(file);
  const began = performance.now();
  const { pixels, shown } = prepare(image, input);
  const tensor = new litert.Tensor(pixels, [1, input.height, input.width, 3]);
  const outputs = await model.run({ [input.name]: tensor });
  tensor.delete();
  const values = {};
  for (const [name, output] of Object.entries(outputs)) {
    values[name] = output.toTypedArray();
    output.delete();
  }
  const seconds = (performance.now() - began) / 1000;
  const { height, width } = image;
  const detections = [...read(values, image, input, shown, classes)].filter((one) => one.score >= minScore);
  return { answer: { image: file.name, height, width, detections }, seconds };
}

/** Decodes a file, upright, without a change of colours. */
async function pixelsOf(file) {
  const options = { colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const bitmap = await createImageBitmap(file, options).catch(() => {
    throw new Error("This file cannot be decoded as an image.");
  });
  const canvas = Object.assign(document.createElement("canvas"), { width: bitmap.width, height: bitmap.height });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(bitmap, 0, 0);
  bitmap.close();
  return pen.getImageData(0, 0, canvas.width, canvas.height);
}

/** The detections in pixels of the image. Those in its padding are left out. */
function* read(values, image, input, shown, classes) {
  const size = [image.height, image.width];
  const whole = shown[0] === input.height && shown[1] === input.width;
  for (let row = 0; row < values.num_detections[0]; row += 1) {
    const box = [0, 1, 2, 3].map((side) => {
      const axis = side % 2;
      const at = values.detection_boxes[4 * row + side] * [input.height, input.width][axis] / shown[axis] * size[axis];
      return whole ? at : Math.max(0, Math.min(at, size[axis]));
    });
    if (!whole && (box[2] <= box[0] || box[3] <= box[1])) continue;
    const [ymin, xmin, ymax, xmax] = box.map((at) => Number(at.toFixed(2)));
    const one = classes[Math.round(values.detection_classes[row])];
    const score = Number(values.detection_scores[row].toFixed(6));
    yield { class_id: one.id, class: one.name, score, box: { ymin, xmin, ymax, xmax } };
  }
}

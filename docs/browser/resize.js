// From the pixels of an image to the model's input, as stillbox/inputs/resize.py does in Python.

const float32 = Math.fround;

/** Rounds a positive number; halves to even. */
function rint(x) {
  const rounded = Math.round(x);
  return rounded - x === 0.5 && rounded % 2 ? rounded - 1 : rounded;
}

/**
 * Returns `pixels` `[H, W, 3]`, a Uint8Array or a Float32Array, and `shown`, the height and width
 * of the image in their upper left. Throws an Error if the image does not fit.
 *
 * `image` has `height`, `width` and `data` of four bytes a pixel; `input` is that of `model.json`.
 */
export function prepare(image, { height, width, dtype, mean, std, resizer }) {
  const shown = sizeInside([image.height, image.width], resizer);
  if (shown[0] > height || shown[1] > width) {
    throw new Error(`An image of ${image.width} × ${image.height} pixels does not fit this model's input of ${width} × ${height}.`);
  }
  const resized = resize(image, shown, resizer);
  const pad = resizer.pad_value ?? [0, 0, 0];
  const values = new Float32Array(height * width * 3);
  for (let row = 0, at = 0; row < height; row += 1) {
    for (let column = 0; column < width; column += 1) {
      const inside = row < shown[0] && column < shown[1];
      for (let channel = 0; channel < 3; channel += 1, at += 1) {
        const value = inside ? resized[3 * (row * shown[1] + column) + channel] : pad[channel];
        values[at] = (value - mean[channel]) / std[channel];
      }
    }
  }
  // A clamped array rounds, halves to even.
  const bytes = () => new Uint8Array(Uint8ClampedArray.from(values).buffer);
  return { pixels: dtype === "uint8" ? bytes() : values, shown };
}

/** Returns the height and width that an image has inside the network input. */
export function sizeInside(size, resizer) {
  const [least, most] = [Math.min(...size), Math.max(...size)];
  const by = (ratio, round) => size.map((side) => Math.max(round(float32(side * ratio)), 1));
  const ratioOf = (target, side) => float32(target / side);
  switch (resizer.kind) {
    case "fixed_shape":
      return [resizer.height, resizer.width];
    case "keep_aspect_ratio": {
      const scaled = by(ratioOf(resizer.min_dimension, least), rint);
      const fits = Math.max(...scaled) <= resizer.max_dimension;
      return fits ? scaled : by(ratioOf(resizer.max_dimension, most), rint);
    }
    case "scale_jitter":
      return by(Math.min(ratioOf(resizer.height, size[0]), ratioOf(resizer.width, size[1])), rint);
    case "conditional_shape": {
      const greater = resizer.condition === "greater";
      const side = greater ? most : least;
      const target = greater ? Math.min(side, resizer.threshold) : Math.max(side, resizer.threshold);
      return by(ratioOf(target, side), Math.trunc);
    }
    default: // identity and pad_to_multiple
      return size;
  }
}

/** Returns an image of four bytes a pixel at another size, as a Float32Array `[H, W, 3]`. */
export function resize({ data, height, width }, [newHeight, newWidth], { method = "nearest", align_corners: align }) {
  const enlarged = newHeight > height || newWidth > width;
  const name = method === "opencv_area" && !enlarged ? "area" : method;
  const columns = tapsOf(name, width, newWidth, align);
  const rows = tapsOf(name, height, newHeight, align);
  // Pillow rounds after each axis.
  const store = name === "bilinear_antialias" ? (value) => Math.floor(value + 0.5) : (value) => value;
  const lines = new Float32Array(height * newWidth * 3);
  for (let row = 0, at = 0; row < height; row += 1) {
    for (const { indices, weights } of columns) {
      for (let channel = 0; channel < 3; channel += 1, at += 1) {
        let sum = 0;
        for (let tap = 0; tap < indices.length; tap += 1) {
          sum += weights[tap] * data[4 * (row * width + indices[tap]) + channel];
        }
        lines[at] = store(sum);
      }
    }
  }
  const stride = 3 * newWidth;
  const out = new Float32Array(newHeight * stride);
  rows.forEach(({ indices, weights }, row) => {
    for (let column = 0; column < stride; column += 1) {
      let sum = 0;
      for (let tap = 0; tap < indices.length; tap += 1) sum += weights[tap] * lines[indices[tap] * stride + column];
      out[row * stride + column] = store(sum);
    }
  });
  return out;
}

/** Returns the source indices and weights of every output position along an axis. */
function tapsOf(method, size, newSize, align) {
  const cornered = align && Math.min(size, newSize) > 1;
  const scale = cornered ? float32((size - 1) / (newSize - 1)) : float32(size / newSize);
  return Array.from({ length: newSize }, (_, place) => {
    const pairs = METHODS[method](place, scale, size, newSize, align);
    return {
      indices: pairs.map(([index]) => Math.max(0, Math.min(index, size - 1))),
      weights: pairs.map(([, weight]) => weight),
    };
  });
}

/** `[index, weight]` of one output position by method, see stillbox/inputs/interpolation.py. */
const METHODS = {
  nearest(place, scale, size, newSize, align) {
    const position = float32(place * scale);
    return [[Math.floor(align ? float32(position + 0.5) : position), 1]];
  },

  bilinear(place, scale) {
    const position = float32(place * scale);
    const below = Math.floor(position);
    return [[below, 1 - (position - below)], [below + 1, position - below]];
  },

  bilinear_half_pixel(place, _, size, newSize) {
    const centre = float32((place + 0.5) * float32(size / newSize));
    const position = Math.max(float32(centre - 0.5), 0);
    const below = Math.floor(position);
    return [[below, 1 - (position - below)], [below + 1, position - below]];
  },

  area(place, scale) {
    const [start, end] = [float32(place * scale), float32((place + 1) * scale)];
    const pairs = [];
    for (let index = Math.floor(start); index < end; index += 1) {
      pairs.push([index, (Math.min(index + 1, end) - Math.max(index, start)) / scale]);
    }
    return pairs;
  },

  /** What OpenCV's INTER_AREA does if it enlarges an axis. */
  opencv_area(place, _, size, newSize) {
    const below = Math.floor((place * size) / newSize);
    const share = float32(place + 1 - ((below + 1) * newSize) / size);
    const above = share <= 0 ? 0 : share - Math.floor(share);
    return [[below, 1 - above], [below + 1, above]];
  },

  bicubic(place, scale) {
    const position = float32(place * scale);
    const below = Math.floor(position);
    const share = rint((position - below) * 1024) / 1024;
    return [-1, 0, 1, 2].map((step) => [below + step, keys(Math.abs(share - step))]);
  },

  bilinear_antialias(place, _, size, newSize) {
    const scale = size / newSize;
    const reach = Math.max(scale, 1);
    const centre = (place + 0.5) * scale;
    const last = Math.min(Math.trunc(centre + reach + 0.5), size);
    const pairs = [];
    for (let index = Math.max(Math.trunc(centre - reach + 0.5), 0); index < last; index += 1) {
      pairs.push([index, Math.max(1 - Math.abs((index - centre + 0.5) / reach), 0)]);
    }
    const total = pairs.reduce((sum, [, weight]) => sum + weight, 0);
    // Pillow's weights are whole multiples of 2^-22.
    return pairs.map(([index, weight]) => [index, Math.round((weight / total) * 2 ** 22) / 2 ** 22]);
  },
};

/** Keys' cubic, A = -0.75. */
function keys(distance) {
  const a = -0.75;
  if (distance <= 1) return ((a + 2) * distance - (a + 3)) * distance ** 2 + 1;
  return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a;
}

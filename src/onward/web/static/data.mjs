// From pixels, cells and numbers to the batches of a program, and from its outputs to classes: plain functions, no page.

const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array, int16: Int16Array,
                 int8: Int8Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array, bool: Uint8Array };

/** Return the numbers that a form or a file may give an input or target of this element type, or undefined. */
export const takes = (dtype) => ARRAYS[dtype];

// --- pictures: as onward/reading/pictures.py, with the arithmetic of Pillow, so that a picture gives the same bytes in both

/** Return the weights of Pillow's bilinear filter: for each new pixel the first old one, and whole numbers that add up to 2²². */
function weights(from, to) {
  const scale = from / to, support = Math.max(scale, 1);
  return Array.from({ length: to }, (_, place) => {
    const centre = (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5)), end = Math.min(from, Math.trunc(centre + support + 0.5));
    const raw = Array.from({ length: end - first }, (_, i) => Math.max(0, 1 - Math.abs((i + first - centre + 0.5) / support)));
    const sum = raw.reduce((a, b) => a + b, 0);
    return { first, parts: Int32Array.from(raw, (w) => Math.trunc((w / sum) * (1 << 22) + 0.5)) };
  });
}

/** Return planes of bytes (channels × height × width) at another size. */
export function resize(planes, channels, [height, width], [newHeight, newWidth]) {
  let source = planes;
  if (newWidth !== width) {
    const made = new Uint8ClampedArray(channels * height * newWidth), table = weights(width, newWidth);
    for (let row = 0; row < channels * height; row++) {
      for (let x = 0; x < newWidth; x++) {
        const { first, parts } = table[x];
        let sum = 1 << 21;
        for (let i = 0; i < parts.length; i++) sum += source[row * width + first + i] * parts[i];
        made[row * newWidth + x] = sum >> 22;
      }
    }
    source = made;
  }
  if (newHeight !== height) {
    const made = new Uint8ClampedArray(channels * newHeight * newWidth), table = weights(height, newHeight);
    for (let c = 0; c < channels; c++) {
      for (let y = 0; y < newHeight; y++) {
        const { first, parts } = table[y];
        for (let x = 0; x < newWidth; x++) {
          let sum = 1 << 21;
          for (let i = 0; i < parts.length; i++) sum += source[(c * height + first + i) * newWidth + x] * parts[i];
          made[(c * newHeight + y) * newWidth + x] = sum >> 22;
        }
      }
    }
    source = made;
  }
  return new Uint8Array(source);
}

/** Return the bytes that the model takes, in its layout, from the RGBA of a picture of any size. */
export function pictureBytes({ data, width, height }, { channels, height: h, width: w, layout }) {
  const area = width * height, planes = new Uint8Array(channels * area);
  for (let i = 0; i < area; i++) {
    const r = data[4 * i], g = data[4 * i + 1], b = data[4 * i + 2];
    if (channels === 1) planes[i] = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16; // as Pillow's "L"
    else { planes[i] = r; planes[area + i] = g; planes[2 * area + i] = b; }
  }
  const sized = resize(planes, channels, [height, width], [h, w]);
  if (layout !== "HWC" || channels === 1) return sized;
  return Uint8Array.from(sized, (_, i) => sized[(i % channels) * h * w + Math.floor(i / channels)]);
}

/** Return a small picture as RGBA, to be looked at, from the bytes that the model takes. */
export function thumbnail(bytes, { channels, height, width, layout }) {
  const rgba = new Uint8ClampedArray(4 * height * width), area = height * width;
  for (let i = 0; i < area; i++) {
    for (let c = 0; c < 3; c++) rgba[4 * i + c] = channels === 1 ? bytes[i] : layout === "HWC" ? bytes[i * channels + c] : bytes[c * area + i];
    rgba[4 * i + 3] = 255;
  }
  return rgba;
}

// --- batches: as onward/train/data/feed.py, in float32 step by step, so that the numbers are the same

/** Return the shape of one sample of `count` numbers: that of the picture, or the free dimension takes what is left. */
export function sampleShape(spec, count, image) {
  if (image?.input === spec.name) {
    const { channels, height, width, layout } = image;
    return layout === "HWC" ? [height, width, channels] : [channels, height, width];
  }
  const dims = spec.shape.slice(1), known = dims.filter(Number.isInteger).reduce((a, b) => a * b, 1);
  const free = dims.filter((d) => !Number.isInteger(d)).length;
  if (free > 1 || (free ? count % known : count !== known))
    throw new Error(`\`${spec.name}\` takes ${free ? `a multiple of ${known}` : known} numbers per sample, and ${count} were given`);
  return dims.map((d) => (Number.isInteger(d) ? d : count / known));
}

/** Return (x * scale - mean) / std of one sample, where the preparation asks for it; mean and std may be per channel. */
export function prepare(values, spec, { scale = 1, mean = 0, std = 1 }, shape) {
  const plain = scale === 1 && [mean].flat().every((m) => m === 0) && [std].flat().every((s) => s === 1);
  if (plain || !spec.dtype.startsWith("float")) return values;
  const f = spec.dtype === "float64" ? (v) => v : Math.fround, factor = f(scale);
  const per = Array.isArray(mean) || Array.isArray(std) ? shape.slice(1).reduce((a, b) => a * b, 1) : values.length;
  const of = (numbers, i) => f(Array.isArray(numbers) ? numbers[Math.floor(i / per) % numbers.length] : numbers);
  const made = new (spec.dtype === "float64" ? Float64Array : Float32Array)(values.length);
  for (let i = 0; i < values.length; i++) made[i] = f(f(f(f(Number(values[i])) * factor) - of(mean, i)) / of(std, i));
  return made;
}

/** Return {data, dims} for one input or target of several samples. A fixed batch is filled up with the first samples again. */
export function stack(samples, spec, { preparation, image }, isTarget = false) {
  const kind = ARRAYS[spec.dtype], size = Number.isInteger(spec.shape[0]) ? spec.shape[0] : samples.length;
  const shape = sampleShape(spec, samples[0][spec.name].length, image), each = shape.reduce((a, b) => a * b, 1);
  const data = new kind(size * each), big = kind === BigInt64Array || kind === BigUint64Array;
  for (let k = 0; k < size; k++) {
    const values = samples[k % samples.length][spec.name];
    if (values.length !== each) throw new Error(`the samples of a batch differ in the length of \`${spec.name}\`: set the batch size to 1`);
    const made = isTarget ? values : prepare(values, spec, preparation, shape);
    for (let i = 0; i < each; i++) data[k * each + i] = big ? BigInt(Math.round(Number(made[i]))) : Number(made[i]);
  }
  return { data, dims: [size, ...shape] };
}

/** Return the batch by name; `site` says how numbers are prepared, and the size of pictures. */
export function makeBatch(samples, manifest, site, withTargets = true) {
  const made = {};
  for (const spec of manifest.inputs) made[spec.name] = stack(samples, spec, site);
  if (withTargets) for (const spec of manifest.targets) made[spec.name] = stack(samples, spec, site, true);
  return made;
}

// --- tables: as onward/train/data/features.py

/** Return the numbers that one cell becomes. */
export function featureValues(feature, cell, place) {
  const { column, kind = "number", fill = null, keeps_nan, indicator, shift = 0, scale = 1, categories = [], encoding = "one_hot", unknown = "error", common = 0 } = feature;
  const text = String(cell ?? "").trim(), missing = ["", "na", "n/a", "nan", "null", "none"].includes(text.toLowerCase());
  if (missing && fill === null && !keeps_nan) throw new Error(`${place}: \`${column}\` is empty, and the model needs a value`);
  let made;
  if (kind === "category") {
    const asked = missing ? fill : typeof categories[0] === "number" ? Number(text) : text;
    const found = categories.indexOf(asked);
    if (found < 0 && unknown === "error") throw new Error(`${place}: \`${column}\` is "${text}", and the model knows only: ${categories.slice(0, 8).join(", ")}`);
    made = encoding === "codes" ? [found < 0 ? common : found] : categories.map((_, i) => Number(i === found));
  } else {
    const number = missing ? (fill ?? NaN) : Number(text.replace(/^(-?\d+),(\d+)$/, "$1.$2"));
    if (Number.isNaN(number) && !missing) throw new Error(`${place}: \`${column}\` is "${text}", which is no number`);
    made = [(number - shift) / scale];
  }
  return indicator ? [...made, Number(missing)] : made;
}

/** Return the rows of a CSV text: commas, semicolons or tabs between the cells, quotes around those that contain them. */
export function readCsv(text) {
  const line = text.slice(0, (text + "\n").indexOf("\n"));
  const comma = [",", ";", "\t"].sort((a, b) => line.split(b).length - line.split(a).length)[0];
  const rows = [];
  let row = [], cell = "", quoted = false;
  const end = () => { row.push(cell); cell = ""; };
  for (let i = text.charCodeAt(0) === 0xfeff ? 1 : 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) { if (c !== '"') cell += c; else if (text[i + 1] === '"') { cell += '"'; i++; } else quoted = false; }
    else if (c === '"' && cell === "") quoted = true;
    else if (c === comma) end();
    else if (c === "\n") { end(); if (row.length > 1 || row[0] !== "") rows.push(row); row = []; }
    else if (c !== "\r") cell += c;
  }
  if (quoted) throw new Error("the file ends inside of quotes");
  if (cell !== "" || row.length) { end(); rows.push(row); }
  return rows;
}

// --- what the outputs mean: as onward/train/predictions.py

/** Return the probability of each class from the scores of one sample; `ending` is what the model itself ends in. */
export function probabilities(scores, ending) {
  const numbers = Array.from(scores, Number);
  if (["Softmax", "SigmoidPair"].includes(ending)) return numbers;
  if (ending.startsWith("YesNo")) { // one number: how likely the second class is
    const yes = ending === "YesNo" ? numbers[0] : 1 / (1 + Math.exp(-numbers[0]));
    return [1 - yes, yes];
  }
  if (ending === "LogSoftmax") return numbers.map(Math.exp);
  const top = Math.max(...numbers), raised = numbers.map((s) => Math.exp(s - top)), sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((r) => r / sum);
}

export const best = (numbers) => numbers.reduce((top, n, i) => (n > numbers[top] ? i : top), 0);

/** Return random numbers from 0 to 1 that depend on the seed alone (mulberry32). */
export function randomNumbers(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export async function sha256(bytes) {
  return [...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))].map((b) => b.toString(16).padStart(2, "0")).join("");
}

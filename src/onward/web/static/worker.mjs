// The worker: everything that takes time happens here, so that the page never waits. It holds the trainer, the samples and
// the memory of the browser. The page calls the functions of `calls` by messages; events tell it about progress.
import { best, makeBatch, pictureBytes, probabilities, randomNumbers, sha256 } from "./data.mjs";
import { Store } from "./store.mjs";

const KEEP_STEPS = 25, KEEP_MS = 4000, SHOW_MS = 80, SCORE_MS = 1500, MOST_TESTED = 400, MOST_DRAWN = 1000, MOST_LOSSES = 20000;
const here = new URL(".", import.meta.url);
let site, trainer, store, samples = [], examples = { train: [], test: [] }, losses = [], original, before = null, left = 0, running = null, added = Promise.resolve();

const tell = (event, value) => postMessage({ event, value });
const { port1, port2 } = new MessageChannel(), breathing = [];
port1.onmessage = () => breathing.shift()(); // one for each message: a training and a test may wait at the same time
const breath = () => new Promise((done) => { breathing.push(done); port2.postMessage(0); }); // lets messages in

// --- loading

/** Return the bytes of a file of the site, after comparing them with its checksum. */
async function read(name) {
  const { sha256: expected } = site.files[name];
  let response;
  try { response = await fetch(new URL(name, here)); } catch (error) { throw new Error(`\`${name}\` could not be loaded: ${error.message}`); }
  if (!response.ok) throw new Error(`\`${name}\` could not be loaded: the server answered ${response.status}`);
  const bytes = new Uint8Array(await response.arrayBuffer());
  if ((await sha256(bytes)) !== expected)
    throw new Error(`\`${name}\` is damaged: its checksum is not that of the file that was built. Reload the page, or build the site again.`);
  tell("loaded", { name, bytes: bytes.length });
  return bytes;
}

async function load(given) {
  site = given.site;
  const names = Object.keys(site.files), read_ = Object.fromEntries(await Promise.all(names.map(async (n) => [n, await read(n)])));
  const text = (bytes) => new TextDecoder().decode(bytes);
  const ort = await import(new URL(site.runtime.module, here));
  const { Trainer } = await import(new URL("onward-train.mjs", here));
  const isolated = globalThis.crossOriginIsolated && typeof SharedArrayBuffer === "function";
  ort.env.wasm.numThreads = isolated ? Math.max(1, Math.min(4, given.threads ?? Math.floor(navigator.hardwareConcurrency / 2))) : 1;
  ort.env.wasm.wasmBinary = read_[site.runtime.wasm].buffer;
  const files = Object.fromEntries(names.filter((n) => n.startsWith("program/")).map((n) => [n.slice(8), read_[n]]));
  const manifest = JSON.parse(text(read_["program/manifest.json"]));
  trainer = await Trainer.load({ manifest, files }, { ort, executionProviders: ["wasm"] });
  original = await trainer.checkpoint();
  if (site.examples) examples = readExamples(read_[site.examples.file]);
  const notes = await remember();
  return { manifest, notes, samples: samples.map(shown), threads: ort.env.wasm.numThreads, checked: Boolean(manifest.self_test), ...where() };
}

/** Return the examples that came with the site: {train, test}. */
function readExamples(bytes) {
  const kinds = { U8: Uint8Array, F32: Float32Array, F64: Float64Array, I64: BigInt64Array, I32: Int32Array };
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const { __metadata__: _, ...header } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const columns = Object.entries(header).map(([name, { dtype, shape, data_offsets: [first, last] }]) =>
    ({ name, each: shape.slice(1).reduce((a, b) => a * b, 1), values: new kinds[dtype](bytes.slice(8 + length + first, 8 + length + last).buffer) }));
  const { train, test } = site.examples, row = (i) => Object.fromEntries(columns.map(({ name, each, values }) => [name, values.subarray(i * each, (i + 1) * each)]));
  const rows = (first, count) => Array.from({ length: count }, (_, i) => ({ values: row(first + i) }));
  return { train: rows(0, train), test: rows(train, test) };
}

/** Take up what this browser remembers of the program; return what the person should know. */
async function remember() {
  const notes = [];
  try {
    if (!(await alone())) return ["This page is open in another tab, which keeps the weights. What you train here is not stored."];
    store = await Store.open(site.program);
    samples = await store.samples();
    const now = await store.state("now");
    if (now) { await trainer.restore(now.bytes); losses = Array.from(now.losses); before = (await store.state("before")) ?? null; }
  } catch (error) {
    notes.push(store ? `The stored weights could not be used, so the model starts afresh: ${error.message}` : `This browser does not let the page store anything (${error.message}). Download the checkpoint to keep your training.`);
  }
  return notes;
}

/** Return whether no other tab has this program open; a tab that is just closing may take a moment. */
function alone() {
  if (!navigator.locks) return true;
  return new Promise((done) => {
    const options = { signal: AbortSignal.timeout(2500) };
    navigator.locks.request(`onward ${site.program}`, options, () => { done(true); return new Promise(() => {}); }).catch(() => done(false));
  });
}

const where = () => ({ steps: trainer.steps, losses: losses.slice(-4000), first: Math.max(0, losses.length - 4000), undo: Boolean(before), running: Boolean(running) });
const shown = ({ id, label, picture, held }) => ({ id, label, picture, held });

// --- samples

/** Return the class of a sample, by the target that the site names. */
function classOf({ values }) {
  const target = values[site.target.name];
  return target.length > 1 ? best(Array.from(target, Number)) : Number(target[0]);
}

async function add(list) {
  const groups = new Map();
  const group = (s) => (site.task.kind === "classes" ? classOf(s) : "all");
  for (const s of samples) groups.set(group(s), (groups.get(group(s)) ?? 0) + 1);
  let id = samples.reduce((top, s) => Math.max(top, s.id), 0);
  const made = list.map((s) => {
    const count = groups.get(group(s)) ?? 0;
    groups.set(group(s), count + 1);
    return { ...s, id: ++id, held: count % 5 === 4 }; // every fifth of a class tests what was learned from the others
  });
  await store?.addSamples(made); // an error leaves the samples as they were
  samples.push(...made);
  return made.map(shown);
}

// --- training

/** Return the samples of a batch: mine and examples, so that what the model knew is not forgotten. */
function pick(size, random) {
  const mine = samples.filter((s) => !s.held), some = (from, n) => Array.from({ length: n }, () => from[Math.floor(random() * from.length)]);
  if (!mine.length || !examples.train.length) return some(mine.length ? mine : examples.train, size);
  const own = Math.min(size >> 1, mine.length * 4);
  return [...some(mine, own), ...some(examples.train, size - own)];
}

async function run(options) {
  const fixed = trainer.manifest.inputs.map((s) => s.shape[0]).find(Number.isInteger);
  const size = fixed ?? options.batch;
  let shownAt = 0, scoredAt = performance.now(), keptAt = performance.now(), since = 0, fresh = [], took = 0, problem = null;
  const show = () => { tell("trained", { steps: trainer.steps, fresh, left, ms: took }); fresh = []; shownAt = performance.now(); };
  try {
    before = { bytes: await trainer.checkpoint(), losses: Float32Array.from(losses) };
    let kept = { before };
    for (; left > 0; left--) {
      const random = randomNumbers(0x9e3779b9 * (trainer.steps + 1));
      const batch = makeBatch(pick(size, random).map((s) => s.values), trainer.manifest, site);
      const began = performance.now(), { loss } = await trainer.step(batch, options.settings, options.entry);
      took = performance.now() - began;
      losses.push(loss);
      fresh.push(loss);
      if (losses.length > MOST_LOSSES) losses = losses.slice(-MOST_LOSSES / 2);
      const now = performance.now();
      if (now - shownAt > SHOW_MS) show();
      if (++since >= KEEP_STEPS || now - keptAt > KEEP_MS) { await keep(kept); [since, keptAt, kept] = [0, performance.now(), {}]; }
      if (now - scoredAt > SCORE_MS) { tell("scored", await score()); scoredAt = performance.now(); }
      await breath();
    }
    await keep(kept);
    tell("scored", await score());
  } catch (error) { problem = error.message; left = 0; }
  show();
  running = left > 0 ? run(options) : null; // more may have been asked for in the meantime
  if (!running) tell("done", { ...where(), problem });
}

/** Store the weights. If there is no room, say so and go on: what is stored stays as it was. */
async function keep(more = {}) {
  if (!store) return false;
  try {
    await store.keep({ ...more, now: { bytes: await trainer.checkpoint(), losses: Float32Array.from(losses) } });
    tell("kept", { steps: trainer.steps });
    return true;
  } catch (error) { tell("problem", error.message); return false; }
}

// --- what it can do by now

async function outputsOf(list) {
  const made = await trainer.infer(makeBatch(list.map((s) => s.values), trainer.manifest, site, false));
  const output = made[site.task.output] ?? Object.values(made)[0], data = await output.getData();
  const each = data.length / output.dims[0];
  return list.map((_, i) => Array.from(data.subarray(i * each, (i + 1) * each), Number));
}

/** Return what the numbers of one sample mean. */
const meaning = (numbers) => (site.task.kind === "classes" ? probabilities(numbers, site.task.ending)
  : site.task.kind === "labels" && site.task.ending !== "Sigmoid" ? numbers.map((n) => 1 / (1 + Math.exp(-n))) : numbers);

/** Return the confusion matrix, or pairs of numbers, on samples that were not trained on; on the others where there are none. */
async function score() {
  let tested = [...samples.filter((s) => s.held), ...examples.test], held = true;
  if (!tested.length) [tested, held] = [samples, false];
  if (!tested.length) return null;
  const every = Math.ceil(tested.length / MOST_TESTED);
  tested = tested.filter((_, i) => i % every === 0);
  const fixed = trainer.manifest.inputs.map((s) => s.shape[0]).find(Number.isInteger) ?? 64, found = [];
  for (let i = 0; i < tested.length; i += fixed) { found.push(...(await outputsOf(tested.slice(i, i + fixed)))); await breath(); }
  if (site.task.kind === "classes") {
    const count = site.classes.length, matrix = Array.from({ length: count }, () => new Array(count).fill(0));
    let right = 0;
    tested.forEach((s, i) => { const is = classOf(s), said = best(meaning(found[i])); if (matrix[is]) matrix[is][said]++; right += is === said; });
    return { matrix, right, count: tested.length, held };
  }
  const pairs = tested.flatMap((s, i) => {
    const is = s.values[site.target.name], said = meaning(found[i]), count = is.length === said.length ? is.length : 1;
    return Array.from({ length: count }, (_, k) => [Number(is[k]), said[k]]);
  });
  const error = pairs.reduce((sum, [a, b]) => sum + Math.abs(a - b), 0) / pairs.length, nth = Math.ceil(pairs.length / MOST_DRAWN);
  return { pairs: pairs.filter((_, i) => i % nth === 0), error, count: tested.length, held };
}

// --- what the page may ask for

const idle = () => { if (running) throw new Error("The model is training: stop it first."); };

/** Replace the weights by those that `change` makes, and remember that. */
async function replace(change) {
  idle();
  const old = { bytes: await trainer.checkpoint(), losses: Float32Array.from(losses) };
  await change();
  before = old;
  await keep({ before });
  return { ...where(), score: await score() };
}

const calls = {
  load,
  /** A picture (as bitmap, or a file) becomes the bytes that the model takes. */
  async look({ bitmap, file }) {
    if (file) {
      try { bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" }); } catch { throw new Error(`\`${file.name}\` is no picture that this browser can read.`); }
    }
    const { width, height } = bitmap, canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(bitmap, 0, 0);
    bitmap.close();
    return pictureBytes(context.getImageData(0, 0, width, height), site.image);
  },
  async predict({ values }) { return meaning((await outputsOf([{ values }]))[0]); },
  add({ list }) { // one after the other: each takes the next numbers
    const made = added.then(() => add(list));
    added = made.catch(() => {});
    return made;
  },
  async remove({ id }) {
    await store?.removeSample(id);
    samples = samples.filter((s) => s.id !== id);
    return samples.length;
  },
  train({ steps, ...options }) {
    if (!samples.some((s) => !s.held) && !examples.train.length) throw new Error("There is nothing to learn from yet: add a sample first.");
    left += steps;
    running ??= run(options);
  },
  async stop() { left = Math.min(left, 1); await running; },
  score,
  async undo() {
    idle();
    if (!before) throw new Error("There is no training to undo.");
    await trainer.restore(before.bytes);
    losses = Array.from(before.losses);
    before = null;
    await keep({ before });
    return { ...where(), score: await score() };
  },
  begin: ({ random }) => replace(async () => { if (random) await trainer.initialize(Math.floor(Math.random() * 2 ** 31)); else await trainer.restore(original); losses = []; }),
  restore: ({ bytes }) => replace(() => trainer.restore(bytes)),
  async export() { return trainer.exportOnnx(); },
  async checkpoint() { return trainer.checkpoint(); },
  async forget() {
    left = 0;
    await running;
    await store?.forget();
    store = null; // nothing is stored again before the page is loaded anew
  },
};

onmessage = async ({ data: { id, call, value } }) => {
  try {
    const made = await calls[call](value ?? {});
    const bytes = made instanceof Uint8Array ? [made.buffer] : [];
    postMessage({ id, value: made }, bytes);
  } catch (error) { postMessage({ id, error: error?.message ?? String(error) }); }
};

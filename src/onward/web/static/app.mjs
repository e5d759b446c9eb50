// The page: it shows what the worker does and passes on what the person does. It computes nothing that takes time.
import { drawCurve, drawPairs, showBars, showMatrix } from "./charts.mjs";
import { best, sha256, thumbnail } from "./data.mjs";
import { Form } from "./form.mjs";
import { Pad } from "./pad.mjs";

const AT_ONCE = 12, SHOWN_SAMPLES = 36;
const SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11];
const page = Object.fromEntries([...document.querySelectorAll("[id]")].map((e) => [e.id, e]));
const problem = (text) => {
  try { window.sayProblem(text); } catch { // boot.js itself is damaged
    const box = document.getElementById("problem");
    box.hidden = false;
    box.firstElementChild.textContent = text.replaceAll("`", "");
  }
};
const say = (text) => { if (page.status.textContent !== text) page.status.textContent = text; };
/** Return numbers of things as words, without those of which there is none: "30 steps and 1 sample". */
const counted = (things) => Object.entries(things).filter(([, n]) => n).map(([name, n]) => `${n} ${name}${n === 1 ? "" : "s"}`).join(" and ");
let site, worker, pad, form, field, samples = [], losses = [], first = 0, lastScore = null, training = false, saidAt = 0;

page.problem.lastElementChild.onclick = () => { page.problem.hidden = true; };
window.addEventListener("unhandledrejection", (event) => { problem(event.reason?.message ?? String(event.reason)); event.preventDefault(); });

// --- the worker

const waiting = new Map();
let asked = 0, loadedBytes = 0;

/** Ask the worker and wait for its answer. */
function ask(call, value, transfer = []) {
  return new Promise((done, fail) => {
    waiting.set(++asked, { done, fail });
    worker.postMessage({ id: asked, call, value }, transfer);
  });
}

function startWorker() {
  // A worker made from a blob has the page's Content-Security-Policy; one from a file would have that of its server.
  const start = new Blob([`import ${JSON.stringify(new URL("worker.mjs", import.meta.url).href)};`], { type: "text/javascript" });
  const address = URL.createObjectURL(start);
  worker = new Worker(address, { type: "module" });
  worker.onmessage = ({ data }) => {
    if (data.event) return events[data.event](data.value);
    const { done, fail } = waiting.get(data.id);
    waiting.delete(data.id);
    if ("error" in data) fail(new Error(data.error)); else done(data.value);
  };
  worker.onerror = (event) => {
    const error = new Error(`The worker could not start: ${event.message || "`worker.mjs` or a file that it needs is damaged or missing"}`);
    problem(error.message);
    for (const { fail } of waiting.values()) fail(error);
    waiting.clear();
  };
}

const events = {
  loaded({ bytes }) {
    loadedBytes += bytes;
    page.loading.value = Math.min(1, loadedBytes / site.bytes);
    say(`Loading: ${(loadedBytes / 1e6).toFixed(1)} of ${(site.bytes / 1e6).toFixed(1)} MB`);
  },
  trained({ steps, fresh, ms }) {
    losses.push(...fresh);
    if (losses.length > 6000) { first += losses.length - 4000; losses = losses.slice(-4000); }
    page.step.textContent = steps;
    if (fresh.length) { page.loss.textContent = fresh.at(-1).toPrecision(3); page.speed.textContent = `${ms.toFixed(ms < 10 ? 1 : 0)} ms`; }
    draw();
    if (performance.now() - saidAt > 3000 && losses.length) { say(`Training: step ${steps}, loss ${losses.at(-1).toPrecision(3)}`); saidAt = performance.now(); }
  },
  scored: showScore,
  kept: ({ steps }) => { page.facts.dataset.kept = steps; },
  problem,
  done(state) {
    training = false;
    show(state);
    if (state.problem) problem(`Training stopped: ${state.problem}`);
    say(`Trained: step ${state.steps}${lastScore ? `, ${scoreWords()}` : ""}.`);
    look();
  },
};

// --- showing

let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; drawCurve(page.curve, losses, first); if (lastScore?.pairs) drawPairs(page.scatter, lastScore.pairs); });
}

/** Show where the training stands. */
function show(state) {
  losses = state.losses;
  first = state.first + state.steps - state.losses.length > 0 ? state.steps - state.losses.length : 0;
  page.step.textContent = state.steps;
  page.loss.textContent = losses.length ? losses.at(-1).toPrecision(3) : "–";
  page["undo-training"].disabled = !state.undo || training;
  page.train.textContent = training ? "Stop" : "Train";
  page.train.classList.toggle("busy", training);
  for (const name of ["original", "random", "restore", "forget"]) page[name].disabled = training;
  if ("score" in state) showScore(state.score);
  draw();
}

const scoreWords = () => (lastScore.pairs ? `mean error ${lastScore.error.toPrecision(3)}` : `${((100 * lastScore.right) / lastScore.count).toFixed(1)} % right`);

function showScore(score) {
  lastScore = score;
  const pairs = Boolean(score?.pairs);
  page["score-name"].textContent = site.task.kind === "classes" ? "right" : "error";
  page["matrix-title"].textContent = site.task.kind === "classes" ? "Which class it takes for which" : "What it says, by what is right";
  page.scatter.hidden = !pairs;
  if (!score) {
    page.accuracy.textContent = "–";
    page.matrix.replaceChildren();
    page["score-note"].textContent = "Add samples, and this shows how well it does.";
    return;
  }
  page.accuracy.textContent = pairs ? score.error.toPrecision(3) : `${((100 * score.right) / score.count).toFixed(1)} %`;
  if (pairs) drawPairs(page.scatter, score.pairs); else showMatrix(page.matrix, site.classes, score);
  const axes = pairs || !page.matrix.querySelector("table") ? "" : " Rows: what it is; columns: what it says.";
  page["score-note"].textContent = (score.held
    ? `On ${score.count} samples that it never trained on.`
    : `On the ${score.count} samples it trained on; from the fifth of a class on, some are kept for the test.`) + axes;
}

function showSamples() {
  page.count.textContent = samples.length;
  page["undo-sample"].disabled = !samples.length;
  page.samples.replaceChildren(...samples.slice(-SHOWN_SAMPLES).reverse().map((sample) => {
    const item = document.createElement("li"), remove = document.createElement("button"), label = document.createElement("span");
    label.textContent = sample.label;
    item.title = sample.held ? `${sample.label}: kept for the test` : sample.label;
    item.classList.toggle("held", sample.held);
    if (sample.picture) item.append(pictureOf(sample.picture));
    Object.assign(remove, { type: "button", textContent: "×", ariaLabel: `Remove the sample ${sample.label}`, onclick: () => removeSample(sample.id) });
    item.append(label, remove);
    return item;
  }));
  const counts = new Map();
  for (const { label } of samples) counts.set(label, (counts.get(label) ?? 0) + 1);
  for (const button of page.classes.children) {
    const count = counts.get(button.dataset.name) ?? 0;
    button.lastElementChild.textContent = count || "";
    button.ariaLabel = `It is: ${button.dataset.name}${count ? `, ${count} ${count === 1 ? "sample" : "samples"}` : ""}`; // not "71" for a 7 with one sample
  }
  const held = samples.filter((s) => s.held).length;
  page["samples-note"].textContent = held ? `${held} of them (dashed) are kept for the test.` : "";
}

function pictureOf(bytes, canvas = document.createElement("canvas")) {
  const { width, height } = site.image;
  Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(new ImageData(thumbnail(bytes, site.image), width, height), 0, 0);
  return canvas;
}

function showAnswer(numbers) {
  const [top, rest] = page.guess.children;
  if (!numbers) { top.textContent = "–"; rest.textContent = ""; return page.bars.replaceChildren(); }
  if (site.task.kind === "values") {
    top.textContent = numbers.slice(0, 12).map((n) => +n.toPrecision(5)).join(", ");
    page.guess.classList.toggle("several", numbers.length > 1);
    rest.textContent = numbers.length > 12 ? `and ${numbers.length - 12} more` : "";
    return;
  }
  const winner = best(numbers);
  top.textContent = site.classes[winner];
  rest.textContent = `${(100 * numbers[winner]).toFixed(0)} %`;
  showBars(page.bars, site.classes, numbers);
}

// --- looking at what is shown to it

let looking = false, again = false, answered = false;

/** Ask the model about what is shown, as often as it can answer. */
async function look() {
  if (looking) { again = true; return; }
  looking = true;
  try {
    do {
      again = false;
      if (!pad) { if (answered) showAnswer(await ask("predict", { values: form.values() })); continue; }
      const seen = await seenIn((await pad.pictures()).slice(0, 1));
      if (pad?.from === "files" && seen.length) { pictureOf(seen[0].picture, page.preview).hidden = false; say(`${counted({ picture: pad.files.length })}: choose the class.`); }
      showAnswer(seen.length ? await ask("predict", { values: seen[0].values }) : null);
    } while (again);
  } catch (error) { problem(error.message); } finally { looking = false; }
}

/** Return what `pictures` show, as samples without a target. */
async function seenIn(pictures) {
  const found = [];
  for (const each of pictures) {
    const picture = await ask("look", each, each.bitmap ? [each.bitmap] : []);
    found.push({ picture, values: { [site.image.input]: picture } });
  }
  return found;
}

/** Watch the camera for as long as it is on. */
async function watch() {
  while (pad.from === "camera" && pad.stream) { await look(); await new Promise((done) => setTimeout(done, 120)); }
}

// --- teaching

async function label(number) {
  const name = site.classes[number], target = site.fields.find((f) => f.classes), { from } = pad, taken = pad.pictures();
  if (from !== "camera") pad.clear(); // at once: the next drawing may begin while the worker is busy with a step
  const shown = await seenIn(await taken);
  if (!shown.length) return say(from === "draw" ? "Draw something first, then say what it is." : "There is no picture yet.");
  const values = target.one_hot ? site.classes.map((_, i) => Number(i === number)) : [number];
  await addSamples(shown.map((s) => ({ ...s, label: name, values: { ...s.values, [target.name]: values } })));
}

async function addSamples(list) {
  const made = await ask("add", { list });
  samples.push(...made);
  showSamples();
  say(`${made.length === 1 ? `One more sample: ${made[0].label}` : `${made.length} more samples`}.`);
  if (page["at-once"].checked) await train(AT_ONCE);
  else if (!training) showScore(await ask("score"));
}

async function removeSample(id) {
  await ask("remove", { id });
  const gone = samples.find((s) => s.id === id);
  samples = samples.filter((s) => s.id !== id);
  showSamples();
  say(`Removed a sample: ${gone.label}.`);
  if (!training) showScore(await ask("score"));
}

function trainingOptions() {
  const settings = {}, rate = Number(page.rate.value), usual = site.rates[0]?.default;
  if (usual && rate > 0 && page.rate.value !== page.rate.defaultValue) for (const { name, default: own } of site.rates) settings[name] = (own * rate) / usual;
  const whole = (input, least) => Math.max(least, Math.round(Number(input.value)) || least);
  return { settings, batch: whole(page.batch, 1), steps: whole(page.steps, 1), ...(site.entries.length ? { entry: page.entry.value } : {}) };
}

async function train(steps) {
  const options = trainingOptions(), began = !training;
  await ask("train", { ...options, steps: steps ?? options.steps });
  training = true;
  page.train.textContent = "Stop";
  page.train.classList.add("busy");
  page["undo-training"].disabled = true;
  for (const name of ["original", "random", "restore", "forget"]) page[name].disabled = true;
  if (began && steps === undefined) { say("Training…"); saidAt = performance.now(); }
}

// --- keeping

function give(bytes, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([bytes])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const fileName = () => site.title.replace(/[^\p{L}\p{N}.-]+/gu, "_").replace(/^[._]+|[._]+$/g, "") || "model";

function connect() {
  page.train.onclick = () => (training ? ask("stop") : train());
  page["undo-training"].onclick = async () => { show(await ask("undo")); say("Back to the weights before the last training."); look(); };
  page["undo-sample"].onclick = () => removeSample(samples.at(-1).id);
  page.original.onclick = async () => { show(await ask("begin", { random: false })); say("Back to the first weights."); look(); };
  page.random.onclick = async () => { show(await ask("begin", { random: true })); say("New random weights: it knows nothing now. Train it!"); look(); };
  page.export.onclick = async () => give(await ask("export"), `${fileName()}.onnx`);
  page.save.onclick = async () => give(await ask("checkpoint"), `${fileName()}.safetensors`);
  page.restore.onchange = async () => {
    const [file] = page.restore.files;
    page.restore.value = "";
    try { show(await ask("restore", { bytes: new Uint8Array(await file.arrayBuffer()) })); say(`Restored ${file.name}.`); look(); } catch (error) { problem(`\`${file.name}\` was not restored, and nothing has changed: ${error.message}`); }
  };
  page.forget.onclick = () => { page["sure-words"].textContent = `Delete the weights${samples.length ? ` and ${counted({ sample: samples.length })}` : ""} from this browser? They cannot be brought back.`; page.sure.showModal(); };
  page.sure.onclose = async () => { if (page.sure.returnValue === "yes") { await ask("forget"); location.reload(); } };
  page.sure.querySelector("[value=yes]").textContent = "Forget me";
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(draw).observe(page.curve);
}

function showPictureModel() {
  page.picture.hidden = false;
  pad = new Pad(page, site.image, { changed: (kind) => { if (kind === "camera") watch(); else look(); }, problem });
  site.classes.forEach((name, number) => {
    const button = Object.assign(document.createElement("button"), { type: "button", title: `It is: ${name}` }), text = document.createElement("span"), count = document.createElement("small");
    button.dataset.name = text.textContent = name;
    button.append(text, count);
    let timer = 0;
    button.onclick = () => { if (pad.from !== "camera") label(number); };
    button.onpointerdown = () => { if (pad.from === "camera") { label(number); timer = setInterval(() => label(number), 200); } }; // hold it to take many
    button.onkeydown = (event) => { if (pad.from === "camera" && (event.key === "Enter" || event.key === " ")) label(number); };
    button.onpointerup = button.onpointerleave = button.onpointercancel = () => clearInterval(timer);
    page.classes.append(button);
  });
  page.classes.classList.toggle("long", site.classes.some((name) => name.length > 3));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
    const number = site.classes.findIndex((name) => name.toLowerCase() === event.key.toLowerCase());
    if (number >= 0) label(number);
  });
}

function showTableModel() {
  page.form.hidden = page["table-tools"].hidden = false;
  page["teach-words"].textContent = "Tell it what is right";
  page["teach-note"].textContent = "Say what belongs to the numbers of the form, or add a table.";
  form = new Form(page, site);
  let said = "";
  const attempt = async (work, place = "") => { // what was wrong with the last one goes when the next one is right
    try {
      await work();
      if (page.problem.textContent === said) page.problem.hidden = true;
    } catch (error) {
      problem(`${place}${error.message}`);
      said = page.problem.textContent;
    }
  };
  page.form.onsubmit = (event) => {
    event.preventDefault();
    attempt(async () => { showAnswer(await ask("predict", { values: form.values() })); answered = true; });
  };
  const numbersOf = (values) => values.slice(0, 3).map((v) => +v.toPrecision(3)).join(", ") + (values.length > 3 ? " …" : "");
  const labelOf = (values) => site.fields.filter((f) => f.role === "target").map((f) => (f.classes ? site.classes[f.one_hot ? best(values[f.name]) : values[f.name][0]] : numbersOf(values[f.name]))).join(" · ");
  page.add.onclick = () => attempt(async () => { const values = form.values(true); await addSamples([{ values, label: labelOf(values) }]); });
  page.csv.onchange = () => {
    const [file] = page.csv.files;
    page.csv.value = "";
    attempt(async () => addSamples(form.rows(await file.text()).map((values) => ({ values, label: labelOf(values) }))), `\`${file.name}\`: `);
  };
}

// --- the beginning

async function readSite() {
  const response = await fetch("site.json");
  if (!response.ok) throw new Error(`\`site.json\` could not be loaded: the server answered ${response.status}`);
  const bytes = await response.arrayBuffer();
  if ((await sha256(bytes)) !== document.documentElement.dataset.site) throw new Error("`site.json` is damaged: its checksum is not that of the file that was built. Reload the page, or build the site again.");
  return JSON.parse(new TextDecoder().decode(bytes));
}

async function begin() {
  if (!globalThis.WebAssembly || !WebAssembly.validate(Uint8Array.from(SIMD))) throw new Error("This browser has no WebAssembly SIMD, which ONNX Runtime needs. Chrome 91, Edge 91, Firefox 89 and Safari 16.4, and all later ones, have it.");
  if (!globalThis.crypto?.subtle) throw new Error("Open this page over https, or on localhost: elsewhere a browser does not let it check its files, use the camera or work offline.");
  site = await readSite();
  startWorker();
  const state = await ask("load", { site });
  samples = state.samples;
  if (site.kind === "image") showPictureModel(); else showTableModel();
  page.learn.classList.toggle("table", site.kind !== "image");
  page["rate-label"].hidden = !site.rates.length;
  page.rate.value = page.rate.defaultValue = site.rates.length ? +site.rates[0].default.toPrecision(6) : "";
  page.batch.value = site.batch;
  const made = (state.manifest.graphs.initialize?.outputs ?? []).map((o) => o.replaces);
  page.random.hidden = !state.manifest.state.tensors.every((t) => !t.trained || made.includes(t.name)); // some make only moments
  page["entry-label"].hidden = !site.entries.length;
  page.entry.append(...site.entries.map((name) => Object.assign(document.createElement("option"), { textContent: name })));
  connect();
  page.loading.hidden = true;
  page.work.hidden = false;
  show(state);
  showSamples();
  const size = state.manifest.state.tensors.filter((t) => t.trained).reduce((n, t) => n + t.shape.reduce((a, b) => a * b, 1), 0);
  page.facts.textContent = [`${size.toLocaleString("en")} weights`, `onnxruntime-web ${site.runtime.version}, ${state.threads} ${state.threads === 1 ? "thread" : "threads"}`, state.checked ? "self-test passed" : "", site.examples ? `${site.examples.train + site.examples.test} examples came with the page` : ""].filter(Boolean).join(" · ");
  const kept = counted({ step: state.steps, sample: samples.length });
  say(kept ? `Welcome back: this browser remembers ${kept}.` : "Ready.");
  state.notes.forEach(problem);
  document.documentElement.dataset.ready = "yes";
  showScore(await ask("score"));
  if ("serviceWorker" in navigator) await navigator.serviceWorker.register("sw.js");
}

begin().catch((error) => { page.loading.hidden = true; problem(error.message); say("It did not start."); });

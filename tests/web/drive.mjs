// Uses sites as a person does, in Chromium by playwright-core, and prints what happened as JSON.
// Reads {chromium, modules, site, plain, table, out, picture, csv} as JSON from its first argument: addresses and files.
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { measure, trainAndDraw } from "./frames.mjs";

const job = JSON.parse(process.argv[2]), { chromium } = createRequire(path.join(job.modules, "x"))("playwright-core");
const options = { executablePath: job.chromium, args: ["--no-sandbox", "--disable-dev-shm-usage"] };
const found = { errors: [] }, browser = await chromium.launch(options);

async function open(address, { context = {}, prepare = async () => {}, ready = true } = {}) {
  const made = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...context }), page = await made.newPage();
  page.setDefaultTimeout(120000);
  if (ready) page.on("pageerror", (e) => found.errors.push(e.message));
  await prepare(page, made);
  await page.goto(address);
  if (ready) await isReady(page); else await page.waitForSelector("#problem:not([hidden])", { timeout: 120000 });
  return page;
}
const isReady = (page) => page.waitForFunction(() => document.documentElement.dataset.ready === "yes", null, { timeout: 120000 });
const text = (page, id) => page.textContent(`#${id}`);
const problem = async (page) => ((await page.isVisible("#problem")) ? page.$eval("#problem p", (p) => Array.from(p.childNodes, (n) => (n.nodeName === "CODE" ? `\`${n.textContent}\`` : n.textContent)).join("")) : "");
const idle = (page) => page.waitForFunction(() => document.getElementById("train").textContent === "Train" && /^Trained/.test(document.getElementById("status").textContent), null, { timeout: 120000 });
const steps = async (page) => Number(await text(page, "step"));
const until = (page, words) => page.waitForFunction((w) => document.getElementById("status").textContent.includes(w), words, { timeout: 120000 });

async function draw(page, points) {
  const box = await page.locator("#pad").boundingBox(), at = ([x, y]) => [box.x + x * box.width, box.y + y * box.height];
  await page.mouse.move(...at(points[0]));
  await page.mouse.down();
  for (const point of points) await page.mouse.move(...at(point), { steps: 4 });
  await page.mouse.up();
}
async function download(page, button, name) {
  const [file] = await Promise.all([page.waitForEvent("download"), page.click(button)]);
  await file.saveAs(path.join(job.out, name));
  return file.suggestedFilename();
}
/** Train without an end, and return once more steps than `least` are stored: how many are. */
async function trainOn(page, least) {
  await page.fill("#steps", "100000");
  await page.click("#train");
  await page.waitForFunction((n) => Number(document.getElementById("facts").dataset.kept) > n, least, { timeout: 120000 });
  return page.evaluate(() => Number(document.getElementById("facts").dataset.kept));
}
/** End the browser with this profile as a failure of power would: no process of it may do anything more. */
function kill(profile) {
  const words = (id) => { try { return readFileSync(`/proc/${id}/cmdline`, "utf8").split("\0"); } catch { return []; } }; // it may have ended
  const main = readdirSync("/proc").filter((id) => /^\d+$/.test(id) && words(id).includes(`--user-data-dir=${profile}`) && !words(id).some((w) => w.startsWith("--type=")));
  if (main.length !== 1) throw new Error(`${main.length} browsers have the profile ${profile}`);
  process.kill(Number(main[0]), "SIGKILL");
}
/** Return what the browser remembers, without the weights. */
const memory = (page) => page.evaluate(async () => {
  const db = await new Promise((done) => { const asked = indexedDB.open("onward", 1); asked.onsuccess = () => done(asked.result); });
  const all = (name) => new Promise((done) => { const asked = db.transaction(name).objectStore(name).getAll(); asked.onsuccess = () => done(asked.result); });
  const samples = await all("samples"), states = await all("state");
  db.close();
  return { states: states.length, samples: samples.map((s) => ({ label: s.label, held: s.held, values: Object.fromEntries(Object.entries(s.values).map(([k, v]) => [k, Array.from(v, Number)])) })) };
});

const parts = {
  /** How long the page is kept from drawing while it trains, up to three times, and while it does nothing: a busy machine may
   *  spoil some of them. */
  async frames() {
    const page = await open(job.site), said = { tries: [] };
    do said.tries.push({ ...(await measure(browser, page, () => trainAndDraw(page, 100))), idle: (await measure(browser, page, () => page.waitForTimeout(1500))).longest });
    while (said.tries.length < 3 && !(said.tries.at(-1).longest < 100));
    said.blocked = await measure(browser, page, async () => { // what a page that waits would look like
      await page.evaluate(() => { const end = performance.now() + 400; while (performance.now() < end); });
      await page.waitForTimeout(300);
    });
    await page.context().close();
    return said;
  },
  /** Draw, label, train, undo, reload, export, forget. */
  async pictures() {
    const page = await open(job.site), said = { isolated: await page.evaluate(() => crossOriginIsolated), facts: await text(page, "facts") };
    await page.uncheck("#at-once");
    await draw(page, [[0.5, 0.15], [0.5, 0.85]]);
    await page.waitForFunction(() => document.querySelector("#guess b").textContent !== "–");
    await page.locator("#classes button").nth(1).click();
    await until(page, "One more sample: 1");
    said.labels = await page.$$eval("#classes button", (buttons) => buttons.slice(0, 2).map((b) => b.ariaLabel));
    await draw(page, [[0.2, 0.2], [0.8, 0.2], [0.4, 0.85]]);
    await page.keyboard.press("7");
    await until(page, "One more sample: 7");
    await page.click("#undo-sample");
    await until(page, "Removed");
    said.afterUndo = await memory(page);
    await page.locator(".segments label", { hasText: "Files" }).click();
    await page.setInputFiles("#files", job.picture);
    await page.waitForSelector("#preview:not([hidden])");
    said.filePrediction = await page.$$eval("#bars li", (items) => items.map((i) => Number(i.children[1].getAttribute("aria-valuenow"))));
    await page.locator("#classes button").nth(4).click();
    await until(page, "One more sample: 4");
    await page.fill("#steps", "30");
    await page.click("#train");
    await idle(page);
    said.trained = [await steps(page), Number(await text(page, "loss"))];
    said.undone = await (async () => { await page.click("#undo-training"); await until(page, "Back to"); return steps(page); })();
    await page.click("#train");
    await idle(page);
    said.again = [await steps(page), Number(await text(page, "loss"))];
    said.names = [await download(page, "#export", "personal.onnx"), await download(page, "#save", "personal.safetensors")];
    await page.reload();
    await isReady(page);
    said.reloaded = { status: await text(page, "status"), steps: await steps(page), samples: await text(page, "count") };
    await download(page, "#export", "reloaded.onnx");
    said.kept = await trainOn(page, 30);
    await page.reload(); // in the middle of the training
    await isReady(page);
    said.interrupted = await steps(page);
    await page.setInputFiles("#restore", path.join(job.out, "personal.safetensors"));
    await until(page, "Restored");
    said.restored = await steps(page);
    await page.setInputFiles("#restore", job.damaged);
    await page.waitForSelector("#problem:not([hidden])");
    said.damaged = [await problem(page), await steps(page)];
    await page.click("#problem button");
    await page.setInputFiles("#restore", job.other);
    await page.waitForSelector("#problem:not([hidden])");
    said.other = [await problem(page), await steps(page)];
    await page.click("#forget");
    await page.click("#sure [value=yes]");
    await page.waitForFunction(() => performance.getEntriesByType("navigation")[0].type === "reload" && document.documentElement.dataset.ready === "yes" && document.getElementById("status").textContent === "Ready.", null, { timeout: 120000 });
    said.forgotten = { steps: await steps(page), memory: await memory(page) };
    await page.context().close();
    return said;
  },
  /** A tab that is closed while it trains, then a browser that is killed while it trains; and the same steps undisturbed. */
  async closed() {
    const profile = path.join(job.out, "closed"), start = () => chromium.launchPersistentContext(profile, options), said = {};
    const again = async (context) => {
      const page = await context.newPage();
      page.setDefaultTimeout(120000);
      await page.goto(job.site);
      await isReady(page);
      return { page, found: { steps: await steps(page), status: await text(page, "status") } };
    };
    let context = await start();
    const { page: first } = await again(context);
    const closed = await trainOn(first, 0);
    await first.close();
    const { page: second, found } = await again(context);
    said.closed = { kept: closed, ...found };
    await download(second, "#save", "closed.safetensors");
    const killed = await trainOn(second, found.steps), ended = new Promise((done) => context.once("close", done));
    kill(profile);
    await ended;
    context = await start();
    const { page: third, found: later } = await again(context);
    said.killed = { kept: killed, ...later };
    await download(third, "#save", "killed.safetensors");
    await context.close();
    const page = await open(job.site);
    for (const [name, count] of [["closed", found.steps], ["killed", later.steps - found.steps]]) {
      await page.fill("#steps", String(count));
      await page.click("#train");
      await idle(page);
      await download(page, "#save", `${name}-undisturbed.safetensors`);
    }
    await page.context().close();
    return said;
  },
  /** Train is clicked while the first test runs: both come to their end, and only after that test comes the service worker. */
  async hasty() {
    const click = () => new MutationObserver((_, observer) => {
      if (document.documentElement.dataset.ready === "yes") { observer.disconnect(); document.getElementById("steps").value = "20"; document.getElementById("train").click(); }
    }).observe(document, { attributes: true, subtree: true });
    const page = await open(job.site, { prepare: (p) => p.addInitScript(click) });
    await idle(page);
    await page.evaluate(() => navigator.serviceWorker.ready.then(() => {}));
    const said = { steps: await steps(page), score: await text(page, "accuracy") };
    await page.context().close();
    return said;
  },
  /** No mouse: tab to each control, draw and label by keys, train; then what a screen reader finds, also on a phone. */
  async keyboard() {
    const page = await open(job.site), said = { order: [] }, focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.dataset.name || document.activeElement.value || document.activeElement.tagName);
    await page.uncheck("#at-once");
    await page.focus(".skip");
    for (let i = 0; i < 40 && said.order.at(-1) !== "forget"; i++) { await page.keyboard.press("Tab"); said.order.push(await focused()); }
    await page.focus("#pad");
    for (const key of [" ", ...Array(12).fill("ArrowDown"), " "]) await page.keyboard.press(key);
    await page.keyboard.press("1");
    await until(page, "One more sample: 1");
    await page.focus("#steps");
    await page.keyboard.press("Control+A");
    await page.keyboard.type("5");
    await page.focus("#train");
    await page.keyboard.press("Enter");
    await idle(page);
    said.steps = await steps(page);
    const session = await page.context().newCDPSession(page), { nodes } = await session.send("Accessibility.getFullAXTree");
    const is = (node, name) => node.properties?.some((p) => p.name === name && p.value.value === true);
    said.nameless = nodes.filter((n) => !n.ignored && is(n, "focusable") && n.role.value !== "RootWebArea" && !n.name?.value).map((n) => n.role.value);
    said.names = nodes.filter((n) => !n.ignored && is(n, "focusable")).map((n) => n.name?.value);
    await page.setViewportSize({ width: 420, height: 740 });
    said.phone = await page.evaluate(() => { scrollTo(0, 0); const at = (id) => document.getElementById(id).getBoundingClientRect(); return { wide: document.documentElement.scrollWidth, pad: at("pad").bottom, guess: at("guess").bottom, classes: [at("classes").top, at("classes").bottom] }; });
    await page.context().close();
    return said;
  },
  /** A person who labels a drawing and draws the next before the worker has looked at the first. */
  async quick() {
    const page = await open(job.site);
    await page.uncheck("#at-once");
    await page.evaluate(() => {
      const press = (key, times = 1) => { for (let i = 0; i < times; i++) document.getElementById("pad").dispatchEvent(new KeyboardEvent("keydown", { key })); };
      const classes = document.querySelectorAll("#classes button");
      press(" "); // a dot above
      classes[1].click();
      press("ArrowDown", 16);
      press(" "); // a dot below
      classes[2].click();
    });
    await page.waitForFunction(() => document.getElementById("count").textContent === "2");
    const { samples } = await memory(page);
    await page.context().close();
    return { samples };
  },
  /** A server without headers: the service worker makes the page isolated and lets it work without the server. */
  async offline() {
    const page = await open(job.plain), said = { first: await page.evaluate(() => crossOriginIsolated) };
    await page.evaluate(() => navigator.serviceWorker.ready);
    await page.waitForFunction(() => navigator.serviceWorker.controller, null, { timeout: 120000 });
    await page.context().setOffline(true);
    await page.reload();
    await isReady(page);
    said.second = await page.evaluate(() => crossOriginIsolated);
    await page.fill("#steps", "3");
    await page.click("#train");
    await idle(page);
    said.steps = await steps(page);
    const tries = async () => { const seen = new Promise((done) => { addEventListener("securitypolicyviolation", (e) => done(e.effectiveDirective)); setTimeout(() => done("nothing"), 3000); }); await fetch("http://example.com/").catch(() => {}); return seen; };
    said.blocked = [await page.evaluate(tries), await page.workers()[0].evaluate(async () => { const seen = new Promise((done) => { self.addEventListener("securitypolicyviolation", (e) => done(e.effectiveDirective)); setTimeout(() => done("nothing"), 3000); }); await fetch("http://example.com/").catch(() => {}); return seen; })];
    await page.context().close();
    return said;
  },
  /** One flipped bit in a file, and a browser without SIMD. */
  async bad() {
    const said = { flipped: {} }, context = { serviceWorkers: "block" };
    const flip = (name, part = 2) => async (page) => page.route(`**/${name}`, async (route) => {
      const response = await route.fetch(), body = await response.body();
      body[Math.trunc(body.length / part)] ^= 1;
      await route.fulfill({ response, body });
    });
    for (const name of job.flipped) {
      const page = await open(job.site, { context, prepare: flip(name), ready: false });
      said.flipped[name] = await problem(page);
      await page.context().close();
    }
    const boot = await open(job.site, { context, prepare: flip("boot.js", Infinity), ready: false }); // no JavaScript any more
    said.boot = await problem(boot);
    await boot.context().close();
    const old = await open(job.site, { context, prepare: (page) => page.addInitScript(() => { WebAssembly.validate = () => false; }), ready: false });
    said.simd = await problem(old);
    await old.context().close();
    return said;
  },
  /** No room to store more. Chromium asks for the room at the first write alone, so the browser starts anew between. */
  async full() {
    const start = () => chromium.launchPersistentContext(path.join(job.out, "profile"), { ...options, serviceWorkers: "block" }), train = async (page) => { await page.fill("#steps", "2"); await page.click("#train"); await idle(page); };
    const roomy = await start(), first = roomy.pages()[0];
    await first.goto(job.site);
    await isReady(first);
    await train(first);
    await roomy.close();
    const context = await start(), page = context.pages()[0], session = await context.newCDPSession(page);
    await session.send("Storage.overrideQuotaForOrigin", { origin: new URL(job.site).origin, quotaSize: 1 });
    await page.goto(job.site);
    await isReady(page);
    await train(page);
    const said = { problem: await problem(page), steps: await steps(page) };
    await page.reload();
    await isReady(page);
    said.remembered = await steps(page);
    await context.close();
    return said;
  },
  /** A model that takes pictures of any size; one is dropped onto the page. */
  async sizes() {
    const page = await open(job.sizes), said = { title: await page.textContent("h1") };
    await page.uncheck("#at-once");
    const dropped = await page.evaluateHandle((bytes) => { const made = new DataTransfer(); made.items.add(new File([Uint8Array.from(bytes)], "picture.png")); return made; }, [...readFileSync(job.picture)]);
    await page.dispatchEvent("#stage", "drop", { dataTransfer: dropped });
    await page.waitForFunction(() => document.querySelector("#guess b").textContent !== "–");
    said.shares = await page.$$eval("#bars li", (items) => items.map((i) => Number(i.children[1].getAttribute("aria-valuenow"))));
    await page.locator("#classes button").nth(1).click();
    await until(page, "One more sample");
    await page.fill("#steps", "3");
    await page.click("#train");
    await idle(page);
    said.steps = await steps(page);
    await page.context().close();
    return said;
  },
  /** A model that says of a picture how likely one thing is; a white and a black picture tell it what is what. */
  async one() {
    const page = await open(job.one), said = { classes: await page.$$eval("#classes button", (buttons) => buttons.map((b) => b.dataset.name)) };
    await page.uncheck("#at-once");
    await page.locator(".segments label", { hasText: "Files" }).click();
    await page.setInputFiles("#files", job.picture);
    await page.waitForFunction(() => document.querySelector("#guess b").textContent !== "–");
    said.shares = await page.$$eval("#bars li", (items) => items.map((i) => Number(i.children[1].getAttribute("aria-valuenow"))));
    await page.locator("#classes button").nth(1).click();
    await until(page, "One more sample: glasses");
    await page.locator(".segments label", { hasText: "Draw" }).click();
    await draw(page, [[0.1, 0.1], [0.9, 0.9]]);
    await page.locator("#classes button").nth(0).click();
    await until(page, "One more sample: bare");
    said.samples = (await memory(page)).samples.map((s) => s.values.labels);
    await page.fill("#steps", "200");
    await page.click("#train");
    await idle(page);
    Object.assign(said, { score: await text(page, "accuracy"), matrix: await page.$$eval("#matrix td", (cells) => cells.map((c) => c.textContent)) });
    await page.context().close();
    return said;
  },
  /** The camera, which Chromium plays by itself; and a person who does not allow it. */
  async camera() {
    const said = {}, flags = { allowed: ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"], refused: ["--use-fake-device-for-media-stream", "--deny-permission-prompts"] };
    for (const [name, more] of Object.entries(flags)) {
      const other = await chromium.launch({ ...options, args: [...options.args, ...more] }), page = await other.newPage();
      await page.goto(job.site);
      await isReady(page);
      await page.uncheck("#at-once");
      await page.locator(".segments label", { hasText: "Camera" }).click();
      if (name === "allowed") {
        await page.waitForFunction(() => document.querySelector("#guess b").textContent !== "–", null, { timeout: 60000 });
        await page.locator("#classes button").nth(2).click();
        await until(page, "One more sample");
        said.samples = (await memory(page)).samples;
      } else {
        await page.waitForSelector("#problem:not([hidden])", { timeout: 60000 });
        said.problem = await problem(page);
      }
      await other.close();
    }
    return said;
  },
  /** A model of numbers: the form, a table, training, and what it says. */
  async table() {
    const page = await open(job.table), said = {};
    await page.uncheck("#at-once");
    await page.setInputFiles("#csv", job.csv);
    await until(page, "more samples");
    said.samples = (await memory(page)).samples;
    const fields = await page.$$("#inputs input, #inputs select");
    said.fields = fields.length;
    said.titles = await page.$$eval("legend", (all) => all.map((e) => e.textContent));
    for (const [i, value] of job.row.entries()) await (typeof value === "string" ? fields[i].selectOption(value) : fields[i].fill(String(value)));
    await page.fill("#steps", "20");
    await page.click("#ask");
    await page.waitForFunction(() => document.querySelector("#guess b").textContent !== "–");
    const before = await text(page, "bars");
    await page.click("#train");
    await idle(page);
    await page.waitForFunction((old) => document.getElementById("bars").textContent !== old, before);
    said.after = await page.$$eval("#bars li", (items) => items.map((i) => Number(i.children[1].getAttribute("aria-valuenow")))); // the answer is that of the new weights
    await page.click("#ask");
    await page.waitForTimeout(300);
    said.guess = await text(page, "guess");
    said.shares = await page.$$eval("#bars li", (items) => items.map((i) => Number(i.children[1].getAttribute("aria-valuenow"))));
    await download(page, "#export", "table.onnx");
    await page.setInputFiles("#csv", { name: "wrong.csv", mimeType: "text/csv", buffer: Buffer.from("a,b\n1,2\n") });
    await page.waitForSelector("#problem:not([hidden])");
    said.wrong = await problem(page);
    await page.click("#ask");
    await page.waitForSelector("#problem", { state: "hidden" });
    said.then = await problem(page);
    await page.context().close();
    return said;
  },
  /** A model that says several numbers: how far it is from what is right. */
  async numbers() {
    const page = await open(job.numbers), said = {};
    await page.uncheck("#at-once");
    await page.setInputFiles("#csv", { name: "rows.csv", mimeType: "text/csv", buffer: Buffer.from(["x_0,x_1,x_2,labels_0,labels_1", ...job.rows].join("\n")) });
    await page.waitForFunction(() => document.getElementById("accuracy").textContent !== "–");
    said.error = await text(page, "accuracy");
    said.samples = (await memory(page)).samples;
    await page.context().close();
    return said;
  },
};

// The first alone, because it measures the frames of the page; the others spend their time waiting, so side by side.
const run = async (name) => { found[name] = await parts[name](); };
try { await run(job.parts[0]); await Promise.all(job.parts.slice(1).map(run)); } finally { await browser.close(); }
console.log(JSON.stringify(found));

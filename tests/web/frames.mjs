// How long a page is kept from drawing: what a person sees, and how much of it is the page's own work. In milliseconds.
import { readFileSync } from "node:fs";
import { Worker } from "node:worker_threads";

// A thread that only sleeps, 5 ms each time. Where it wakes up late, the machine stood still, or had no processor for anybody.
const late = new Float64Array(new SharedArrayBuffer(8)), sleep = new Int32Array(new SharedArrayBuffer(4));
new Worker(`const { late, sleep } = require("node:worker_threads").workerData;
  for (let last = performance.now(), now; ; last = now) {
    Atomics.wait(sleep, 0, 0, 5);
    now = performance.now();
    late[0] = Math.max(late[0], now - last - 5);
  }`, { eval: true, workerData: { late, sleep } }).unref();

/** Return {longest, above100, frames, slow, task, others, late} of what `work` does: times between frames, the page's own part,
 *  how many processors other programs kept busy meanwhile, and how late a thread woke up that only sleeps. */
export async function measure(browser, page, work) {
  const before = await worked(browser), began = performance.now();
  late[0] = 0;
  await browser.startTracing(page, { categories: ["toplevel", "devtools.timeline"] });
  await page.evaluate(() => {
    const seen = (window.seen = { gaps: [], slow: [] });
    seen.observer = new PerformanceObserver((list) => list.getEntries().forEach((e) =>
      seen.slow.push({ ms: e.duration, scripts: e.scripts.map((s) => `${s.sourceURL.split("/").at(-1)} ${s.sourceFunctionName}: ${s.duration.toFixed(0)}`) })));
    seen.observer.observe({ type: "long-animation-frame" });
    let last = performance.now();
    const tick = () => { const now = performance.now(); seen.gaps.push(now - last); last = now; seen.timer = requestAnimationFrame(tick); };
    seen.timer = requestAnimationFrame(tick);
  });
  await work();
  const stalled = late[0];
  const others = (await worked(browser) - before) / ((performance.now() - began) / 1000);
  const seen = await page.evaluate(() => {
    const { gaps, slow, timer, observer } = window.seen;
    cancelAnimationFrame(timer);
    observer.disconnect();
    return { longest: Math.max(...gaps), above100: gaps.filter((g) => g > 100).length, frames: gaps.length, slow: slow.sort((a, b) => b.ms - a.ms).slice(0, 3) };
  });
  return { ...seen, others, late: stalled, task: longestTask(JSON.parse(await browser.stopTracing())) };
}

/** Return the seconds of all processors that other programs than this and the browser used since the machine started, and those
 *  that a host took away; only differences mean something. */
async function worked(browser) {
  const [user, nice, system, , , irq, softirq, steal] = readFileSync("/proc/stat", "utf8").split("\n")[0].split(/\s+/).slice(1).map(Number);
  const session = await browser.newBrowserCDPSession(), { processInfo } = await session.send("SystemInfo.getProcessInfo");
  await session.detach();
  const here = process.cpuUsage(), own = processInfo.reduce((sum, { cpuTime }) => sum + cpuTime, (here.user + here.system) / 1e6);
  return (user + nice + system + irq + softirq + steal) / 100 - own;
}

/** Return the task of the page's main thread with the most processor time, which unlike the time on the clock does not
 *  depend on what else the machine does: {cpu, wall}. */
function longestTask({ traceEvents }) {
  const main = new Set(traceEvents.filter((e) => e.name === "thread_name" && e.args.name === "CrRendererMain").map((e) => `${e.pid} ${e.tid}`));
  const tasks = traceEvents.filter((e) => e.ph === "X" && e.name.endsWith("RunTask") && e.tdur !== undefined && main.has(`${e.pid} ${e.tid}`));
  if (!tasks.length) throw new Error("the trace has no task of the page's main thread with its processor time");
  const { tdur, dur } = tasks.reduce((a, b) => (b.tdur > a.tdur ? b : a));
  return { cpu: tdur / 1000, wall: dur / 1000 };
}

/** Train for some steps as a person does who cannot wait: drawing, labelling and looking at the answers meanwhile. */
export async function trainAndDraw(page, steps) {
  const box = await page.locator("#pad").boundingBox(), label = page.locator("#classes button").nth(3), drawings = 3;
  const end = Number(await page.textContent("#step")) + steps + drawings * 12; // it learns at once from each
  await page.fill("#steps", String(steps));
  await page.click("#train");
  for (let i = 0, shift = 0; i < drawings; i++, shift += 0.1) {
    await page.mouse.move(box.x + (0.2 + shift) * box.width, box.y + 0.2 * box.height);
    await page.mouse.down();
    await page.mouse.move(box.x + 0.7 * box.width, box.y + (0.5 + shift) * box.height, { steps: 25 });
    await page.mouse.up();
    await label.click();
  }
  await page.waitForFunction((n) => Number(document.getElementById("step").textContent) === n && document.getElementById("train").textContent === "Train", end, { timeout: 600000 });
}

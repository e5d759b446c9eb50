// Runs jobs of scenario.mjs in Chromium: reads {modules, module, root, chromium, jobs} as JSON from its input, prints the
// results as JSON. `root` is served; jobs name their files below it. A job with `isolated` gets a page with COOP and COEP.
// Jobs that need the same page share it: loading onnxruntime-web takes longer than most of them.
import { createReadStream, readFileSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const { modules, module, root, chromium, flags = [], jobs } = JSON.parse(readFileSync(0));
const roots = { "/ort/": join(modules, "onnxruntime-web/dist"), "/js/": dirname(module), "/tests/": dirname(fileURLToPath(import.meta.url)), "/": root };
const types = { ".html": "text/html", ".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".json": "application/json" };

function serve(isolated) {
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://x").pathname);
    const [prefix, folder] = Object.entries(roots).find(([prefix]) => path.startsWith(prefix));
    const headers = isolated ? { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" } : {};
    if (path === "/") return response.writeHead(200, { ...headers, "Content-Type": "text/html" }).end("<!doctype html><title>test</title>");
    const file = join(folder, normalize(`/${path.slice(prefix.length)}`));
    if (!statSync(file, { throwIfNoEntry: false })?.isFile()) return response.writeHead(404, headers).end();
    response.writeHead(200, { ...headers, "Content-Type": types[extname(file)] ?? "application/octet-stream" });
    createReadStream(file).pipe(response);
  });
  return new Promise((done) => server.listen(0, "127.0.0.1", () => done(server)));
}

/** In the page. */
async function run({ job, module, build, threads, provider }) {
  if (provider === "webgpu" && !(await navigator.gpu?.requestAdapter())) return { error: "no adapter" };
  const [{ scenario }, { Trainer }, ort] = await Promise.all([import("/tests/scenario.mjs"), import(module), import(`/ort/${build}`)]);
  window.asked ??= ort.env.wasm.numThreads = threads; // once for a page: the first session puts there what the page may have
  ort.env.wasm.wasmPaths = "/ort/";
  const read = async (url) => {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`${url}: ${response.status}`);
    return response.arrayBuffer();
  };
  const found = await scenario({ ...job, tick: window.tick, options: { executionProviders: [provider], ...job.options } }, { ort, Trainer, read });
  return { ...found, isolated: crossOriginIsolated, threads: ort.env.wasm.numThreads };
}

const { chromium: driver } = createRequire(`${modules}/`)("playwright-core");
const servers = { true: await serve(true), false: await serve(false) };
const browser = await driver.launch({ executablePath: chromium, args: ["--no-sandbox", "--disable-dev-shm-usage", ...flags] });
const results = [], pages = {};

async function open(isolated) {
  const page = await browser.newPage(), memory = [];
  await page.exposeFunction("tick", async (step) => {
    const { processInfo } = await (await browser.newBrowserCDPSession()).send("SystemInfo.getProcessInfo");
    const { id } = processInfo.filter(({ type }) => type === "renderer").sort((a, b) => b.cpuTime - a.cpuTime)[0];
    memory.push([step, Number(/VmRSS:\s*(\d+)/.exec(readFileSync(`/proc/${id}/status`, "utf8"))[1])]); // kB
  });
  await page.goto(`http://127.0.0.1:${servers[isolated].address().port}/`);
  return { page, memory };
}

try {
  for (const { isolated = false, threads = 1, provider = "wasm", build = "ort.wasm.min.mjs", ...job } of jobs) {
    const { page, memory } = pages[[isolated, threads, provider, build]] ??= await open(isolated);
    const found = await page.evaluate(run, { job, module: `/js/${module.split("/").at(-1)}`, build, threads, provider })
      .catch((error) => ({ error: error.message }));
    results.push({ ...found, memory: memory.splice(0) });
  }
} finally {
  await browser.close();
  for (const server of Object.values(servers)) server.close();
}
console.log(JSON.stringify(results));

// Chromium for browser.py: one page for each contender. Reads {chromium, js, place, root, networks} as JSON from
// its first argument, prints the first losses as a line of JSON, and for each line of its input, a number of steps, the
// milliseconds of a step by contender and network. A contender that cannot train a network says why instead.
import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { extname, join, normalize } from "node:path";
import { createInterface } from "node:readline";

const { chromium, js, place, root, networks } = JSON.parse(process.argv[2]);
const roots = { "/ort/": join(js, "node_modules/onnxruntime-web/dist"), "/tf/": join(place, "node_modules/@tensorflow/tfjs/dist"),
                "/tfwasm/": join(place, "node_modules/@tensorflow/tfjs-backend-wasm/dist"), "/js/": join(js, "dist"), "/": root };
const types = { ".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".json": "application/json" };
const headers = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" }; // for threads

const server = createServer((request, response) => {
  const path = decodeURIComponent(new URL(request.url, "http://x").pathname);
  if (path === "/") return response.writeHead(200, { ...headers, "Content-Type": "text/html" }).end("<!doctype html><title>benchmark</title>");
  const [prefix, folder] = Object.entries(roots).find(([prefix]) => path.startsWith(prefix));
  const file = join(folder, normalize(`/${path.slice(prefix.length)}`));
  if (!statSync(file, { throwIfNoEntry: false })?.isFile()) return response.writeHead(404, headers).end();
  response.writeHead(200, { ...headers, "Content-Type": types[extname(file)] ?? "application/octet-stream" });
  createReadStream(file).pipe(response);
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));

const contenders = {
  "Onward, wasm, 1 thread": { library: "onward", threads: 1 },
  "Onward, wasm, 2 threads": { library: "onward", threads: 2 },
  "tensorflow.js, wasm, 1 thread": { library: "wasm", threads: 1 },
  "tensorflow.js, wasm, 2 threads": { library: "wasm", threads: 2 },
  "tensorflow.js, cpu (JavaScript)": { library: "cpu", threads: 1 },
};

/** In the page: make `window.steppers`, one function for each network that trains one step; return the first losses. */
async function prepare({ library, threads, networks }) {
  const tensors = async (url) => {
    const kinds = { F32: Float32Array, I64: BigInt64Array }, bytes = new Uint8Array(await (await fetch(url)).arrayBuffer());
    const size = Number(new DataView(bytes.buffer).getBigUint64(0, true)), header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
    return Object.fromEntries(Object.entries(header).filter(([name]) => name !== "__metadata__").map(([name, { dtype, shape, data_offsets: [first, last] }]) =>
      [name, { data: new kinds[dtype](bytes.slice(8 + size + first, 8 + size + last).buffer), dims: shape }]));
  };
  const script = (src) => new Promise((onload, onerror) => document.head.append(Object.assign(document.createElement("script"), { src, onload, onerror })));

  async function onward(name) {
    const ort = await import("/ort/ort.wasm.min.mjs"), { Trainer } = await import("/js/onward-train.min.mjs");
    ort.env.wasm.numThreads = threads;
    ort.env.wasm.wasmPaths = "/ort/";
    const made = await Trainer.load(`/${name}/program/`, { ort, executionProviders: ["wasm"] }), batch = await tensors(`/${name}/batch.safetensors`);
    return async () => {
      const { loss, outputs } = await made.step(batch);
      for (const tensor of Object.values(outputs)) tensor.dispose();
      return loss;
    };
  }

  async function tensorflow(name, layers) {
    if (!window.tf) {
      await script("/tf/tf.min.js");
      if (library === "wasm") {
        await script("/tfwasm/tf-backend-wasm.min.js");
        tf.wasm.setWasmPaths("/tfwasm/");
        tf.env().set("WASM_HAS_MULTITHREAD_SUPPORT", threads > 1);
        tf.wasm.setThreadsCount(threads);
      }
      await tf.setBackend(library);
      await tf.ready();
    }
    const state = await tensors(`/${name}/program/state.safetensors`), batch = Object.values(await tensors(`/${name}/batch.safetensors`));
    const [images, labels] = batch[0].data instanceof Float32Array ? batch : batch.reverse(), flat = images.dims.length === 2;
    const x = flat ? tf.tensor(images.data, images.dims) : tf.transpose(tf.tensor(images.data, images.dims), [0, 2, 3, 1]); // NHWC is all it has
    const y = tf.oneHot(tf.tensor1d(Array.from(labels.data, Number), "int32"), 10), weights = {};
    for (const layer of layers.filter((layer) => layer.weight)) {
      const stored = tf.tensor(state[layer.weight].data, state[layer.weight].dims);
      weights[layer.weight] = tf.variable(layer.kind === "conv" ? tf.transpose(stored, [2, 3, 1, 0]) : layer.turned ? tf.transpose(stored) : stored);
      weights[layer.bias] = tf.variable(tf.tensor(state[layer.bias].data, state[layer.bias].dims));
    }
    const forward = () => layers.reduce((value, layer) => {
      if (layer.kind === "conv") return tf.relu(tf.add(tf.conv2d(value, weights[layer.weight], 1, layer.pad), weights[layer.bias]));
      if (layer.kind === "pool") return tf.maxPool(value, 2, 2, 0);
      if (layer.kind === "flatten") return tf.transpose(value, [0, 3, 1, 2]).reshape([value.shape[0], -1]);
      const sum = tf.add(tf.matMul(value, weights[layer.weight]), weights[layer.bias]);
      return layer.relu ? tf.relu(sum) : sum;
    }, x);
    const optimizer = tf.train.adam(1e-3);
    return async () => {
      const cost = optimizer.minimize(() => tf.losses.softmaxCrossEntropy(y, forward()), true), [loss] = await cost.data();
      cost.dispose();
      return loss;
    };
  }

  const first = {};
  window.steppers = {};
  for (const [name, layers] of Object.entries(networks)) {
    try {
      const step = await (library === "onward" ? onward(name) : tensorflow(name, layers));
      first[name] = await step();
      window.steppers[name] = step;
    } catch (error) {
      first[name] = String(error.message ?? error).split("\n")[0].slice(0, 120);
    }
  }
  return first;
}

/** In the page: the milliseconds of a step of each network. */
async function measure(count) {
  const found = {};
  for (const [name, step] of Object.entries(window.steppers)) {
    const began = performance.now();
    for (let i = 0; i < count; i++) await step();
    found[name] = (performance.now() - began) / count;
  }
  return found;
}

const { chromium: driver } = createRequire(`${js}/`)("playwright-core");
const browser = await driver.launch({ executablePath: chromium, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
try {
  const pages = {}, first = {};
  for (const [name, { library, threads }] of Object.entries(contenders)) {
    pages[name] = await browser.newPage();
    await pages[name].goto(`http://127.0.0.1:${server.address().port}/`);
    first[name] = await pages[name].evaluate(prepare, { library, threads, networks });
  }
  console.log(JSON.stringify(first));
  for await (const line of createInterface({ input: process.stdin })) {
    const found = {};
    for (const [name, page] of Object.entries(pages)) {
      await page.bringToFront(); // a page in the background is slowed down
      found[name] = await page.evaluate(measure, Number(line));
    }
    console.log(JSON.stringify(found));
  }
} finally {
  await browser.close();
  server.close();
}

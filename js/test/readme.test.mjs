// The examples of the README run as they stand there, but for the address of the program, and with data.
import assert from "node:assert/strict";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { test } from "node:test";
import { batches, pathOf } from "./helpers.mjs";

const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");
const [page, node] = [...readme.matchAll(/^```js\n(.*?)^```$/gms)].map(([, code]) => code);

/** Run an example as a module of its own, with `batches` of 32 pictures and a `picture`: what it defines. */
async function run(code, address, names) {
  assert.ok(code.includes('"program/"'), "the example loads another program");
  const joined = (name) => batches("mnist").slice(0, 4).flatMap((batch) => Array.from(batch[name].data)); // four of 8
  const pixels = Float32Array.from(joined("images")), classes = joined("labels");
  globalThis.example = { batches: [[pixels, classes], [pixels, classes]], picture: pixels.slice(0, 784) };
  const file = new URL(`example-${process.pid}-${names.length}.mjs`, import.meta.url);
  writeFileSync(file, `const { batches, picture } = globalThis.example;\n${code.replace('"program/"', JSON.stringify(address))}\nexport { ${names} };\n`);
  try {
    return await import(file.href);
  } finally {
    rmSync(file);
  }
}

test("the example for pages runs on onnxruntime-web", async () => {
  const server = createServer(async (request, response) => response.end(await readFile(pathOf("mnist") + request.url)));
  const port = await new Promise((done) => server.listen(0, () => done(server.address().port)));
  try {
    const { trainer, logits, model, saved } = await run(page, `http://127.0.0.1:${port}/`, ["trainer", "logits", "model", "saved"]);
    assert.equal(trainer.steps, 2);
    assert.deepEqual(logits.dims, [1, 10]);
    assert.ok(model.length > 1000 && saved.length > 1000);
    await assert.rejects(trainer.infer({}), /released/);
  } finally {
    server.close();
    server.closeAllConnections();
  }
});

test("the example for Node.js runs on onnxruntime-node", async () => {
  const { trainer } = await run(`import { Trainer } from "@onward/train";\n${node}`, `${pathOf("mnist")}/`, ["trainer"]);
  assert.equal(trainer.steps, 0);
  await trainer.release();
});

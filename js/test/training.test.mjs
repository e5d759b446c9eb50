// A program trains as native ONNX Runtime trains it in Python.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { test } from "node:test";
import { Trainer } from "@onward/train";
import { batches, close, expected, inMemory, load, names, ort, pathOf, refuses, snapshot } from "./helpers.mjs";

for (const name of names) {
  test(`${name}: losses, evaluation and inference are those of Python`, async () => {
    const trainer = await load(name), data = batches(name), needed = expected(name);
    const tolerance = name === "halves" ? 2e-3 : 1e-6; // float16 has three digits
    for (const [index, batch] of data.entries()) {
      const { loss, losses } = await trainer.step(batch, {}, needed.entry ?? undefined);
      assert.deepEqual(Object.keys(losses), Object.keys(needed.losses[index]));
      for (const [entry, value] of Object.entries(needed.losses[index])) close(losses[entry], value, tolerance);
      assert.equal(loss, Object.values(losses)[0]);
    }
    assert.equal(trainer.steps, data.length);
    close((await trainer.evaluate(data[0])).loss, needed.evaluate, tolerance);
    const outputs = await trainer.infer(data[0]);
    for (const [output, values] of Object.entries(needed.infer)) {
      // Of the largest number: rounding shows in small ones, because Python adds up in another order.
      const largest = Math.max(...values.map(Math.abs));
      const off = Math.max(...values.map((value, i) => Math.abs(Number(outputs[output].data[i]) - value))) / largest;
      if (name !== "halves") assert.ok(off <= 1e-5, `${output} is off by ${off} of its largest number`);
      assert.equal(outputs[output].data.length, values.length);
    }
    await trainer.release();
  });

  test(`${name}: initialize is that of Python`, async () => {
    const trainer = await load(name), data = batches(name), needed = expected(name);
    await trainer.step(data[5], {}, needed.entry ?? undefined);
    await trainer.initialize(7);
    assert.equal(trainer.steps, 0);
    for (const [index, losses] of needed.initialized.entries()) {
      const found = await trainer.step(data[index], {}, needed.entry ?? undefined);
      for (const [entry, value] of Object.entries(losses)) close(found.losses[entry], value, name === "halves" ? 2e-3 : 1e-6);
    }
    await trainer.release();
  });
}

test("a program is found by its folder, by its manifest, and in memory", async () => {
  const [batch] = batches("linear"), needed = Object.values(expected("linear").losses[0])[0], path = pathOf("linear");
  for (const source of [`${path}/`, `${path}/manifest.json`, inMemory("linear")]) {
    const trainer = await Trainer.load(source, { ort, read: readFile });
    close((await trainer.step(batch)).loss, needed);
    await trainer.release();
  }
});

test("a program is downloaded", async () => {
  const server = createServer(async (request, response) => {
    const file = await readFile(pathOf("linear") + request.url).catch(() => null);
    response.writeHead(file ? 200 : 404).end(file);
  });
  const port = await new Promise((done) => server.listen(0, () => done(server.address().port)));
  try {
    const trainer = await Trainer.load(new URL(`http://127.0.0.1:${port}/`), { ort });
    close((await trainer.step(batches("linear")[0])).loss, Object.values(expected("linear").losses[0])[0]);
    await assert.rejects(Trainer.load(`http://127.0.0.1:${port}/nothing/`, { ort }), /manifest\.json is missing or damaged/);
  } finally {
    server.close();
    server.closeAllConnections();
  }
});

test("a setting changes the step that it is given to", async () => {
  const [batch] = batches("dropout"), states = [];
  for (const settings of [{}, { learning_rate: 0 }]) {
    const trainer = await load("dropout"), before = await snapshot(trainer);
    await trainer.step(batch, settings);
    states.push((await snapshot(trainer)).state.W0 === before.state.W0);
  }
  assert.deepEqual(states, [false, true]);
});

test("one of several entries trains alone, and phases must be named", async () => {
  const trainer = await load("two_entries"), [batch] = batches("two_entries");
  assert.deepEqual(Object.keys((await trainer.step(batch, {}, "second")).losses), ["second"]);
  assert.ok((await trainer.evaluate(batch, "second")).loss > 0);
  await refuses(trainer, () => trainer.step(batch, {}, "third"), /no graph step:third/);
  const phased = await load("phases");
  await refuses(phased, () => phased.step(batches("phases")[0]), /name an entry: train-1,train-2/);
});

test("steps that are called at once run one after the other", async () => {
  const data = batches("dropout"), needed = expected("dropout").losses, trainer = await load("dropout");
  const results = await Promise.all(data.map((batch) => trainer.step(batch)));
  results.forEach(({ loss }, i) => close(loss, needed[i].train));
  await trainer.release();
  await assert.rejects(trainer.step(data[0]), /released/);
});

test("an error in one call does not stop the next", async () => {
  const [batch] = batches("dropout"), trainer = await load("dropout");
  const wrong = trainer.step({}), right = trainer.step(batch);
  await assert.rejects(wrong, /x: missing\[\], needed float32\[N,4\]; labels: missing/);
  close((await right).loss, expected("dropout").losses[0].train);
});

test("the tensors that a step replaces are disposed, and those of a step that fails", async () => {
  const made = new Set();
  const counting = { ...ort, InferenceSession: { create: async (...given) => {
    const session = await ort.InferenceSession.create(...given);
    return { release: () => session.release(), run: async (feeds) => {
      const results = await session.run(feeds);
      for (const tensor of Object.values(results)) {
        made.add(tensor);
        const dispose = tensor.dispose.bind(tensor);
        tensor.dispose = () => (made.delete(tensor), dispose());
      }
      return results;
    } };
  } } };
  const trainer = await load("two_entries", { ort: counting }), data = batches("two_entries");
  for (const batch of data.slice(0, 5)) for (const tensor of Object.values((await trainer.step(batch)).outputs)) tensor.dispose();
  const alive = made.size;
  assert.ok(alive <= Object.keys(trainer.state).length, `${alive} tensors are alive`);
  const bad = { ...data[5], goal: { data: new Float32Array(data[5].goal.data.length).fill(NaN), dims: data[5].goal.dims } };
  await refuses(trainer, () => trainer.step(bad), /the loss of second is NaN/);
  assert.equal(made.size, alive);
  await trainer.release();
  assert.equal(made.size, 0);
});

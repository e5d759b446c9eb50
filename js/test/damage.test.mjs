// Bad input: an error that names it, and the state stays.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Trainer } from "@onward/train";
import { batches, inMemory, load, ort, reading, refuses } from "./helpers.mjs";

const flipped = (bytes, position, bit = 1) => {
  const copy = new Uint8Array(bytes);
  copy[position] ^= bit;
  return copy;
};

test("a flipped bit in any file is an error that names the file", async () => {
  const { files } = inMemory("dropout"), [batch] = batches("dropout");
  for (const [name, use] of Object.entries({
    "state.safetensors": () => {}, "step.onnx": (t) => t.step(batch), "evaluate.onnx": (t) => t.evaluate(batch),
    "infer.onnx": (t) => t.infer(batch), "initialize.onnx": (t) => t.initialize(1),
  })) {
    for (const part of [0, 0.3, 0.7, 1]) {
      const damaged = { ...files, [name]: flipped(files[name], Math.floor(part * (files[name].length - 1))) };
      const load = Trainer.load("x", { ort, read: reading(damaged) });
      const call = name === "state.safetensors" ? load : load.then((trainer) => refuses(trainer, () => use(trainer), new RegExp(`${name} is missing or damaged`)).then(() => { throw new Error(`${name} is missing or damaged`); }));
      await assert.rejects(call, new RegExp(`${name.replace(".", "\\.")} is missing or damaged`));
    }
  }
});

test("a flipped bit in the manifest is an error that names it", async () => {
  const { files } = inMemory("linear"), length = files["manifest.json"].length;
  for (let position = 16; position < length; position += 97) {
    const damaged = { ...files, "manifest.json": flipped(files["manifest.json"], position) };
    await assert.rejects(Trainer.load("x", { ort, read: reading(damaged) }), /manifest\.json/);
  }
});

test("a manifest that names a file elsewhere is refused", async () => {
  for (const file of ["../x", "/etc/passwd", "a/b", "a\\b", "..", "%2e%2e%2fx", "http://x/y", ""]) {
    const { manifest, files } = inMemory("linear"), asked = [];
    manifest.state.file = file;
    const read = async (url) => (asked.push(url), files[url]);
    await assert.rejects(Trainer.load({ manifest, files }, { ort, read }), /a file outside the program: /);
    assert.deepEqual(asked, []);
  }
});

test("a missing file, and what is no program, is named", async () => {
  const { manifest, files } = inMemory("linear");
  await assert.rejects(Trainer.load({ manifest, files: {} }, { ort }), /state\.safetensors is missing or damaged/);
  await assert.rejects(Trainer.load({ manifest: { ...manifest, version: 2 }, files }, { ort }), /not onward-program 1/);
  await assert.rejects(Trainer.load("x", { ort, read: async () => new TextEncoder().encode("<!doctype html>") }), /manifest\.json/);
});

test("a batch that does not fit: everything that is wrong, and the state stays", async () => {
  const trainer = await load("dropout"), [batch] = batches("dropout");
  await refuses(trainer, () => trainer.step({ x: batch.x }), /step: labels: missing/);
  await refuses(trainer, () => trainer.step({ ...batch, x: { data: new Float32Array(15), dims: [3, 5] } }), /x: float32\[3,5\], needed float32\[N,4\]/);
  await refuses(trainer, () => trainer.step({ ...batch, x: { data: new Float32Array(15), dims: [3, 4] } }), /size.*12.*15/);
  await refuses(trainer, () => trainer.step({ ...batch, x: new ort.Tensor("float64", new Float64Array(4), [1, 4]) }), /x: float64\[1,4\], needed float32/);
  await refuses(trainer, () => trainer.step(batch, { lr: 1 }), /no setting lr among learning_rate/);
  await refuses(trainer, () => trainer.step(batch, { learning_rate: NaN }), /learning_rate is NaN/);
  await refuses(trainer, () => trainer.step({ ...batch, x: { data: new Float32Array(64).fill(NaN), dims: [16, 4] } }), /the loss of train is NaN/);
  await refuses(trainer, () => trainer.step({ ...batch, labels: { data: new BigInt64Array(16).fill(99n), dims: [16] } }), /./);
  await refuses(trainer, () => trainer.initialize(1.5), /./);
});

test("a damaged checkpoint is refused", async () => {
  const trainer = await load("dropout"), [batch] = batches("dropout");
  await trainer.step(batch);
  const bytes = await trainer.checkpoint(), length = bytes.length;
  await trainer.step(batch);
  for (const size of [0, 7, 8, 100, length >> 1, length - 1])
    await refuses(trainer, () => trainer.restore(bytes.slice(0, size)), /the checkpoint is missing or damaged/);
  await refuses(trainer, () => trainer.restore(new Uint8Array([...bytes, 0])), /the checkpoint is missing or damaged/);
  for (let position = 0; position < length; position += 41)
    await refuses(trainer, () => trainer.restore(flipped(bytes, position, 1 << (position & 7))), /the checkpoint is missing or damaged/);
});

test("a damaged tensor is named", async () => {
  const trainer = await load("linear"), bytes = await trainer.checkpoint();
  await refuses(trainer, () => trainer.restore(flipped(bytes, bytes.length - 1)), /\w of the checkpoint is missing or damaged/);
});

test("a checkpoint of another model is refused, with every difference", async () => {
  const trainer = await load("dropout"), other = await load("doubles"), digits = await load("digits");
  await refuses(trainer, async () => trainer.restore(await other.checkpoint()), /of another model: 7/);
  await refuses(digits, async () => digits.restore(await (await load("mnist")).checkpoint()), /of another model: \S+/);
});

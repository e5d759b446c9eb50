// What the tests share: the programs that tests/js/programs.py wrote, their batches, and comparisons.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import * as ort from "onnxruntime-node";
import { Trainer } from "@onward/train";

export { ort };
const folder = process.env.ONWARD_PROGRAMS;
if (!folder) throw new Error("ONWARD_PROGRAMS names no folder: run `make js`, which compiles the programs first");

export const names = readdirSync(folder);
export const pathOf = (name) => join(folder, name, "program");
export const expected = (name) => JSON.parse(readFileSync(join(folder, name, "expected.json")));
export const load = (name, options) =>
  Trainer.load(`${pathOf(name)}/`, { ort, read: readFile, session: () => ({ intraOpNumThreads: 1 }), ...options });

/** The batches of a program: { name: { data, dims } } each. */
export function batches(name) {
  const kinds = { F16: Uint16Array, F32: Float32Array, F64: Float64Array, I64: BigInt64Array };
  const bytes = new Uint8Array(readFileSync(join(folder, name, "batches.safetensors"))), found = [];
  const size = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const { __metadata__, ...header } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  for (const [key, { dtype, shape, data_offsets: [first, last] }] of Object.entries(header)) {
    const [index, ...input] = key.split("/");
    const data = new kinds[dtype](bytes.slice(8 + size + first, 8 + size + last).buffer);
    (found[index] ??= {})[input.join("/")] = { data, dims: shape };
  }
  return found;
}

/** The files of a program in memory, to be damaged. */
export function inMemory(name) {
  const files = Object.fromEntries(readdirSync(pathOf(name)).map((file) => [file, new Uint8Array(readFileSync(join(pathOf(name), file)))]));
  return { manifest: JSON.parse(new TextDecoder().decode(files["manifest.json"])), files };
}

/** A `read` that gets the files of a program from memory. */
export const reading = (files) => async (url) => files[url.split("/").at(-1)];

export function close(found, needed, tolerance = 1e-6) {
  const off = Math.abs(found - needed) / Math.max(1e-3, Math.abs(needed));
  assert.ok(off <= tolerance, `${found} is not ${needed}: off by ${off}`);
}

/** A copy of the state as bytes, to see whether a call changed it. */
export async function snapshot(trainer) {
  const found = {};
  for (const [name, tensor] of Object.entries(trainer.state)) {
    const data = await tensor.getData();
    found[name] = Buffer.from(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)).toString("hex");
  }
  return { steps: trainer.steps, state: found };
}

/** Assert that `call` fails with a message that fits, and changes nothing of the trainer. */
export async function refuses(trainer, call, message) {
  const before = await snapshot(trainer);
  await assert.rejects(call, (error) => (assert.match(error.message, message), true));
  assert.deepEqual(await snapshot(trainer), before);
}

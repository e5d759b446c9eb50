// Train a compiled program in Node.js: node train.mjs PROGRAM_DIR BATCHES.safetensors
// BATCHES holds one tensor per input and batch, named "<batch>/<input>". Prints one loss per line.
import { readFile } from "node:fs/promises";
import * as ort from "onnxruntime-node";
import { Trainer } from "@onward/train";

const [directory, data] = process.argv.slice(2);
const trainer = await Trainer.load(`${directory}/`, { ort, read: readFile, session: () => ({ intraOpNumThreads: 1 }) });

for (const batch of batches(new Uint8Array(await readFile(data)))) {
  const { loss } = await trainer.step(batch);
  console.log(loss);
}
await trainer.release();

function batches(bytes) {
  const arrays = { F32: Float32Array, F64: Float64Array, I64: BigInt64Array, I32: Int32Array, U8: Uint8Array, BOOL: Uint8Array };
  const begin = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true)), found = [];
  const { __metadata__, ...header } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, begin)));
  for (const [name, { dtype, shape, data_offsets: [first, last] }] of Object.entries(header)) {
    const [index, ...input] = name.split("/");
    (found[index] ??= {})[input.join("/")] = { data: new arrays[dtype](bytes.slice(begin + first, begin + last).buffer), dims: shape };
  }
  return found;
}

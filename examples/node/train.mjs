// Train a compiled program with onnxruntime-node: node train.mjs PROGRAM_DIR BATCHES.safetensors
// BATCHES holds one tensor per input and batch, named "<batch>/<input>". Prints one loss per line.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import * as ort from "onnxruntime-node";

const [directory, data] = process.argv.slice(2);
const manifest = JSON.parse(readFileSync(join(directory, "manifest.json")));
const step = manifest.graphs.step;
const state = readSafetensors(join(directory, manifest.state.file));
for (const [name, s] of Object.entries(manifest.settings)) {
  state[name] = new ort.Tensor(s.dtype, [s.default].flat(Infinity), s.shape);
}
const session = await ort.InferenceSession.create(join(directory, step.file), { intraOpNumThreads: 1 });

for (const batch of batches(readSafetensors(data))) {
  const feeds = Object.fromEntries(step.inputs.map((i) => [i.name, batch[i.name] ?? state[i.name]]));
  const results = await session.run(feeds);
  for (const o of step.outputs) if (o.role === "state") state[o.replaces] = results[o.name];
  console.log(results[manifest.loss].data[0]);
}

function batches(tensors) {
  const found = [];
  for (const [name, tensor] of Object.entries(tensors)) {
    const [index, ...input] = name.split("/");
    (found[index] ??= {})[input.join("/")] = tensor;
  }
  return found;
}

function readSafetensors(path) {
  const kinds = { F32: ["float32", Float32Array], F64: ["float64", Float64Array], I64: ["int64", BigInt64Array],
                  I32: ["int32", Int32Array], U8: ["uint8", Uint8Array], BOOL: ["bool", Uint8Array] };
  const bytes = readFileSync(path);
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + length));
  delete header.__metadata__;
  return Object.fromEntries(Object.entries(header).map(([name, { dtype, shape, data_offsets: [first, last] }]) => {
    const [type, array] = kinds[dtype];
    const copy = new Uint8Array(bytes.subarray(8 + length + first, 8 + length + last)).buffer;
    return [name, new ort.Tensor(type, new array(copy), shape)];
  }));
}

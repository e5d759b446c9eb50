// Train a compiled program on a JavaScript runtime: node _train.mjs PACKAGE PROGRAM BATCHES.safetensors
// It prints JSON as _train.py does. PACKAGE is onnxruntime-node or onnxruntime-web (WebAssembly), installed in the
// folder from which it is called.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [name, folder, data] = process.argv.slice(2);
const here = createRequire(join(process.cwd(), "x.js"));
const ort = await import(pathToFileURL(here.resolve(name)));
const { Tensor, InferenceSession } = ort.default ?? ort;
const version = JSON.parse(readFileSync(join(process.cwd(), "node_modules", name, "package.json"))).version;
const said = { versions: { [name]: version } };

function readTensors(path) {
  const kinds = { F32: ["float32", Float32Array], F64: ["float64", Float64Array], I64: ["int64", BigInt64Array],
                  I32: ["int32", Int32Array], U8: ["uint8", Uint8Array], BOOL: ["bool", Uint8Array] };
  const bytes = readFileSync(path);
  const length = Number(bytes.readBigUInt64LE(0));
  const { __metadata__, ...header } = JSON.parse(bytes.subarray(8, 8 + length));
  return Object.fromEntries(Object.entries(header).map(([tensor, { dtype, shape, data_offsets: [first, last] }]) => {
    const [type, kind] = kinds[dtype];
    const copy = new Uint8Array(bytes.subarray(8 + length + first, 8 + length + last)).buffer;
    return [tensor, new Tensor(type, new kind(copy), shape)];
  }));
}

try {
  const manifest = JSON.parse(readFileSync(join(folder, "manifest.json")));
  const state = readTensors(join(folder, "state.safetensors"));
  for (const [setting, s] of Object.entries(manifest.settings))
    state[setting] = new Tensor(s.dtype, [s.default].flat(Infinity), s.shape);
  const roles = Object.keys(manifest.graphs).filter((role) => role.split(":")[0] === "step");
  const steps = roles.map((role) => manifest.graphs[role]);
  for (const step of steps)
    step.session = await InferenceSession.create(readFileSync(join(folder, step.file)), { intraOpNumThreads: 1 });
  const batches = [];
  for (const [tensor, value] of Object.entries(readTensors(data))) {
    const [index, ...input] = tensor.split("/");
    (batches[index] ??= {})[input.join("/")] = value;
  }
  const losses = [];
  for (const batch of batches)
    for (const step of steps) {
      const results = await step.session.run(
        Object.fromEntries(step.inputs.map((i) => [i.name, batch[i.name] ?? state[i.name]])));
      for (const o of step.outputs) {
        if (o.role === "state") state[o.replaces] = results[o.name];
        if (o.role === "loss") losses.push(Number(results[o.name].data[0]));
      }
    }
  said.losses = losses;
} catch (error) {
  said.error = String(error?.message ?? error).split(/\s+/).join(" ");
}
console.log(JSON.stringify(said));
process.exit(0);

// What the tests do with a trainer, the same in Node.js and in a page: train on batches, and bring back what was made.
// A job: {source, batches: [url, …], steps, from, restore, checkpoint, export, infer, entry, options}.

export async function scenario(job, { ort, Trainer, read }) {
  const trainer = await Trainer.load(job.source, { ort, read, ...job.options });
  const data = batches(await read(job.batches)), found = { losses: [] };
  if (job.restore) await trainer.restore(await read(job.restore));
  found.before = trainer.steps;
  for (let step = 0; step < job.steps; step++) {
    const { losses, outputs } = await trainer.step(data[((job.from ?? 0) + step) % data.length], {}, job.entry ?? undefined);
    for (const tensor of Object.values(outputs)) tensor.dispose();
    found.losses.push(losses);
    if (job.every && step % job.every === job.every - 1) await job.tick?.(step);
  }
  found.steps = trainer.steps;
  found.selfTest = await trainer.selfTest();
  if (job.infer) found.outputs = Object.fromEntries(Object.entries(await trainer.infer(data[0])).map(([name, { data }]) => [name, Array.from(data, Number)]));
  if (job.checkpoint) found.checkpoint = encode(await trainer.checkpoint());
  if (job.export) found.onnx = encode(await trainer.exportOnnx());
  await trainer.release();
  return found;
}

/** The batches in a safetensors file whose tensors are "<batch>/<input>". */
function batches(given) {
  const kinds = { F16: Uint16Array, F32: Float32Array, F64: Float64Array, I64: BigInt64Array }, bytes = new Uint8Array(given), found = [];
  const size = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const { __metadata__, ...header } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  for (const [key, { dtype, shape, data_offsets: [first, last] }] of Object.entries(header)) {
    const [index, ...input] = key.split("/");
    (found[index] ??= {})[input.join("/")] = { data: new kinds[dtype](bytes.slice(8 + size + first, 8 + size + last).buffer), dims: shape };
  }
  return found;
}

/** Bytes as a string of base64, which JSON can hold. */
function encode(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

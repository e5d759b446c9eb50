// Checkpoints and the self-test.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { Trainer } from "@onward/train";
import { batches, close, expected, inMemory, load, names, ort, refuses, snapshot } from "./helpers.mjs";

for (const name of names) {
  test(`${name}: a restored checkpoint trains on bit by bit`, async () => {
    const first = await load(name), second = await load(name), data = batches(name), entry = expected(name).entry ?? undefined;
    for (const batch of data.slice(0, 5)) await first.step(batch, {}, entry);
    const bytes = await first.checkpoint();
    for (const given of [bytes, bytes.buffer, Buffer.from(bytes)]) {
      await second.restore(given);
      assert.deepEqual(await snapshot(second), await snapshot(first));
    }
    assert.equal(second.steps, 5);
    assert.equal((await second.step(data[5], {}, entry)).loss, (await first.step(data[5], {}, entry)).loss);
    await Promise.all([first.release(), second.release()]);
  });
}

test("what the state file lacks is made by initialize.onnx", async () => {
  const whole = await load("dropout"), bytes = await whole.checkpoint(), { manifest, files } = inMemory("dropout");
  const size = Number(new DataView(bytes.buffer).getBigUint64(0, true)), header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  const moments = Object.keys(header).filter((name) => name.startsWith("adam/"));
  assert.ok(moments.length > 3);
  files["state.safetensors"] = without(bytes, moments);
  manifest.state.sha256 = createHash("sha256").update(files["state.safetensors"]).digest("hex");
  const made = await Trainer.load({ manifest, files }, { ort });
  assert.deepEqual(await snapshot(made), await snapshot(whole));
  files["state.safetensors"] = without(bytes, ["W0"]);
  manifest.state.sha256 = createHash("sha256").update(files["state.safetensors"]).digest("hex");
  await assert.rejects(Trainer.load({ manifest, files }, { ort }), /W0: missing/);
});

/** The file without some tensors, with new checksums: written here, and not by the code under test. */
function without(bytes, names) {
  const hash = (data) => createHash("sha256").update(data).digest("hex"), zeros = "0".repeat(64), parts = [];
  const size = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const { __metadata__, ...header } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  const kept = { __metadata__: { sha256: zeros, onward: "" } }, tensors = {};
  let at = 0;
  for (const [name, info] of Object.entries(header)) {
    if (names.includes(name)) continue;
    const part = bytes.slice(8 + size + info.data_offsets[0], 8 + size + info.data_offsets[1]);
    kept[name] = { ...info, data_offsets: [at, at += part.length] };
    tensors[name] = hash(part);
    parts.push(part);
  }
  kept.__metadata__.onward = JSON.stringify({ data: {}, tensors });
  const text = JSON.stringify(kept), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(Buffer.byteLength(text)));
  const sum = hash(Buffer.concat([length, Buffer.from(text)]));
  return new Uint8Array(Buffer.concat([length, Buffer.from(text.replace(zeros, sum)), ...parts]));
}

/** An onnxruntime whose output `wrong` is off by a tenth of a percent. */
const spoilt = (wrong) => ({ ...ort, InferenceSession: { create: async (...given) => {
  const session = await ort.InferenceSession.create(...given);
  return { release: () => session.release(), run: async (feeds) => {
    const results = await session.run(feeds);
    if (results[wrong]) results[wrong].data.forEach((x, i, all) => { all[i] = x * 1.001; });
    return results;
  } };
} } });

for (const name of ["dropout", "two_entries"]) {
  test(`${name}: the self-test passes on this runtime and names the tensor of a wrong one`, async () => {
    const program = inMemory(name), trainer = await Trainer.load(program, { ort, selfTest: true });
    await trainer.step(batches(name)[1]);
    const before = await snapshot(trainer);
    assert.equal(await trainer.selfTest(), true);
    assert.deepEqual(await snapshot(trainer), before);
    const output = Object.values(program.manifest.graphs)[0].outputs.find((o) => o.replaces === "W1").name;
    await assert.rejects(Trainer.load(program, { ort: spoilt(output), selfTest: true }), (error) => {
      assert.match(error.message, /self-test failed: W1: /);
      assert.doesNotMatch(error.message, /b1|loss/);
      return true;
    });
    assert.ok(await Trainer.load(program, { ort: spoilt(output) }), "the CPU of onnxruntime-node is not tested by default");
    await assert.rejects(Trainer.load(program, { ort: { ...spoilt(output), env: { versions: { web: "1" } } } }), /self-test/);
  });
}

test("a program without a self-test says so", async () => {
  const { manifest, files } = inMemory("linear");
  delete manifest.self_test;
  assert.equal(await (await Trainer.load({ manifest, files }, { ort, selfTest: true })).selfTest(), false);
});

test("a flipped bit in the self-test is found", async () => {
  const program = inMemory("dropout"), file = program.files["self_test.safetensors"];
  file[file.length - 5] ^= 1;
  await assert.rejects(Trainer.load(program, { ort, selfTest: true }), /self_test\.safetensors is missing or damaged/);
});

// Compiled by `npm test`, not run: the types fit onnxruntime and say what the README shows.
import * as ort from "onnxruntime-web";
import { Trainer, type Batch, type Manifest } from "@onward/train";

export async function use(manifest: Manifest, files: Record<string, Uint8Array>): Promise<number> {
  const trainer: Trainer = await Trainer.load("program/", { ort, executionProviders: ["wasm"], selfTest: true });
  await Trainer.load({ manifest, files }, { ort, session: (role, graph) => ({ preferredOutputLocation: role === "step" ? "gpu-buffer" : "cpu", extra: { file: graph.file } }) });
  const batch: Batch = { x: { data: new Float32Array(4), dims: [1, 4] }, labels: new ort.Tensor("int64", [1n], [1]) };
  const { loss, losses, outputs } = await trainer.step(batch, { learning_rate: 0.1 }, "train");
  const logits: ort.Tensor = outputs["logits"]!;
  await trainer.initialize(3);
  await trainer.restore(await trainer.checkpoint());
  const model: Uint8Array = await trainer.exportOnnx();
  const passed: boolean = await trainer.selfTest();
  // @ts-expect-error: there is no such call
  trainer.fit(batch);
  // @ts-expect-error: the number of steps is not yours to set
  trainer.steps = 3;
  await trainer.release();
  return loss + (losses["train"] ?? 0) + logits.size + model.length + Number(passed) + (await trainer.evaluate(batch)).loss;
}

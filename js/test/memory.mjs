// node --expose-gc memory.mjs PROGRAM STEPS: prints the resident memory in bytes after step 200 and at the end.
import { batches, expected, load } from "./helpers.mjs";

const [name, count] = process.argv.slice(2), trainer = await load(name), data = batches(name), entry = expected(name).entry ?? undefined;
let early;
const resident = () => {
  globalThis.gc();
  return process.memoryUsage.rss();
};
for (let step = 1; step <= Number(count); step++) {
  await trainer.step(data[step % data.length], {}, entry);
  if (step % 50 === 0) resident();
  if (step === 200) early = resident();
}
console.log(JSON.stringify([early, resident()]));

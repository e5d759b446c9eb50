// Runs jobs of scenario.mjs in Node.js: reads a list of them as JSON from its input, prints the results as JSON.
import { readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { scenario } from "./scenario.mjs";

const { modules, module, jobs } = JSON.parse(readFileSync(0));
const ort = createRequire(`${modules}/`)("onnxruntime-node");
const { Trainer } = await import(pathToFileURL(module));
const results = [];
for (const job of jobs) {
  results.push(await scenario(job, { ort, Trainer, read: async (url) => readFile(url) }));
}
console.log(JSON.stringify(results));

// Minify the module to dist/onward-train.min.mjs, and fail if it is larger than promised.
import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const limits = { minified: 6000, gzipped: 3000 };
const at = (path) => new URL(path, import.meta.url).pathname;
const outfile = at("dist/onward-train.min.mjs");
await build({ entryPoints: [at("src/onward-train.mjs")], outfile, bundle: true, minify: true, format: "esm", target: "es2022" });
const bytes = readFileSync(outfile), sizes = { minified: bytes.length, gzipped: gzipSync(bytes, { level: 9 }).length };
console.log(`onward-train.min.mjs: ${sizes.minified} bytes, ${sizes.gzipped} gzipped`);
for (const [name, limit] of Object.entries(limits)) {
  if (sizes[name] > limit) {
    console.error(`${name}: ${sizes[name]} bytes, at most ${limit} were promised`);
    process.exitCode = 1;
  }
}

// Minify the module to dist/onward-train.min.mjs, and fail if it is larger than promised.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { minify } from "terser";

const limits = { minified: 6000, gzipped: 3000 };
const at = (path) => new URL(path, import.meta.url);
const source = readFileSync(at("src/onward-train.mjs"), "utf8").replaceAll(/\bconst /g, "let "); // two letters less each
const { code } = await minify(source, {
  module: true, toplevel: true, ecma: 2022,
  compress: { passes: 4, unsafe: true, unsafe_arrows: true, keep_fargs: false, lhs_constants: false },
});
mkdirSync(at("dist/"), { recursive: true });
writeFileSync(at("dist/onward-train.min.mjs"), code);
const sizes = { minified: Buffer.byteLength(code), gzipped: gzipSync(code, { level: 9 }).length };
console.log(`onward-train.min.mjs: ${sizes.minified} bytes, ${sizes.gzipped} gzipped`);
for (const [name, limit] of Object.entries(limits)) {
  if (sizes[name] > limit) {
    console.error(`${name}: ${sizes[name]} bytes, at most ${limit} were promised`);
    process.exitCode = 1;
  }
}

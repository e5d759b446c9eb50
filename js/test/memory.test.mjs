// A thousand steps need no more memory than two hundred.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

for (const name of process.env.ONWARD_WHOLE ? ["digits", "two_entries", "mnist"] : ["digits"]) {
  test(`${name}: after step 200 of 1,000, resident memory grows by less than 5 %`, () => {
    const script = fileURLToPath(new URL("memory.mjs", import.meta.url));
    const [early, late] = JSON.parse(execFileSync(process.execPath, ["--expose-gc", script, name, "1000"], { stdio: ["ignore", "pipe", "inherit"] }));
    assert.ok(late < early * 1.05, `${early} bytes after step 200, ${late} after step 1,000`);
  });
}

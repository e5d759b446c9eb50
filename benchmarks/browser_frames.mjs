// Trains on a site in Chromium and prints as JSON how long its page was kept from drawing: see browser_frames.py.
// Reads {chromium, modules, site, steps, rounds, quiet} as JSON from its first argument.
import { createRequire } from "node:module";
import path from "node:path";
import { measure, trainAndDraw } from "../tests/web/frames.mjs";

const { chromium, modules, site, steps, rounds, quiet } = JSON.parse(process.argv[2]);
const { chromium: driver } = createRequire(path.join(modules, "x"))("playwright-core");
const found = [];
let facts, left = rounds;
for (let round = 1; left > 0 && round <= 2 * rounds; round++) {
  const browser = await driver.launch({ executablePath: chromium, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  try {
    const page = await browser.newPage({ viewport: { width: 1400, height: 930 } });
    await page.goto(site);
    await page.waitForFunction(() => document.documentElement.dataset.ready === "yes", null, { timeout: 120000 });
    await page.waitForFunction(() => navigator.serviceWorker.controller, null, { timeout: 120000 }); // it has stored the site
    facts = await page.textContent("#facts");
    const made = [];
    for (const training of ["first", "second"]) {
      const one = await measure(browser, page, () => trainAndDraw(page, steps));
      made.push({ ...one, round, training, step: await page.textContent("#speed"), disturbed: one.others > quiet.others || one.late > quiet.late });
    }
    if (!made.some((one) => one.disturbed)) left--;
    found.push(...made);
    console.error(`round ${round}: longest frames ${made.map((one) => `${one.longest.toFixed(0)} ms`).join(", ")}`);
  } finally { await browser.close(); }
}
console.log(JSON.stringify({ rounds: found, facts, missing: left }));

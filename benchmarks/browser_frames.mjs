// Trains on a site in Chromium and prints as JSON how long its page was kept from drawing: see browser_frames.py.
// Reads {chromium, modules, site, steps, rounds} as JSON from its first argument.
import { createRequire } from "node:module";
import path from "node:path";
import { measure, trainAndDraw } from "../tests/web/frames.mjs";

const { chromium, modules, site, steps, rounds } = JSON.parse(process.argv[2]);
const { chromium: driver } = createRequire(path.join(modules, "x"))("playwright-core");
const browser = await driver.launch({ executablePath: chromium, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
try {
  const page = await browser.newPage({ viewport: { width: 1400, height: 930 } }), found = [];
  await page.goto(site);
  await page.waitForFunction(() => document.documentElement.dataset.ready === "yes", null, { timeout: 120000 });
  await page.waitForFunction(() => navigator.serviceWorker.controller, null, { timeout: 120000 }); // it has stored the site
  for (let round = 0; round < rounds; round++) {
    const made = await measure(browser, page, () => trainAndDraw(page, steps));
    found.push({ ...made, step: await page.textContent("#speed") });
  }
  console.log(JSON.stringify({ rounds: found, facts: await page.textContent("#facts") }));
} finally { await browser.close(); }

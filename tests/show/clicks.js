// Does what a person does with a page, in Chromium by playwright-core, and prints what the page shows after each step.
// Reads {page, chromium, width, touch, steps} as JSON from its first argument.
"use strict";
const {chromium} = require("playwright-core");

function seen() {
  const text = id => document.getElementById(id).textContent, canvas = document.getElementById("canvas");
  const selected = document.querySelector(".box.sel"), detail = document.getElementById("detail");
  let visible = false;
  if (selected) {
    const r = selected.getBoundingClientRect(), at = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
    visible = Boolean(at && at.closest("[data-box]") === selected);
  }
  return {
    where: document.getElementById("crumbs").hidden ? "" : text("crumbs"), hits: text("hits"), boxes: +canvas.dataset.total, drawn: +canvas.dataset.visible,
    tab: document.querySelector("#tabs [aria-selected=true]")?.firstChild.textContent ?? "", details: detail.hidden ? "" : detail.querySelector("h3").textContent,
    selected: selected ? selected.querySelector(".name").textContent : "", selectedIsVisible: visible, zoom: document.getElementById("world").getAttribute("transform"),
    about: document.getElementById("facts").offsetWidth > 0, wider: document.documentElement.scrollWidth > innerWidth,
    cut: [...document.querySelectorAll("text.label")].filter(t => t.getBoundingClientRect().right > innerWidth || t.getBoundingClientRect().left < 0).length,
  };
}

(async () => {
  const job = JSON.parse(process.argv[2]), errors = [], found = [];
  const browser = await chromium.launch({executablePath: job.chromium, args: ["--no-sandbox"]});
  try {
    const context = await browser.newContext({viewport: {width: job.width, height: 860}, isMobile: job.touch, hasTouch: job.touch});
    const page = await context.newPage();
    page.on("pageerror", e => errors.push(e.message));
    await page.goto(job.page);
    const point = async (what, {x = 0, y = 0} = {}) => {
      const box = page.locator(".box", {has: page.locator(`text.name:text-is(${JSON.stringify(what)})`)}).first();
      const r = await box.boundingBox({timeout: 5000});
      return [r.x + r.width / 2 + x, r.y + r.height / 2 + y];
    };
    const acts = {
      look: async () => {},
      box: async what => { const p = await point(what); await (job.touch ? page.touchscreen.tap(...p) : page.mouse.click(...p)); },
      press: key => page.keyboard.press(key),
      type: text => page.keyboard.type(text),
      button: async what => { const b = page.locator("button", {hasText: what}).first(); await (job.touch ? b.tap({timeout: 5000}) : b.click({timeout: 5000})); },
      search: async text => { const s = page.locator("#search"); await (job.touch ? s.tap() : s.click()); await s.pressSequentially(text); },
      drag: async ([what, x, y]) => { const p = await point(what); await page.mouse.move(...p); await page.mouse.down(); await page.mouse.move(p[0] + x, p[1] + y, {steps: 4}); await page.mouse.up(); },
    };
    for (const [act, value] of job.steps) {
      await acts[act](value);
      await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
      found.push(await page.evaluate(seen));
    }
  } finally { await browser.close(); }
  console.log(JSON.stringify({found, errors}));
})().catch(e => { console.error(e); process.exit(1); });

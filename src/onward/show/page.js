"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id), NS = "http://www.w3.org/2000/svg";
const facts = data.facts, drawings = data.drawings;
const el = (tag, attrs = {}, ...kids) => {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) k === "on" ? Object.entries(v).forEach(([n, f]) => e.addEventListener(n, f)) : k === "style" ? e.style.cssText = v : e.setAttribute(k, v);
  e.append(...kids.filter(k => k !== null && k !== undefined)); return e;
};
const svg = (tag, attrs, text) => {
  const e = document.createElementNS(NS, tag);
  for (const k in attrs) e.setAttribute(k, attrs[k]);
  if (text !== undefined) e.textContent = text; return e;
};
const size = n => n < 1000 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` : n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(2)} GB`;
const num = n => n.toLocaleString("en-US");
const color = c => `var(--${c})`;
const LOD = 0.32, MOST = 1500;

// The header and the facts on the left.
if (matchMedia("(max-width: 900px)").matches) $("search").placeholder = "Find";
document.title = `${data.title} · Onward`;
$("title").textContent = data.title;
const chip = (a, b) => $("chips").append(el("span", {class: "chip"}, el("b", {}, a), b ? " " + b : ""));
const first = facts.entries[0];
const weights = facts.parameters.elements + facts.frozen.elements;
if (weights) chip(num(weights), "weights"); else if (data.weights) chip(num(data.weights), "weights in Constant nodes");
if (data.integers) chip(num(data.integers), "weights as integers");
chip(num(facts.nodes.count), "nodes");
if (first && first.optimizer.length) chip(first.optimizer[0].name, first.optimizer[0].settings.learning_rate !== undefined ? `lr ${first.optimizer[0].settings.learning_rate}` : "");
if (first && first.loss) chip(lossName(first.loss), "loss");
chip(`opset ${facts.opsets[""] ?? facts.opsets["ai.onnx"] ?? "?"}`);
function lossName(loss) { return (loss.described || loss.operator || loss.name).split("(")[0]; }
const card = (title, ...kids) => kids.length ? $("facts").append(el("div", {class: "card"}, el("h2", {}, title), ...kids)) : null;
const pair = (a, b) => el("div", {class: "row pair"}, el("code", {}, a), el("span", {class: "soft mono long", title: b}, b));
if (facts.description) card("About", el("p", {}, facts.description));
card("Inputs", ...facts.inputs.map(v => pair(v.name, v.type + v.shape)));
card("Outputs", ...facts.outputs.map(v => pair(v.name, v.type + v.shape)));
const kinds = [["parameters", "trained", "parameter"], ["frozen", facts.entries.length ? "frozen" : facts.frozen.count > 1 ? "tensors" : "tensor", "frozen"], ["state", "state", "state"]].filter(k => facts[k[0]].count);
if (kinds.length) {
  const total = kinds.reduce((s, k) => s + facts[k[0]].bytes, 0) || 1;
  card("Weights", el("div", {class: "bar"}, ...kinds.map(k => el("i", {style: `flex:${facts[k[0]].bytes / total};background:${color(k[2])}`}))),
    ...kinds.map(k => el("div", {class: "row"}, el("span", {}, el("span", {class: "dot", style: `background:${color(k[2])}`}), `${num(facts[k[0]].count)} ${k[1]}`),
      el("span", {class: "soft"}, `${num(facts[k[0]].elements)} · ${size(facts[k[0]].bytes)}`))));
}
for (const e of facts.entries) {
  const rows = [];
  const add = (a, b) => { if (b !== "" && b !== null && b !== undefined) rows.push(el("dt", {}, a), el("dd", {}, String(b))); };
  if (e.loss) { add("loss", lossName(e.loss)); for (const [k, v] of Object.entries(e.loss.settings)) add(k, v); }
  for (const o of e.optimizer) { add("optimizer", o.name); const clips = Object.keys(o.settings).some(k => k.startsWith("clip_") && k !== "clip_epsilon"); for (const [k, v] of Object.entries(o.settings)) if (v !== false && v !== 0 && typeof v !== "object" && (k !== "accumulate" || v !== 1) && (k !== "clip_epsilon" || clips)) add(k.replaceAll("_", " "), v); }
  add("feeds", e.targets.map(t => t.name).join(", "));
  add("updates", `${Object.keys(e.update_binding).length} values`);
  if (Object.keys(e.initialization_binding).length) add("reset sets", `${Object.keys(e.initialization_binding).length} values`);
  card(facts.entries.length > 1 ? `Training: ${e.name}` : "Training", el("dl", {}, ...rows));
}
const ops = Object.entries(facts.nodes.operators), top1 = ops.length ? ops[0][1] : 1;
card("Operators", ...ops.slice(0, 14).map(([name, n]) => el("button", {class: "op", title: "Find these", on: {click: () => { $("search").value = name; find(); }}},
  el("i", {style: `width:${100 * n / top1}%`}), el("span", {}, name), el("span", {class: "soft"}, num(n)))), ops.length > 14 ? el("p", {class: "soft"}, `and ${ops.length - 14} more`) : null);
card("File", el("dl", {}, ...[["producer", facts.producer], ["IR version", facts.ir_version], ...Object.entries(facts.opsets).map(([d, v]) => [d || "ai.onnx", `opset ${v}`]), ...Object.entries(facts.metadata)]
  .filter(p => p[1] !== "").flatMap(([a, b]) => [el("dt", {}, a), el("dd", {class: "long", title: String(b).slice(0, 2000)}, String(b))])));

// The tabs: the model's own graphs, then inner graphs and functions in a list, then the tables.
const tabs = $("tabs"), buttons = [];
const tab = (label, extra, go) => { const b = el("button", {role: "tab", on: {click: go}}, label, extra ? el("small", {}, extra) : null); buttons.push(b); tabs.append(b); return b; };
const main = drawings.map((d, i) => [d, i]).filter(([d]) => ["forward", "training", "reset"].includes(d.kind));
for (const [d, i] of main) d.tab = tab(d.title, num(d.count), () => show(i));
drawings.forEach(d => { if (d.kind === "flat") d.home = drawings.findIndex(o => o.flat !== undefined && drawings[o.flat] === d); });
const home = d => { while (d.parent !== null && d.parent !== undefined) d = drawings[d.parent]; return d.kind === "flat" ? drawings[d.home] : d; };
const inner = drawings.map((d, i) => [d, i]).filter(([d]) => ["subgraph", "function"].includes(d.kind));
let choose = null;
if (inner.length) {
  choose = el("select", {"aria-label": "Inner graphs and functions", on: {change: () => choose.value !== "" && show(+choose.value)}}, el("option", {value: ""}, `${inner.length} inner graphs`), ...inner.map(([d, i]) => el("option", {value: i}, d.title)));
  tabs.append(choose);
}
const all = [["parameter", facts.parameters], ["frozen", facts.frozen], ["state", facts.state]].flatMap(([role, g]) => g.tensors.map(t => ({...t, role})));
const paramTab = all.length ? tab("Weights", num(all.length), () => sheet(paramTab, table)) : null;
const bound = facts.entries.flatMap(e => [...Object.entries(e.update_binding).map(([k, v]) => [e.name, "step", k, v]), ...Object.entries(e.initialization_binding).map(([k, v]) => [e.name, "reset", k, v])]);
const aboutTab = tab("About", "", () => { select(aboutTab); document.body.classList.toggle("about"); }); aboutTab.classList.add("narrow");
const bindTab = bound.length ? tab("Bindings", num(bound.length), () => sheet(bindTab, bindings)) : null;

function sheet(button, fill) { select(button); $("view").hidden = true; $("sheet").hidden = false; $("view").style.display = "none"; $("sheet").replaceChildren(); fill($("sheet")); }
function select(button) { if (button !== aboutTab) document.body.classList.remove("about"); for (const b of buttons) b.setAttribute("aria-selected", b === button); }
let sortBy = "bytes", down = true;
function table(to) {
  const rows = all.slice().sort((a, b) => (a[sortBy] > b[sortBy] ? 1 : a[sortBy] < b[sortBy] ? -1 : 0) * (down ? -1 : 1));
  const head = [["name", "Name", ""], ["role", "Role", ""], ["type", "Type", ""], ["shape", "Shape", ""], ["elements", "Elements", "n"], ["bytes", "Size", "n"]];
  const shown = rows.slice(0, 3000);
  to.append(el("table", {id: "weights"}, el("thead", {}, el("tr", {}, ...head.map(([key, label, c]) => el("th", {class: c, on: {click: () => { down = sortBy === key ? !down : c === "n"; sortBy = key; sheet(paramTab, table); }}}, label + (sortBy === key ? (down ? " ↓" : " ↑") : ""))))),
    el("tbody", {}, ...shown.map(t => el("tr", {}, el("td", {}, el("button", {class: "link", on: {click: () => jump(t.name)}}, t.name)), el("td", {}, el("span", {class: "tag", style: `color:${color(t.role)}`}, t.role)), el("td", {}, t.type), el("td", {class: "mono"}, t.shape.join(" × ") || "scalar"), el("td", {class: "n"}, num(t.elements)), el("td", {class: "n"}, size(t.bytes)))))));
  if (rows.length > shown.length) to.append(el("p", {class: "soft"}, `${num(rows.length - shown.length)} more; use onward show --json`));
}
function bindings(to) {
  to.append(el("table", {}, el("thead", {}, el("tr", {}, ...["Entry", "When", "State", "is replaced by"].map(t => el("th", {}, t)))),
    el("tbody", {}, ...bound.slice(0, 3000).map(([e, when, k, v]) => el("tr", {}, el("td", {}, e), el("td", {}, when), el("td", {}, el("button", {class: "link", on: {click: () => jump(k)}}, k)), el("td", {}, el("button", {class: "link", on: {click: () => jump(v)}}, v)))))));
}

// The graph.
const canvas = $("canvas"), world = $("world");
let current = null, number = -1, view = {x: 0, y: 0, k: 1}, selected = -1, found = new Set(), order = [], at = -1, pending = false, origin = -1; // where a search began
function show(i, keep) {
  number = i; current = drawings[i]; selected = -1; found = new Set(); order = []; at = -1; origin = -1;
  $("view").hidden = false; $("view").style.display = ""; $("sheet").hidden = true; select(home(current).tab || null);
  if (choose) choose.value = ["subgraph", "function"].includes(current.kind) ? i : "";
  crumbs();
  if (!current.near) {
    current.near = current.boxes.map(() => []);
    current.edges.forEach((e, n) => { current.near[e.s].push(n); current.near[e.t].push(n); });
    current.text = current.boxes.map(b => [b.t, b.d.name, b.d.operator, ...b.d.inputs.map(v => v[0]), ...b.d.outputs.map(v => v[0])].join("\n").toLowerCase());
  }
  legend(); detail(-1); if (!keep) fit(); if ($("search").value) find(false); else $("hits").textContent = ""; draw();
}
// Where we are in a folded graph: the parts around this one, and the other way to see the graph.
function crumbs() {
  const way = []; for (let n = number; n !== null && n !== undefined; n = drawings[n].parent) way.unshift(n);
  const top = drawings[way[0]], folded = top.flat !== undefined || top.kind === "flat";
  $("crumbs").hidden = !folded; if (!folded) { $("crumbs").replaceChildren(); return; }
  const step = (n, i) => i < way.length - 1 ? el("button", {on: {click: () => show(n)}}, drawings[n].title) : el("b", {}, i || top.kind === "flat" ? drawings[n].title : "Overview");
  $("crumbs").replaceChildren(...way.flatMap((n, i) => i ? [" › ", step(n, i)] : [step(n, i)]),
    el("button", {id: "other", title: "Folded, or every node", on: {click: () => show(top.kind === "flat" ? top.home : top.flat)}}, top.kind === "flat" ? "fold" : `all ${num(top.count)} nodes`));
}
function outwards() { const to = current.kind === "flat" ? current.home : current.parent; if (to !== null && to !== undefined) { const from = number; show(to); const back = current.boxes.findIndex(b => b.g === from); if (back >= 0) { selected = back; draw(); } } }
function walk(step) { const ids = current.boxes.map((b, i) => i).sort((a, b) => current.boxes[a].y - current.boxes[b].y || current.boxes[a].x - current.boxes[b].x); if (ids.length) focus(ids[(ids.indexOf(selected) + step + ids.length) % ids.length], false); }
function inwards() { const b = current.boxes[selected >= 0 ? selected : current.boxes.findIndex(o => o.g !== undefined)]; if (b && b.d.inner.length) show(b.d.inner[0]); }
function area() { const r = canvas.getBoundingClientRect(); return {w: r.width || 800, h: r.height || 600, l: r.left, t: r.top}; }
function fit() {
  const top = $("crumbs").hidden ? 48 : innerWidth > 900 ? 84 : 54, low = innerWidth > 900 ? 30 : 62, a = area(), k = Math.min(1.15, (a.w - 30) / (current.width || 1), (a.h - top - low) / (current.height || 1)); // not under the buttons
  if (k >= (current.parent !== null && current.parent !== undefined || current.flat !== undefined ? 0.4 : 0.6)) view = {k, x: (a.w - current.width * k) / 2, y: Math.max(top, top + (a.h - top - low - current.height * k) / 2)};
  else { // too large to read at once: begin at the top, at a readable size
    const kk = Math.max(k, Math.min(0.95, Math.max(0.6, (a.w - 70) / current.width))), start = current.boxes.reduce((m, b) => b.y < m.y ? b : m, current.boxes[0]);
    view = {k: kk, x: current.width * kk <= a.w - 40 ? (a.w - current.width * kk) / 2 : a.w / 2 - start.x * kk, y: top + 8};
  }
  draw();
}
function fitAll() { const a = area(), k = Math.min(1.15, (a.w - 70) / (current.width || 1), (a.h - 80) / (current.height || 1)); view = {k, x: (a.w - current.width * k) / 2, y: (a.h - current.height * k) / 2}; draw(); }
function draw() { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; paint(); }); } }
function path(p) {
  let d = `M${p[0]} ${p[1]}`;
  for (let i = 2; i < p.length; i += 2) { const x0 = p[i - 2], y0 = p[i - 1], x = p[i], y = p[i + 1], m = (y0 + y) / 2; d += `C${x0} ${m} ${x} ${m} ${x} ${y}`; }
  return d;
}
function paint() {
  if (!current) return;
  const a = area(), v = view, x0 = -v.x / v.k - 60, y0 = -v.y / v.k - 60, x1 = (a.w - v.x) / v.k + 60, y1 = (a.h - v.y) / v.k + 60;
  const visible = [];
  current.boxes.forEach((b, i) => { if (b.x + b.w / 2 > x0 && b.x - b.w / 2 < x1 && b.y + b.h / 2 > y0 && b.y - b.h / 2 < y1) visible.push(i); });
  const far = v.k < LOD || visible.length > MOST, parts = document.createDocumentFragment();
  world.setAttribute("transform", `translate(${v.x} ${v.y}) scale(${v.k})`);
  const hot = new Set(selected >= 0 ? current.near[selected] : []);
  let lines = "", dashes = ""; const labels = document.createDocumentFragment(); // above all lines
  current.edges.forEach((e, i) => {
    const p = e.p; let l = Infinity, r = -Infinity;
    for (let j = 0; j < p.length; j += 2) { if (p[j] < l) l = p[j]; if (p[j] > r) r = p[j]; }
    if (r < x0 || l > x1 || p[p.length - 1] < y0 || p[1] > y1) return;
    if (far && !hot.has(i)) { if (e.dash) dashes += path(p); else lines += path(p); return; }
    const d = path(p); parts.append(svg("path", {class: `edge${e.dash ? " dash" : ""}${hot.has(i) ? " hot" : ""}`, d}));
    const hit = svg("path", {class: "hit", d}); hit.dataset.edge = i; parts.append(hit);
    if (e.l && !far) { const n = p.length; labels.append(svg("text", {class: "label", x: (n > 4 ? p[2] : (p[0] + p[2]) / 2) + 6, y: (n > 4 ? p[3] : (p[1] + p[3]) / 2) + 2}, e.l)); }
  });
  parts.append(labels);
  if (lines) parts.append(svg("path", {class: "edge", d: lines, style: "marker-end:none;vector-effect:non-scaling-stroke;opacity:.55"}));
  if (dashes) parts.append(svg("path", {class: "edge dash", d: dashes, style: "marker-end:none;vector-effect:non-scaling-stroke;opacity:.55"}));
  if (far) {
    const by = {};
    for (const i of visible) { const b = current.boxes[i]; (by[found.has(i) || i === selected ? "glow" : b.c || "accent"] ??= []).push(`M${b.x - b.w / 2} ${b.y - b.h / 2}h${b.w}v${b.h}h${-b.w}z`); }
    for (const c in by) parts.append(svg("path", {class: "far", d: by[c].join(""), style: `fill:${color(c)}`}));
    if (visible.length <= MOST) for (const i of visible) { const b = current.boxes[i]; const r = svg("rect", {x: b.x - b.w / 2, y: b.y - b.h / 2, width: b.w, height: b.h, fill: "transparent", class: "box"}); r.dataset.box = i; parts.append(r); }
  } else for (const i of visible) parts.append(box(current.boxes[i], i));
  world.replaceChildren(parts); map(a);
  canvas.dataset.visible = visible.length; canvas.dataset.total = current.boxes.length;
}
function box(b, i) {
  const pill = b.k !== "op", dim = found.size && !found.has(i);
  const g = svg("g", {class: `box${pill ? " pill " + b.k : ""}${b.g !== undefined ? " part" : ""}${i === selected ? " sel" : ""}${found.has(i) ? " found" : ""}${dim ? " dim" : ""}`, transform: `translate(${b.x - b.w / 2} ${b.y - b.h / 2})`, style: `--c:${color(b.c || "plain")}`});
  g.dataset.box = i;
  if (b.g !== undefined) g.append(svg("rect", {class: "under", x: 5, y: 5, width: b.w, height: b.h, rx: 7}));
  g.append(svg("rect", {class: "body", width: b.w, height: b.h, rx: pill ? Math.min(b.h / 2, 16) : 7}));
  if (pill) { g.append(svg("text", {class: "name", x: b.w / 2, y: 17}, b.t)); if (b.s) g.append(svg("text", {class: "sub", x: b.w / 2, y: 33}, b.s)); return g; }
  const flat = !b.r.length;
  g.append(svg("path", {class: "head", d: flat ? `M7 0H${b.w - 7}a7 7 0 0 1 7 7V${b.h - 7}a7 7 0 0 1-7 7H7a7 7 0 0 1-7-7V7a7 7 0 0 1 7-7z` : `M0 26V7a7 7 0 0 1 7-7H${b.w - 7}a7 7 0 0 1 7 7v19z`}));
  g.append(svg("text", {class: "name", x: b.w / 2, y: 17.5}, b.t + (b.d.inner.length ? " ▸" : "")));
  b.r.forEach(([key, val, role], n) => {
    const y = 26 + 15 + n * 16;
    if (role && role !== "attribute") g.append(svg("rect", {x: 7, y: y - 8.5, width: 3.5, height: 10, rx: 1.5, fill: color(role)}));
    g.append(svg("text", {class: "key", x: role && role !== "attribute" ? 15 : 8, y}, key)); g.append(svg("text", {class: "val", x: b.w - 8, y}, val));
  });
  return g;
}
function map(a) {
  const c = $("map"), ctx = c.getContext("2d"), tall = current.height > 3 * current.width, k = Math.min((tall ? 56 : 172) / (current.width || 1), (tall ? Math.min(a.h - 98, 632) : 132) / (current.height || 1));
  const mw = Math.ceil(current.width * k) + 8, mh = Math.ceil(current.height * k) + 8, ox = 4, oy = 4, css = getComputedStyle(document.documentElement);
  if (c.width !== mw || c.height !== mh) { c.width = mw; c.height = mh; }
  c.style.display = view.k * current.width > a.w || view.k * current.height > a.h ? "" : "none";
  ctx.clearRect(0, 0, mw, mh);
  current.boxes.forEach((b, i) => { ctx.fillStyle = css.getPropertyValue("--" + (found.has(i) ? "glow" : b.c || "accent")); ctx.fillRect(ox + (b.x - b.w / 2) * k, oy + (b.y - b.h / 2) * k, Math.max(1.5, b.w * k), Math.max(1.5, b.h * k)); });
  ctx.strokeStyle = css.getPropertyValue("--accent"); ctx.lineWidth = 1.5; ctx.strokeRect(ox - view.x / view.k * k, oy - view.y / view.k * k, a.w / view.k * k, a.h / view.k * k);
  c.go = e => { const r = c.getBoundingClientRect(), s = mw / r.width; centre(((e.clientX - r.left) * s - ox) / k, ((e.clientY - r.top) * s - oy) / k); }; // on a phone the map is scaled
}
function legend() {
  const names = {linear: "linear", activation: "activation", normal: "normalisation", pool: "pooling, reduction", shape: "shape", loss: "loss", control: "control flow", gradient: "gradient", optimizer: "optimizer", function: "function", plain: "arithmetic, other", module: "part (opens)"};
  const used = new Set(current.boxes.map(b => b.c).filter(Boolean)), roles = new Set(current.boxes.flatMap(b => (b.r || []).map(r => r[2])));
  const dot = (c, t, mark = "dot") => el("span", {}, el("span", {class: mark, style: `background:${color(c)}`}), t);
  $("legend").replaceChildren(...Object.keys(names).filter(c => used.has(c)).map(c => dot(c, names[c])), ...[["parameter", "trained weight"], ["frozen", facts.entries.length ? "frozen weight" : "weight"], ["state", "state"]].filter(r => roles.has(r[0])).map(r => dot(r[0], r[1], "mark")));
}
function centre(x, y, k) { // in the part of the area that the details leave free
  const a = area(), d = $("detail").hidden ? null : $("detail").getBoundingClientRect(), free = d && d.left < a.l + a.w / 2 ? Math.max(120, d.top - a.t) : a.h;
  if (k) view.k = k; view.x = a.w / 2 - x * view.k; view.y = free / 2 - y * view.k; draw();
}
function focus(i, tell = true) { if (tell) detail(i); else { selected = i; $("detail").hidden = true; } const b = current.boxes[i]; centre(b.x, b.y, tell ? Math.max(view.k, 0.8) : view.k); }
function detail(i) {
  selected = i; const to = $("detail"); to.hidden = i < 0; draw(); if (i < 0) return;
  const b = current.boxes[i], d = b.d, list = (title, rows) => rows.length ? el("section", {}, el("h2", {}, title), ...rows) : null;
  const value = ([name, type, role]) => el("div", {class: "item"}, el("button", {class: "link", on: {click: () => jump(name, i)}}, name || "(none)"), el("div", {class: "row soft"}, el("span", {class: "mono"}, type), role ? el("span", {class: "tag", style: `color:${color(role)}`}, role) : null));
  to.replaceChildren(el("button", {class: "close", "aria-label": "Close", on: {click: () => detail(-1)}}, "×"), el("h3", {}, b.k === "op" ? b.t : d.operator), d.name ? el("div", {class: "mono soft"}, d.name) : "", d.operator !== b.t && b.k === "op" ? el("div", {class: "soft"}, d.operator) : "",
    d.doc ? el("p", {}, d.doc) : "", ...[d.inner.length ? list("Inside", d.inner.map(n => el("div", {class: "item"}, el("button", {class: "link", on: {click: () => show(n)}}, "▸ " + drawings[n].title)))) : null,
      list("Inputs", d.inputs.map(value)), list(b.k === "op" ? "Outputs" : "Values", d.outputs.slice(0, 400).map(value)),
      list("Attributes", d.attributes.map(([k, v]) => el("div", {class: "item"}, el("div", {class: "soft"}, k), el("code", {}, v)))), list("Metadata", (d.metadata || []).map(([k, v]) => el("div", {class: "item"}, el("div", {class: "soft"}, k), el("code", {}, v))))].filter(Boolean));
}
function jump(name, not = -1) {
  const low = name.toLowerCase(), has = (d, i) => d.boxes[i].d.outputs.some(v => v[0] === name) || d.boxes[i].d.inputs.some(v => v[0] === name);
  const tryIn = n => { const d = drawings[n]; let hit = d.boxes.findIndex((b, i) => i !== not && b.d.outputs.some(v => v[0] === name)); if (hit < 0) hit = d.boxes.findIndex((b, i) => i !== not && has(d, i)); return hit; };
  for (const n of [number, ...drawings.keys()]) { if (n < 0) continue; const hit = tryIn(n); if (hit >= 0) { if (n !== number || $("view").style.display === "none") show(n, true); focus(hit); return; } not = -1; }
}
function find(move = true) {
  if (!current) return; const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length && home(current).flat !== undefined && current.kind !== "flat") { const from = number; show(home(current).flat, true); origin = from; return find(move); } // every node is there
  order = words.length ? current.boxes.map((_, i) => i).filter(i => words.every(w => current.text[i].includes(w))) : []; found = new Set(order); at = -1;
  $("hits").textContent = words.length ? `${order.length} found` : ""; if (order.length && move) next(1); else draw();
}
function next(step) { if (!order.length) return; at = (at + step + order.length) % order.length; $("hits").textContent = `${at + 1} of ${order.length}`; focus(order[at]); }
function zoom(f, x, y) { const a = area(), k = Math.min(4, Math.max(0.02, view.k * f)); x ??= a.w / 2; y ??= a.h / 2; view.x = x - (x - view.x) * k / view.k; view.y = y - (y - view.y) * k / view.k; view.k = k; draw(); }

canvas.addEventListener("wheel", e => { e.preventDefault(); const a = area(); zoom(Math.exp(-e.deltaY * (e.ctrlKey ? 0.01 : 0.0016)), e.clientX - a.l, e.clientY - a.t); }, {passive: false});
const fingers = new Map(); let moved = 0, pinch = 0;
canvas.addEventListener("pointerdown", e => { canvas.setPointerCapture(e.pointerId); fingers.set(e.pointerId, e); moved = 0; pinch = 0; canvas.classList.add("drag"); });
canvas.addEventListener("pointermove", e => {
  const old = fingers.get(e.pointerId); if (!old) { tip(e); return; }
  if (fingers.size === 2) { const other = [...fingers.values()].find(f => f.pointerId !== e.pointerId), d = Math.hypot(e.clientX - other.clientX, e.clientY - other.clientY), a = area(); if (pinch) zoom(d / pinch, (e.clientX + other.clientX) / 2 - a.l, (e.clientY + other.clientY) / 2 - a.t); pinch = d; moved = 9; }
  else { view.x += e.clientX - old.clientX; view.y += e.clientY - old.clientY; moved += Math.abs(e.clientX - old.clientX) + Math.abs(e.clientY - old.clientY); draw(); }
  fingers.set(e.pointerId, e);
});
const up = e => { fingers.delete(e.pointerId); canvas.classList.remove("drag"); if (moved < 5 && e.type === "pointerup") { const g = document.elementFromPoint(e.clientX, e.clientY)?.closest("[data-box]"); const b = g && current.boxes[+g.dataset.box]; if (b && b.g !== undefined) show(b.g); else detail(g ? +g.dataset.box : -1); } };
canvas.addEventListener("pointerup", up); canvas.addEventListener("pointercancel", up);
canvas.addEventListener("dblclick", e => { const g = document.elementFromPoint(e.clientX, e.clientY)?.closest("[data-box]"); const into = g && current.boxes[+g.dataset.box].d.inner[0]; if (into !== undefined && into !== null) show(into); });
function tip(e) {
  const t = $("tip"), hit = e.target.closest?.("[data-edge]"); if (!hit) { t.style.display = "none"; return; }
  const edge = current.edges[+hit.dataset.edge], a = area(); t.textContent = edge.n.slice(0, 6).join(", ") + (edge.n.length > 6 ? ` and ${edge.n.length - 6} more` : "") + (edge.l && edge.n.length === 1 ? `   ${edge.l}` : "");
  t.style.display = "block"; t.style.left = `${Math.min(e.clientX - a.l + 12, a.w - 350)}px`; t.style.top = `${e.clientY - a.t + 14}px`;
}
$("in").onclick = () => zoom(1.3); $("out").onclick = () => zoom(1 / 1.3); $("fit").onclick = fitAll;
$("map").addEventListener("pointerdown", e => $("map").go?.(e)); $("map").addEventListener("pointermove", e => e.buttons && $("map").go?.(e));
$("search").addEventListener("input", () => find()); $("search").addEventListener("keydown", e => { if (e.key === "Enter") { e.preventDefault(); next(e.shiftKey ? -1 : 1); } });
$("theme").onclick = () => { const r = document.documentElement, dark = r.dataset.theme ? r.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches; r.dataset.theme = dark ? "light" : "dark"; draw(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw); addEventListener("resize", draw);
addEventListener("keydown", e => {
  if (e.target.matches("button") && e.key === "Enter") return;
  if (e.target.matches("input, select")) { if (e.key === "Escape") { $("search").value = ""; if (origin >= 0) show(origin); else find(); e.target.blur(); } return; }
  const step = 80, keys = {"/": () => $("search").focus(), "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), "0": fitAll, "Escape": () => selected >= 0 ? detail(-1) : outwards(), "Backspace": outwards, "n": () => walk(1), "N": () => walk(-1), "Enter": inwards, "ArrowLeft": () => { view.x += step; draw(); }, "ArrowRight": () => { view.x -= step; draw(); }, "ArrowUp": () => { view.y += step; draw(); }, "ArrowDown": () => { view.y -= step; draw(); }};
  if (keys[e.key] && !e.ctrlKey && !e.metaKey) { e.preventDefault(); keys[e.key](); }
});
// A page can be opened on one graph, node or search: page.html#graph=1&find=Conv&theme=dark
const wish = new URLSearchParams(location.hash.slice(1));
if (wish.get("theme")) document.documentElement.dataset.theme = wish.get("theme");
if (drawings.length) show(Math.min(+(wish.get("graph") || 0) || 0, drawings.length - 1));
for (const title of wish.getAll("open")) { const b = current.boxes.find(o => o.g !== undefined && o.t === title); if (b) show(b.g); }
if (wish.get("sheet") === "weights" && paramTab) sheet(paramTab, table);
if (wish.get("find")) { $("search").value = wish.get("find"); find(); }
if (pending) paint(); // a window that is not shown has no frames
document.documentElement.dataset.ready = "1";
})();

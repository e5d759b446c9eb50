"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const el = (tag, attrs = {}, ...kids) => {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) k === "on" ? Object.entries(v).forEach(([n, f]) => e.addEventListener(n, f)) : k === "style" ? e.style.cssText = v : e.setAttribute(k, v);
  e.append(...kids.filter(k => k !== null && k !== undefined)); return e;
};
const num = n => n.toLocaleString("en-US");
const {tests, backends, suites} = data;
const MOST = 300;
const WORDS = {p: "passed", f: "failed", s: "skipped", "-": "not run"};
const day = iso => iso.slice(0, 16).replace("T", " ");
const state = {tab: "totals", backend: -1, suite: -1, status: "f", group: "", kind: 2};

if (matchMedia("(max-width: 900px)").matches) $("search").placeholder = "Find";
const chip = (a, b) => $("chips").append(el("span", {class: "chip"}, el("b", {}, a), " " + b));
chip(num(tests.length), "tests"); chip(num(backends.length), backends.length === 1 ? "backend" : "backends"); chip(data.onnx, "onnx"); chip(day(data.date), "UTC");

// Counts of one backend over chosen tests.
const count = (b, chosen) => { const n = {p: 0, f: 0, s: 0, "-": 0}; for (const i of chosen) n[b.status[i]]++; return n; };
const every = tests.map((_, i) => i);
const bySuite = suites.map((_, s) => every.filter(i => tests[i][0] === s));
const percent = (p, all) => !all ? "–" : p === all ? "100 %" : (Math.floor(1000 * p / all) / 10).toFixed(1) + " %";
const shade = n => { const all = n.p + n.f + n.s; return !all ? "none" : n.p === all + n["-"] ? "good" : n.p ? "some" : n.f ? "bad" : "none"; };
const bar = n => { const all = n.p + n.f + n.s + n["-"] || 1; return el("span", {class: "share", role: "img", "aria-label": `${n.p} passed, ${n.f} failed, ${n.s} skipped`}, ...["p", "s", "f"].filter(k => n[k]).map(k => el("i", {class: `b-${k}`, style: `flex:${n[k] / all}`}))); };
const cell = (b, chosen, go) => { const n = count(b, chosen), all = n.p + n.f + n.s;
  return el("td", {class: `cell ${shade(n)}`, title: `${n.p} passed, ${n.f} failed, ${n.s} skipped` + (n["-"] ? `, ${n["-"]} not run` : ""), on: {click: go}}, all ? `${num(n.p)}/${num(all)}` + (n["-"] ? "*" : "") : "–"); };
const show = (backend, changes) => { Object.assign(state, {tab: "results", backend, suite: -1, group: "", status: "x"}, changes); draw(); scrollTo(0, 0); };

function spark(name) {
  const points = data.trend.filter(t => t.backends[name]).map(t => { const c = t.backends[name], all = (c.passed || 0) + (c.failed || 0) + (c.skipped || 0); return all ? (c.passed || 0) / all : 0; });
  if (points.length < 2) return null;
  const low = Math.min(...points), high = Math.max(...points), range = high - low || 1, NS = "http://www.w3.org/2000/svg";
  const s = document.createElementNS(NS, "svg"), line = document.createElementNS(NS, "polyline");
  s.setAttribute("width", 70); s.setAttribute("height", 18); s.setAttribute("class", "spark"); s.setAttribute("role", "img"); s.setAttribute("aria-label", `share of passed tests over ${points.length} runs`);
  line.setAttribute("points", points.map((p, i) => `${2 + 66 * i / (points.length - 1)},${15 - 12 * (p - low) / range}`).join(" "));
  line.setAttribute("fill", "none"); line.setAttribute("stroke", "var(--accent)"); line.setAttribute("stroke-width", 1.6); s.append(line); return s;
}

const part = n => n.p / (n.p + n.f + n.s || 1);

function totals() {
  const order = backends.map((b, i) => [count(b, every), i]).sort((a, b) => part(b[0]) - part(a[0]));
  const head = el("tr", {}, el("th", {}, "backend"), el("th", {}, ""), el("th", {class: "n"}, "passed"), el("th", {class: "n"}, "failed"), el("th", {class: "n"}, "skipped"), ...suites.map(s => el("th", {class: "n wrap"}, s)), el("th", {}, "since the last run"));
  const rows = order.map(([n, i]) => { const b = backends[i];
    const change = !b.compared ? el("span", {class: "soft"}, "first run") : el("span", {}, b.gained.length ? el("button", {class: "link good", on: {click: () => changed(i)}}, `+${b.gained.length} `) : null, b.lost.length ? el("button", {class: "link bad", on: {click: () => changed(i)}}, `−${b.lost.length}`) : null, !b.gained.length && !b.lost.length ? el("span", {class: "soft"}, "the same") : null);
    return el("tr", {}, el("td", {class: "name"}, b.name, el("small", {}, Object.entries(b.versions).filter(([k]) => !["python", "numpy", "onward"].includes(k) && k !== "onnx").map(([k, v]) => `${k} ${v}`).join(", ") || `onnx ${b.versions.onnx || "?"}`)),
      el("td", {}, bar(n)), el("td", {class: "n"}, el("b", {title: n["-"] ? `* of the ${num(n.p + n.f + n.s)} tests that ran; ${num(n["-"])} did not` : ""}, percent(n.p, n.p + n.f + n.s) + (n["-"] ? "*" : ""))),
      el("td", {class: "cell" + (n.f ? " bad" : ""), on: {click: () => show(i, {status: "f"})}}, num(n.f)), el("td", {class: "cell", on: {click: () => show(i, {status: "s"})}}, num(n.s)), ...suites.map((_, s) => cell(b, bySuite[s], () => show(i, {suite: s}))), el("td", {}, change, " ", b.broken ? null : spark(b.name))); });
  const out = [];
  for (const p of data.parts) out.push(el("div", {class: "note part"}, p));
  for (const p of data.problems) out.push(el("div", {class: "note"}, p));
  for (const b of backends) if (b.broken) out.push(el("div", {class: "note"}, el("b", {}, `${b.name} cannot be used: `), b.broken));
  out.push(el("div", {class: "scroll"}, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows))),
    el("div", {id: "legendrow"}, ...["p", "s", "f"].map(k => el("span", {}, el("span", {class: `dot b-${k}`}), WORDS[k]))),
    el("p", {class: "soft"}, "A skip is what the backend says that it does not have; it is not a pass. Percentages are of all tests, skipped ones included, and are rounded down; with a star, of all that ran. Click a number to see the tests."));
  return out;
}

function matrix(kind, title) {
  const groups = new Map(), words = $("search").value.trim().toLowerCase();
  tests.forEach((t, i) => { if (state.suite < 0 || t[0] === state.suite) for (const g of t[kind]) groups.has(g) ? groups.get(g).push(i) : groups.set(g, [i]); });
  const names = [...groups.keys()].filter(g => g.toLowerCase().includes(words)).sort();
  const less = state.incomplete ? names.filter(g => backends.some(b => { const n = count(b, groups.get(g)); return n.f || n.s; })) : names;
  $("hits").textContent = words ? `${less.length}` : "";
  const rows = less.map(g => el("tr", {}, el("td", {class: "name"}, g), el("td", {class: "n soft"}, num(groups.get(g).length)), ...backends.map((b, i) => cell(b, groups.get(g), () => show(i, {group: g, kind, suite: state.suite})))));
  return [el("div", {class: "filters"}, chooser("suite", ["all suites", ...suites]), el("button", {"aria-pressed": String(!!state.incomplete), on: {click: () => { state.incomplete = !state.incomplete; draw(); }}}, "only where something is missing"), el("span", {class: "soft"}, `${num(less.length)} ${title}; a test counts for each of its ${title}`)),
    el("div", {class: "scroll tall"}, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, title), el("th", {class: "n"}, "tests"), ...backends.map(b => el("th", {class: "n"}, b.name)))), el("tbody", {}, ...rows)))];
}

const chooser = (key, names) => { const s = el("select", {"aria-label": key, on: {change: e => { state[key] = e.target.selectedIndex - 1; draw(); }}}, ...names.map(n => el("option", {}, n))); s.selectedIndex = state[key] + 1; return s; };

function results() {
  const words = $("search").value.trim().toLowerCase();
  const wanted = state.status === "x" ? "fs" : state.status;
  const found = [];
  backends.forEach((b, k) => { if (state.backend >= 0 && k !== state.backend) return;
    every.forEach(i => { const t = tests[i];
      if (!wanted.includes(b.status[i]) || (state.suite >= 0 && t[0] !== state.suite) || (state.group && !t[state.kind].includes(state.group))) return;
      if (words && !(`${suites[t[0]]}/${t[1]} ${t[2].join(" ")} ${b.messages[i] || ""}`.toLowerCase().includes(words))) return;
      found.push([k, i]); }); });
  $("hits").textContent = words ? num(found.length) : "";
  const kinds = [["f", "failed"], ["s", "skipped"], ["x", "not passed"], ["p", "passed"]];
  const status = el("select", {"aria-label": "status", on: {change: e => { state.status = kinds[e.target.selectedIndex][0]; draw(); }}}, ...kinds.map(k => el("option", {}, k[1]))); status.selectedIndex = kinds.findIndex(k => k[0] === state.status);
  return [el("div", {class: "filters"}, status, chooser("backend", ["all backends", ...backends.map(b => b.name)]), chooser("suite", ["all suites", ...suites]),
      state.group ? el("button", {title: "Remove this filter", on: {click: () => { state.group = ""; draw(); }}}, `${state.group} ✕`) : null, el("span", {class: "soft"}, `${num(found.length)} results`)),
    ...found.slice(0, MOST).map(([k, i]) => line(k, i)), found.length > MOST ? el("p", {class: "soft"}, `and ${num(found.length - MOST)} more: choose a backend, a suite, or search`) : null];
}

const line = (k, i) => { const b = backends[k], t = tests[i], s = b.status[i];
  return el("div", {class: "case"}, el("div", {}, el("span", {class: `tag ${s === "p" ? "good" : s === "f" ? "bad" : "none"}`}, WORDS[s]), el("span", {class: "soft"}, b.name), el("button", {class: "link", title: "This test on all backends", on: {click: () => { $("search").value = t[1]; show(-1, {status: "x"}); }}}, `${suites[t[0]]}/${t[1]}`), el("span", {class: "soft"}, [...t[2].slice(0, 4), ...t[3]].join(" · "))),
    b.messages[i] ? el("p", {class: "mono"}, b.messages[i]) : null); };

function changed(k) { state.tab = "changes"; state.backend = k === undefined ? -1 : k; draw(); }
function changes() {
  const out = [el("div", {class: "filters"}, chooser("backend", ["all backends", ...backends.map(b => b.name)]))];
  let some = false;
  backends.forEach((b, k) => { if (state.backend >= 0 && k !== state.backend || !b.compared) return;
    for (const [title, list] of [["does not pass any more", b.lost], ["passes now", b.gained]]) if (list.length) { some = true;
      out.push(el("h2", {}, `${b.name}: ${num(list.length)} ${title.replace("does not", list.length > 1 ? "do not" : "does not").replace("passes", list.length > 1 ? "pass" : "passes")}`), ...list.slice(0, MOST).map(i => line(k, i))); } });
  if (!some) out.push(el("p", {class: "soft"}, backends.some(b => b.compared) ? "Nothing changed since the last run in this folder." : "This is the first run in this folder."));
  return out;
}

const TABS = {totals: ["Totals", totals], operators: ["Operators", () => matrix(2, "operators")], types: ["Types", () => matrix(3, "element types")], results: ["Results", results], changes: ["Changes", changes]};
function draw() {
  $("hits").textContent = "";
  $("tabs").replaceChildren(...Object.entries(TABS).map(([k, [title]]) => el("button", {role: "tab", "aria-selected": String(state.tab === k), on: {click: () => { state.tab = k; draw(); }}}, title)));
  $("sheet").replaceChildren(...TABS[state.tab][1]().filter(Boolean));
}
let timer; $("search").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => { if (state.tab === "totals" || state.tab === "changes") { state.tab = "results"; state.status = "x"; state.backend = -1; } draw(); }, 120); });
addEventListener("keydown", e => { if (e.key === "/" && document.activeElement !== $("search")) { e.preventDefault(); $("search").focus(); } });
$("theme").addEventListener("click", () => { const dark = document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches); document.documentElement.dataset.theme = dark ? "light" : "dark"; });
draw();
})();

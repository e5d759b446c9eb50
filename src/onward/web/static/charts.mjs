// The drawings: the loss by step, the confusion matrix, and what is said by what is right. Colours come from the style sheet.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Return a context whose units are pixels of the page, sharp on every screen. */
function fresh(canvas, height) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return { context, width };
}

/** Return at most `most` round numbers from 0 to `top`. */
function ticks(top, most = 4) {
  const rough = top / most, power = 10 ** Math.floor(Math.log10(rough || 1)), step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step);
}

const short = (n) => (n >= 1000 ? `${+(n / 1000).toPrecision(3)}k` : String(+n.toPrecision(3)));

/** Draw each loss as a point and their moving mean as a line; `first` is the step of the first. */
export function drawCurve(canvas, losses, first) {
  const height = 170, { context: g, width } = fresh(canvas, height), [left, top, right, bottom] = [38, 10, 10, 22];
  const w = width - left - right, h = height - top - bottom;
  const sorted = [...losses].sort((a, b) => a - b), high = (sorted[Math.floor(sorted.length * 0.99)] ?? 1) * 1.08 || 1;
  const x = (i) => left + (losses.length > 1 ? (i / (losses.length - 1)) * w : w / 2), y = (v) => top + h - Math.min(v / high, 1) * h;
  g.strokeStyle = colour("--line");
  g.fillStyle = colour("--soft");
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (const t of ticks(high)) { g.beginPath(); g.moveTo(left, y(t)); g.lineTo(width - right, y(t)); g.stroke(); g.fillText(short(t), left - 6, y(t)); }
  g.textBaseline = "alphabetic";
  if (!losses.length) { g.textAlign = "center"; g.fillText("the loss will appear here", left + w / 2, top + h / 2); return canvas.setAttribute("aria-label", "The loss by step: nothing yet"); }
  g.textAlign = "left";
  g.fillText(`step ${short(first + 1)}`, left, height - 6);
  g.textAlign = "right";
  g.fillText(short(first + losses.length), width - right, height - 6);
  const every = Math.max(1, Math.floor(losses.length / (2 * w)));
  g.fillStyle = colour("--accent-soft");
  for (let i = 0; i < losses.length; i += every) g.fillRect(x(i) - 1, y(losses[i]) - 1, 2, 2);
  g.beginPath();
  const weight = 1 - Math.exp(-1 / Math.min(12, 1 + losses.length / 20));
  let mean = losses[0];
  losses.forEach((v, i) => { mean += weight * (v - mean); if (i % every === 0 || i === losses.length - 1) g.lineTo(x(i), y(mean)); });
  g.strokeStyle = colour("--accent");
  g.lineWidth = 2.2;
  g.lineJoin = "round";
  g.stroke();
  g.lineWidth = 1;
  canvas.setAttribute("aria-label", `The loss by step: ${losses[0].toPrecision(3)} at step ${first + 1}, ${losses.at(-1).toPrecision(3)} at step ${first + losses.length}`);
}

/** Show a confusion matrix as a table; of very many classes, only the most frequent confusions. */
export function showMatrix(place, classes, { matrix }) {
  if (classes.length > 24) return showConfusions(place, classes, matrix);
  let table = place.querySelector("table");
  if (!table || table.dataset.count !== String(classes.length)) {
    table = document.createElement("table");
    table.dataset.count = classes.length;
    const head = table.createTHead().insertRow(), body = table.createTBody();
    table.createCaption().textContent = "One row for each class; the columns say what the model takes it for.";
    table.caption.className = "unseen";
    const title = (row, text, scope) => { const cell = document.createElement("th"); cell.scope = scope; cell.textContent = text; cell.title = text; row.append(cell); };
    title(head, "", "col");
    classes.forEach((name) => title(head, name, "col"));
    classes.forEach((name) => { const row = body.insertRow(); title(row, name, "row"); classes.forEach(() => row.insertCell()); });
    place.replaceChildren(table);
  }
  matrix.forEach((row, i) => {
    const sum = row.reduce((a, b) => a + b, 0);
    row.forEach((n, j) => {
      const cell = table.tBodies[0].rows[i].cells[j + 1], share = sum ? n / sum : 0;
      cell.textContent = n || "";
      cell.className = `${i === j ? "right" : "wrong"} s${n ? Math.max(1, Math.ceil(share * 9)) : 0}`;
      cell.title = `${classes[i]} taken for ${classes[j]}: ${n} of ${sum}`;
    });
  });
}

function showConfusions(place, classes, matrix) {
  const list = document.createElement("ol"), pairs = [];
  matrix.forEach((row, i) => row.forEach((n, j) => { if (n && i !== j) pairs.push([n, i, j]); }));
  pairs.sort((a, b) => b[0] - a[0]);
  for (const [n, i, j] of pairs.slice(0, 12)) { const item = document.createElement("li"); item.textContent = `${classes[i]} taken for ${classes[j]}: ${n}`; list.append(item); }
  if (!pairs.length) list.append(Object.assign(document.createElement("li"), { textContent: "none for another" }));
  place.replaceChildren(list);
}

/** Draw what is said by what is right, for models of numbers. */
export function drawPairs(canvas, pairs) {
  const height = 200, { context: g, width } = fresh(canvas, height), all = pairs.flat(), low = Math.min(...all), high = Math.max(...all), span = high - low || 1;
  const x = (v) => 44 + ((v - low) / span) * (width - 58), y = (v) => height - 26 - ((v - low) / span) * (height - 40);
  g.strokeStyle = colour("--line");
  g.beginPath();
  g.moveTo(x(low), y(low));
  g.lineTo(x(high), y(high));
  g.stroke();
  g.fillStyle = colour("--accent");
  for (const [is, said] of pairs) { g.beginPath(); g.arc(x(is), y(said), 3, 0, 7); g.fill(); }
  g.fillStyle = colour("--soft");
  g.fillText(`right: ${short(low)} to ${short(high)} →`, 44, height - 8);
  g.save();
  g.translate(14, height - 26);
  g.rotate(-Math.PI / 2);
  g.fillText("what it says →", 0, 0);
  g.restore();
}

/** Show the probability of each class, the best first, as bars; at most ten of them. */
export function showBars(list, classes, shares) {
  const order = shares.map((p, i) => [p, i]).sort((a, b) => b[0] - a[0]).slice(0, classes.length > 10 ? 8 : 10);
  if (classes.length <= 10) order.sort((a, b) => a[1] - b[1]);
  while (list.children.length > order.length) list.lastChild.remove();
  while (list.children.length < order.length) {
    const item = document.createElement("li");
    const [name, meter, percent] = ["span", "span", "span"].map((tag) => document.createElement(tag));
    meter.append(document.createElement("i"));
    for (const [key, value] of Object.entries({ role: "meter", "aria-valuemin": 0, "aria-valuemax": 100 })) meter.setAttribute(key, value);
    item.append(name, meter, percent);
    list.append(item);
  }
  const top = Math.max(...shares);
  order.forEach(([p, i], at) => {
    const [name, meter, percent] = list.children[at].children;
    name.textContent = name.title = classes[i];
    meter.firstChild.style.width = `${100 * p}%`;
    meter.setAttribute("aria-valuenow", (100 * p).toFixed(1));
    meter.setAttribute("aria-label", classes[i]);
    percent.textContent = `${(100 * p).toFixed(p > 0.995 || p < 0.0005 ? 0 : 1)} %`;
    list.children[at].className = p === top ? "top" : "";
  });
}

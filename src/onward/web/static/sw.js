// The service worker: keeps every file of the site, after comparing it with its checksum, so that the page works offline. It
// also sends the headers that some static hosts cannot: with them the page is isolated, and ONNX Runtime may use threads.
"use strict";
const SITE = "@SITE@", POLICY = "@POLICY@", CACHE = "onward " + SITE, ROOT = new URL("./", self.location).href;
const HEADERS = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp", "Cross-Origin-Resource-Policy": "same-origin", "Content-Security-Policy": POLICY };

async function digest(bytes) {
  return [...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))].map((b) => b.toString(16).padStart(2, "0")).join("");
}

async function fetched(name, expected) {
  const response = await fetch(ROOT + name, { cache: "no-cache" });
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  const bytes = await response.arrayBuffer();
  if (expected && (await digest(bytes)) !== expected) throw new Error(`${name} is damaged, or of another version of the site`);
  const headers = new Headers(HEADERS);
  headers.set("Content-Type", response.headers.get("Content-Type") || "application/octet-stream");
  return { bytes, response: new Response(bytes, { headers }) };
}

async function install() {
  const cache = await caches.open(CACHE), site = await fetched("site.json", SITE);
  const { files } = JSON.parse(new TextDecoder().decode(site.bytes));
  await cache.put(ROOT + "site.json", site.response);
  for (const name of Object.keys(files)) await cache.put(ROOT + name, (await fetched(name, files[name].sha256)).response);
  await cache.put(ROOT, (await fetched("")).response);
}

self.addEventListener("install", (event) => event.waitUntil(install()));

self.addEventListener("activate", (event) => event.waitUntil((async () => {
  for (const name of await caches.keys()) if (name.startsWith("onward ") && name !== CACHE && (await owns(name))) await caches.delete(name);
  await self.clients.claim();
})()));

/** Return whether a cache is of this site: several may live on one server. */
async function owns(name) {
  return Boolean(await (await caches.open(name)).match(ROOT));
}

self.addEventListener("fetch", (event) => {
  const address = event.request.url.split(/[?#]/)[0];
  if (event.request.method !== "GET" || !address.startsWith(ROOT)) return;
  const wanted = address === ROOT + "index.html" ? ROOT : address;
  event.respondWith(caches.open(CACHE).then((cache) => cache.match(wanted)).then((found) => found || fetch(event.request)));
});

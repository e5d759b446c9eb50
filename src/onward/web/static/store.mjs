// What this browser remembers, in IndexedDB: for each program its weights, the weights before the last training, and the samples.

const STORES = ["state", "samples"];

export class Store {
  /** Return the memory of the program with this checksum. */
  static async open(program) {
    const store = new Store();
    store.program = program;
    store.db = await new Promise((done, fail) => {
      const asked = indexedDB.open("onward", 1);
      asked.onupgradeneeded = () => STORES.forEach((name) => asked.result.createObjectStore(name));
      asked.onsuccess = () => done(asked.result);
      asked.onerror = () => fail(asked.error);
      asked.onblocked = () => fail(new Error("another tab holds the memory of this browser: close it"));
    });
    store.db.onversionchange = () => store.db.close();
    return store;
  }

  /** Do `work` with a store in one transaction: all of it happens, or nothing. */
  #do(name, mode, work) {
    return new Promise((done, fail) => {
      const transaction = this.db.transaction(name, mode, { durability: "strict" });
      let asked;
      transaction.oncomplete = () => done(asked?.result);
      transaction.onabort = () => fail(explain(transaction.error ?? asked?.error));
      try { asked = work(transaction.objectStore(name)); } catch (error) { transaction.abort(); fail(explain(error)); }
    });
  }

  #all() { return IDBKeyRange.bound([this.program], [this.program, []]); }

  /** Return the state under a name ("now", "before"), or undefined. */
  state(name) { return this.#do("state", "readonly", (s) => s.get([this.program, name])); }
  keep(states) {
    return this.#do("state", "readwrite", (s) => Object.entries(states).forEach(([name, value]) => (value ? s.put(value, [this.program, name]) : s.delete([this.program, name]))));
  }
  samples() { return this.#do("samples", "readonly", (s) => s.getAll(this.#all())); }
  addSamples(samples) { return this.#do("samples", "readwrite", (s) => samples.forEach((one) => s.put(one, [this.program, one.id]))); }
  removeSample(id) { return this.#do("samples", "readwrite", (s) => s.delete([this.program, id])); }
  async forget() { for (const name of STORES) await this.#do(name, "readwrite", (s) => s.delete(this.#all())); }
}

function explain(error) {
  if (error?.name !== "QuotaExceededError") return error ?? new Error("the browser stopped writing");
  const full = new Error("The browser has no room left for this page (QuotaExceededError), so this was not stored. What was stored before is unchanged. Download the checkpoint to keep your training, or free some space.");
  full.name = "QuotaExceededError";
  return full;
}

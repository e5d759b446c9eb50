// @onward/train: train a program of `onward compile` on stock onnxruntime-web or onnxruntime-node. No other dependency.
// The types, and what each call promises, are in onward-train.d.ts; docs/program_format.md explains the files.

// Type in onnxruntime, type in safetensors, number in ONNX, array.
const TYPES = [
  ["float32", "F32", 1, Float32Array], ["float64", "F64", 11, Float64Array], ["float16", "F16", 10, Uint16Array],
  ["bfloat16", "BF16", 16, Uint16Array], ["int64", "I64", 7, BigInt64Array], ["uint64", "U64", 13, BigUint64Array],
  ["int32", "I32", 6, Int32Array], ["uint32", "U32", 12, Uint32Array], ["int16", "I16", 5, Int16Array],
  ["uint16", "U16", 4, Uint16Array], ["int8", "I8", 3, Int8Array], ["uint8", "U8", 2, Uint8Array],
  ["bool", "BOOL", 9, Uint8Array],
];
const ZEROS = "0".repeat(64);
const { entries, values } = Object;

const fail = (message) => { throw new Error(`@onward/train: ${message}`); };
const encode = (text) => new TextEncoder().encode(text);
const decode = (bytes) => new TextDecoder().decode(bytes);
const bytesOf = (data) => new Uint8Array(data.buffer ?? data, data.byteOffset, data.byteLength);
const kind = (column, key) => TYPES.find((row) => row[column] == key);
const dispose = (tensors) => values(tensors).forEach((tensor) => tensor.dispose());
const difference = (name, found, needed) => `\`${name}\` is ${found}, not ${needed}`;

export class Trainer {
  #ort;
  #read;
  #options;
  #sessions = {};
  #last = Promise.resolve();
  #released;
  steps = 0;

  static async load(source, { ort, executionProviders, session, selfTest, read = readFile }) {
    const trainer = new Trainer(), { files } = source;
    trainer.#ort = ort;
    trainer.#options = (role, graph) => ({
      ...(executionProviders && { executionProviders }),
      ...(typeof session == "function" ? session(role, graph) : session),
    });
    const folder = `${source}`.replace(/\/?(manifest\.json)?$/, "/");
    trainer.#read = async (name) => bytesOf((files ? files[name] : await read(folder + name)) ?? fail(`${name} is missing`));
    const manifest = files ? source.manifest : await readManifest(await trainer.#read("manifest.json"));
    if (manifest.format != "onward-program" || manifest.version != 1) fail("manifest.json is not of onward-program 1");
    trainer.manifest = manifest;
    trainer.state = await trainer.#stored();
    // Only the runtime that the program's numbers come from needs no proof.
    const proven = ort.env?.versions?.node && [executionProviders ?? "cpu"].flat().every((p) => (p.name ?? p) == "cpu");
    if (selfTest ?? !proven) {
      try {
        await trainer.selfTest();
      } catch (error) {
        await trainer.release();
        throw error;
      }
    }
    return trainer;
  }

  step(batch, settings, entry) {
    return this.#next(async () => {
      const { entries: all, phases } = this.manifest;
      if (entry ? !all.includes(entry) : phases || !all[0]) fail(`name one of the entries: ${all}`);
      const { fresh, ...result } = await this.#train(entry ? [entry] : all, batch, settings, this.state);
      this.#replace(fresh);
      this.steps++;
      return result;
    });
  }

  evaluate(batch, entry) {
    return this.#next(async () => {
      const role = this.#role("evaluate", entry), outputs = await this.#run(role, batch);
      const { name } = this.manifest.graphs[role].outputs.find((o) => o.role == "loss"), loss = await number(outputs[name]);
      delete outputs[name];
      return { loss, outputs };
    });
  }

  infer(inputs) {
    return this.#next(() => this.#run("infer", inputs));
  }

  rate(settings, entry) {
    return this.#next(async () => {
      const role = this.#role("rate", entry);
      if (this.manifest.graphs[role]) return number(values(await this.#run(role, {}, settings))[0]);
    });
  }

  initialize(seed = 0) {
    return this.#next(async () => {
      this.#replace(await this.#stored(seed));
      this.steps = 0;
    });
  }

  checkpoint() {
    return this.#next(() => writeTensors(this.state, { format: "onward-state", version: 1, steps: this.steps }));
  }

  restore(bytes) {
    return this.#next(async () => {
      const [found, { steps }] = await readTensors(bytesOf(bytes), this.#ort, "the checkpoint");
      for (const name in found) if (name.startsWith("onward/")) delete found[name]; // what a run in Python keeps beside
      this.#check(found, "the checkpoint");
      this.#replace(found);
      this.steps = steps ?? 0;
    });
  }

  exportOnnx() {
    return this.#next(async () => {
      const graph = this.manifest.graphs.infer, weights = {};
      for (const { name, role } of graph.inputs) if (role == "state") weights[name] = await initializer(name, this.state[name]);
      return bake(await this.#file(graph), weights);
    });
  }

  selfTest() {
    return this.#next(async () => {
      const test = this.manifest.self_test, wrong = [];
      if (!test) return false;
      const compare = (name, found, needed, tolerance) => {
        if (!found.every((x, i) => Math.abs(x - needed[i]) <= tolerance)) wrong.push(difference(name, found, needed));
      };
      const [batch] = await readTensors(await this.#file(test), this.#ort, test.file), state = await this.#stored();
      for (const [entry, wanted] of entries(test.entries)) {
        const { fresh, losses, outputs } = await this.#train([entry], batch, {}, state);
        compare("loss", [losses[entry]], [wanted.loss], wanted.loss_tolerance);
        for (const [name, { checksum, tolerance }] of entries(wanted.state)) {
          const old = await numbers(state[name]), sums = [0, 0];
          (await numbers(fresh[name] ?? state[name])).forEach((x, i) => {
            x -= old[i];
            sums[0] += x * Math.cos(i);
            sums[1] += Math.abs(x);
          });
          compare(name, sums, checksum, tolerance);
        }
        dispose({ ...fresh, ...outputs });
      }
      dispose(state);
      if (wrong[0]) fail(`the self-test shows that this runtime computes wrong: ${wrong.join("; ")}`);
      return true;
    });
  }

  release() {
    return this.#next(async () => {
      this.#released = true;
      dispose(this.state);
      for (const session of values(this.#sessions)) await session.release();
    });
  }

  /** Run `task` after all that was asked for before. */
  #next(task) {
    const done = this.#last.then(() => this.#released ? fail("the trainer was released") : task());
    this.#last = done.catch(() => {}); // who called has the error
    return done;
  }

  /** Run the steps of `names` in turn. Nothing of the trainer changes: `fresh` is the new state. */
  async #train(names, batch, settings, state) {
    const fresh = {}, losses = {}, outputs = {}, made = new Set();
    try {
      for (const entry of names) {
        const role = this.#role("step", entry), results = await this.#run(role, batch, settings, { ...state, ...fresh });
        values(results).forEach((tensor) => made.add(tensor));
        for (const o of this.manifest.graphs[role].outputs) {
          const value = results[o.name];
          if (o.role == "state") fresh[o.replaces] = value;
          else if (o.role == "loss") losses[entry] ??= (await numbers(value))[0];
          else outputs[o.name] = value;
        }
        if (!isFinite(losses[entry])) fail(`the loss of \`${entry}\` is ${losses[entry]}; the state stays as it was`);
      }
      for (const tensor of [...values(fresh), ...values(outputs)]) made.delete(tensor);
      return { loss: losses[names[0]], losses, outputs, fresh };
    } finally {
      made.forEach((tensor) => tensor.dispose());
    }
  }

  #replace(fresh) {
    for (const name in fresh) {
      this.state[name].dispose(); // a buffer of a GPU is not collected
      this.state[name] = fresh[name];
    }
  }

  #role(task, entry = this.manifest.entries[0]) {
    const own = `${task}:${entry}`;
    return this.manifest.graphs[own] || entry != this.manifest.entries[0] ? own : task;
  }

  async #run(role, batch, given = {}, state = this.state) {
    const { graphs, settings } = this.manifest, graph = graphs[role], feeds = {}, wrong = [];
    if (!graph) fail(`the program has no graph \`${role}\``);
    for (const name in given) if (!settings[name]) wrong.push(difference(name, "no setting", Object.keys(settings)));
    for (const { name, dtype, shape, role: origin } of graph.inputs) {
      let value = origin == "state" ? state[name] : batch[name];
      if (origin == "setting") {
        value = { data: [given[name] ?? settings[name].default].flat(Infinity), dims: shape };
        if (!value.data.every(isFinite)) wrong.push(difference(name, value.data, "finite"));
      }
      try {
        feeds[name] = value instanceof this.#ort.Tensor ? value : new this.#ort.Tensor(dtype, value.data, value.dims);
        const { type, dims } = feeds[name];
        if (type != dtype || dims.length != shape.length || shape.some((d, i) => typeof d == "number" && d != dims[i]))
          wrong.push(difference(name, `${type}[${dims}]`, `${dtype}[${shape}]`));
      } catch (error) {
        wrong.push(value ? `\`${name}\`: ${error.message}` : `\`${name}\` is missing`);
      }
    }
    if (wrong[0]) fail(`${role}: ${wrong.join("; ")}`);
    this.#sessions[role] ??= await this.#ort.InferenceSession.create(await this.#file(graph), this.#options(role, graph));
    return this.#sessions[role].run(feeds);
  }

  /** Return the state of the program; with a seed as `initialize.onnx` makes it, which also makes what the file lacks. */
  async #stored(seed) {
    const { state: { tensors, ...file }, graphs: { initialize } } = this.manifest, all = seed != null;
    const [state] = await readTensors(await this.#file(file), this.#ort, file.file);
    const int = (value) => new this.#ort.Tensor("int64", [value], []);
    const random = { "random/key": int(seed ?? 0), "random/step": int(0) };
    if (all) for (const { name } of tensors) state[name] = random[name] ?? state[name];
    if (initialize && tensors.some(({ name }) => all || !state[name])) {
      const results = await this.#run("initialize", {}, {}, { ...state, ...random });
      for (const { name, replaces } of initialize.outputs) if (all || !state[replaces]) state[replaces] = results[name];
    }
    this.#check(state, file.file);
    return state;
  }

  #check(state, what) {
    const wrong = [], rest = { ...state };
    for (const { name, dtype, shape } of this.manifest.state.tensors) {
      const { type, dims } = state[name] ?? {}, found = `${type}[${dims}]`, needed = `${dtype}[${shape}]`;
      if (found != needed) wrong.push(difference(name, type ? found : "missing", needed));
      delete rest[name];
    }
    for (const name in rest) wrong.push(`\`${name}\` is unknown`);
    if (wrong[0]) fail(`${what} is of another model: ${wrong.join("; ")}`);
  }

  async #file({ file, sha256 }) {
    if (!/^\w[\w.-]*$/.test(file)) fail(`the manifest names a file outside the program: ${file}`);
    const bytes = await this.#read(file);
    if (await digest(bytes) != sha256) fail(`${file} is damaged: it is not the file that was compiled`);
    return bytes;
  }
}

async function readFile(url) {
  const fs = globalThis.process?.getBuiltinModule?.("fs");
  if (fs && !/^(?!file:)\w\w+:/.test(url)) return fs.promises.readFile(/^file:/.test(url) ? new URL(url) : url);
  const response = await fetch(url);
  return response.ok ? response.arrayBuffer() : fail(`${url}: ${response.status}`);
}

async function readManifest(bytes) {
  const text = decode(bytes), sum = /"sha256": "(\w{64})"/.exec(text)?.[1];
  const manifest = JSON.parse(text);
  if (manifest.sha256 && (await digest(encode(text.replace(sum, ZEROS)))) != sum) fail("manifest.json is damaged");
  return manifest;
}

async function digest(bytes) {
  if (!globalThis.crypto?.subtle) fail("no crypto.subtle here: open the page by https, or from localhost");
  return [...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))].map((b) => b.toString(16).padStart(2, 0)).join("");
}

/** The elements as numbers; without a Float16Array, onnxruntime gives the bits of float16. */
async function numbers(tensor) {
  const data = await tensor.getData();
  return Array.from(data, tensor.type == "float16" && data instanceof Uint16Array ? half : Number);
}
async function number(tensor) {
  const [first] = await numbers(tensor);
  tensor.dispose();
  return first;
}
function half(bits) {
  const exponent = (bits >> 10) & 31, rest = bits & 1023;
  const size = exponent > 30 ? (rest ? NaN : Infinity) : exponent ? 2 ** (exponent - 25) * (1024 + rest) : 2 ** -24 * rest;
  return bits >> 15 ? -size : size;
}

/** Read a safetensors file of Onward, and check every bit of it: [tensors, data]. */
async function readTensors(bytes, { Tensor }, what) {
  const damaged = (why) => fail(`${what} is damaged: ${why}`);
  const begin = 8 + (bytes.length < 8 ? Infinity : Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true)));
  const text = decode(bytes.subarray(8, begin)), sum = /"sha256":"(\w{64})"/.exec(text)?.[1], tensors = {};
  if (await digest(concat([bytes.subarray(0, 8), encode(text.replace(sum, ZEROS))])) != sum) damaged("its header");
  const { __metadata__: { onward }, ...header } = JSON.parse(text);
  // Python writes NaN into the JSON of a run, where JSON has none.
  const { data, tensors: sums } = JSON.parse(onward.replace(/(?<=[:,[])(NaN|-?Infinity)(?=[,\]}])/g, "null"));
  let end = begin;
  for (const [name, { dtype, shape, data_offsets: [first, last] }] of entries(header)) {
    const part = bytes.slice(begin + first, begin + last), [type, , , Elements] = kind(1, dtype) ?? fail(`\`${name}\` has type ${dtype}`);
    if (await digest(part) != sums[name]) damaged(`tensor \`${name}\``);
    tensors[name] = new Tensor(type, new Elements(part.buffer), shape);
    end = Math.max(end, begin + last);
  }
  if (end != bytes.length) damaged("it is too long");
  return [tensors, data];
}

/** Write a safetensors file as Onward does: the sha256 of every tensor and of the header are in the header. */
async function writeTensors(tensors, data) {
  const sums = {}, parts = [], header = {}, size = new Uint8Array(8);
  let at = 0;
  for (const [name, tensor] of entries(tensors)) {
    const part = bytesOf(await tensor.getData());
    parts.push(part);
    sums[name] = await digest(part);
    header[name] = { dtype: kind(0, tensor.type)[1], shape: tensor.dims, data_offsets: [at, at += part.length] };
  }
  let text = JSON.stringify({ __metadata__: { sha256: ZEROS, onward: JSON.stringify({ data, tensors: sums }) }, ...header });
  text += " ".repeat(-encode(text).length & 7);
  new DataView(size.buffer).setUint32(0, encode(text).length, true);
  return concat([size, encode(text.replace(ZEROS, await digest(concat([size, encode(text)])))), ...parts]);
}

/** A field of GraphProto with a TensorProto (dims = 1, data_type = 2, name = 8, raw_data = 9). */
async function initializer(name, tensor) {
  return field(5, concat([...tensor.dims.flatMap((d) => [[8], varint(d)]), [16, kind(0, tensor.type)[2]],
    field(8, encode(name)), field(9, bytesOf(await tensor.getData()))]));
}
/** A ModelProto (graph = 7) whose GraphProto (initializer = 5, input = 11) has the inputs of `weights` as initializers. */
function bake(model, weights) {
  return concat(fields(model).map(([number, raw, graph]) => number != 7 ? raw : field(7, concat([
    ...fields(graph).filter(([n, , input]) => n != 11 || !weights[decode(fields(input).find(([n]) => n == 1)[2])]).map(([, raw]) => raw),
    ...values(weights)]))));
}
/** The fields of a message: [number, all bytes, body]. */
function fields(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length;) {
    const start = at, next = () => {
      let value = 0, scale = 1, byte;
      do {
        byte = bytes[at++];
        value += (byte & 127) * scale;
        scale *= 128;
      } while (byte > 127);
      return value;
    };
    const tag = next(), wire = tag & 7, length = wire == 1 ? 8 : wire == 5 ? 4 : next(); // which has read a plain number
    const body = bytes.subarray(at, at += wire && length);
    found.push([tag >> 3, bytes.subarray(start, at), body]);
  }
  return found;
}
const field = (number, body) => concat([varint(number * 8 + 2), varint(body.length), body]);
function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push(value % 128 + 128);
  return [...bytes, value];
}
function concat(parts) {
  const all = new Uint8Array(parts.reduce((n, part) => n + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

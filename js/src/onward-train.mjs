// @onward/train: train a program of `onward compile` on stock onnxruntime-web or onnxruntime-node. No other dependency.
// The types, and what each call promises, are in onward-train.d.ts; docs/program_format.md explains the files.
// It must stay below 6 kB minified and 3 kB gzipped (build.mjs), so it leans on what is everywhere: Blob joins and encodes.

// The element types by their numbers in ONNX, which begin with 1. In safetensors they are F32, U8 … BOOL.
const TYPES = " float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64".split(" ");
const ZEROS = "0".repeat(64);

const fail = (message) => { throw Error("onward: " + message); };
const damaged = (what) => fail(what + " is missing or damaged");
const short = (type) => type.replace(/[a-z]+(?=\d)/, (word) => word[0]).toUpperCase();
const join = async (...parts) => new Uint8Array(await new Blob(parts).arrayBuffer());
const dispose = (tensors) => { for (const name in tensors) tensors[name].dispose(); };

export class Trainer {
  static async load(source, { ort, executionProviders, session, selfTest, read = async (url) => (await fetch(url)).arrayBuffer() }) {
    const { files } = source, { Tensor } = ort, trainer = new Trainer(), state = {};
    let sessions = {}, last;
    const get = async (name) => join(files ? files[name] : await read(`${source}`.replace(/[^/]*$/, name)));
    const manifest = files ? source.manifest : await parse("manifest.json", await get("manifest.json"));
    if (manifest.format + manifest.version != "onward-program1") fail("not onward-program 1");
    const { entries, graphs, settings, state: kept, self_test: test } = manifest;

    const file = async ({ file, sha256 }) => {
      if (!/^\w[\w.-]*$/.test(file)) fail("a file outside the program: " + file);
      const bytes = await get(file);
      return await digest(bytes) == sha256 ? bytes : damaged(file);
    };
    const roleOf = (task, entry = entries[0]) => entry == entries[0] && graphs[task] ? task : `${task}:${entry}`;

    const run = async (role, batch, given = {}, current = state) => {
      const graph = graphs[role] ?? fail("no graph " + role), feeds = {};
      for (const name in given) settings[name] ?? fail(`no setting ${name} among ${Object.keys(settings)}`);
      for (const { name, dtype, shape, role } of graph.inputs) {
        let value = role == "state" ? current[name] : batch[name];
        if (role == "setting") {
          value = { data: [given[name] ?? settings[name].default].flat(9), dims: shape };
          value.data.every(isFinite) || fail(`${name} is ${value.data}`);
        }
        if (value) feeds[name] = value instanceof Tensor ? value : new Tensor(dtype, value.data, value.dims);
      }
      check(role, graph.inputs, feeds);
      sessions[role] ??= await ort.InferenceSession.create(await file(graph), { executionProviders, ...session?.(role, graph) });
      return sessions[role].run(feeds);
    };

    /** Run the steps of `chosen` in turn. Nothing of the trainer changes: `fresh` is the new state. */
    const train = async (chosen, batch, given, current) => {
      const fresh = {}, losses = {}, outputs = {};
      try {
        for (const entry of chosen) {
          const role = roleOf("step", entry), results = await run(role, batch, given, { ...current, ...fresh });
          for (const { name, role: kind, replaces } of graphs[role].outputs) {
            if (kind == "loss") [losses[entry]] = await numbers(results[name]);
            const into = replaces ? fresh : outputs, key = replaces ?? name;
            into[key]?.dispose();
            into[key] = results[name];
          }
          isFinite(losses[entry]) || fail(`the loss of ${entry} is ${losses[entry]}`);
        }
        return [{ loss: losses[chosen[0]], losses, outputs }, fresh];
      } catch (error) {
        dispose({ ...outputs, ...fresh });
        throw error;
      }
    };

    const replace = (fresh, steps) => {
      for (const { name } of kept.tensors) {
        if (!fresh[name]) continue;
        state[name]?.dispose(); // a buffer of a GPU is not collected
        state[name] = fresh[name];
      }
      trainer.steps = steps;
    };

    /** Return the state of the program. `initialize.onnx` makes what the file lacks, or all that it can. */
    const stored = async (seed = 0, all) => {
      const [found] = await readTensors(await file(kept), Tensor, kept.file), int = (value) => new Tensor("int64", [value], []);
      const made = { "random/key": int(seed), "random/step": int(0) };
      if (graphs.initialize && kept.tensors.some(({ name }) => all || !found[name])) {
        const results = await run("initialize", {}, {}, { ...found, ...made });
        for (const { name, replaces } of graphs.initialize.outputs) made[replaces] = results[name];
      }
      return check(kept.file, kept.tensors, all ? { ...found, ...made } : { ...made, ...found });
    };

    const methods = {
      async step(batch, given, entry) {
        const chosen = entry ? [entry] : manifest.phases || !entries[0] ? fail("name an entry: " + entries) : entries;
        const [result, fresh] = await train(chosen, batch, given, state);
        replace(fresh, trainer.steps + 1);
        return result;
      },
      async evaluate(batch, entry) {
        const role = roleOf("evaluate", entry), outputs = await run(role, batch);
        const [loss] = await numbers(outputs[graphs[role].outputs.find(({ role }) => role == "loss").name]);
        return { loss, outputs };
      },
      infer: (inputs) => run("infer", inputs),
      async initialize(seed) {
        replace(await stored(seed, true), 0);
      },
      checkpoint: () => writeTensors(state, { steps: trainer.steps }),
      async restore(bytes) {
        const [found, { steps = 0 }] = await readTensors(await join(bytes), Tensor, "the checkpoint"), what = "the checkpoint of another model";
        for (const name in found) state[name] || /^onward\//.test(name) || fail(`${what}: ${name}`); // of a run in Python
        replace(check(what, kept.tensors, found), steps);
      },
      async exportOnnx() {
        const weights = [];
        for (const { name, role } of graphs.infer.inputs) {
          const { type, dims } = state[name] ?? {}; // TensorProto: dims = 1, data_type = 2, name = 8, raw_data = 9
          weights.push(role == "state" && field(5, field(1, ...dims.map(varint)), varint(16), varint(TYPES.indexOf(type)),
            field(8, name), field(9, await state[name].getData())));
        }
        // ModelProto: graph = 7; GraphProto: initializer = 5, input = 11. Each weight is an initializer instead of an input.
        return join(...fields(await file(graphs.infer), (number, raw, graph) => number != 7 ? raw
          : field(7, ...fields(graph, (number, raw) => number == 11 && weights.shift() || raw))));
      },
      async selfTest() {
        if (!test) return false;
        const [batch] = await readTensors(await file(test), Tensor, test.file), before = await stored(), wrong = [];
        const compare = (name, found, needed, tolerance) => found.every((x, i) => Math.abs(x - needed[i]) <= tolerance)
          || wrong.push(`${name}: ${found}, needed ${needed}`);
        for (const entry in test.entries) {
          const needed = test.entries[entry], [{ loss, outputs }, fresh] = await train([entry], batch, {}, before);
          compare("loss", [loss], [needed.loss], needed.loss_tolerance);
          for (const name in needed.state) {
            const old = await numbers(before[name]), sums = [0, 0], { checksum, tolerance } = needed.state[name];
            (await numbers(fresh[name])).forEach((x, i) => {
              sums[0] += (x -= old[i]) * Math.cos(i);
              sums[1] += Math.abs(x);
            });
            compare(name, sums, checksum, tolerance);
          }
          dispose({ ...fresh, ...outputs });
        }
        return !wrong[0] || fail("self-test failed: " + wrong.join("; "));
      },
      async release() {
        dispose(state);
        for (const role in sessions) await sessions[role].release();
        sessions = 0;
      },
    };
    for (const name in methods) {
      trainer[name] = (...given) => { // after all that was asked for before
        const before = last, done = (async () => {
          await before;
          return sessions ? methods[name](...given) : fail("released");
        })();
        last = done.catch(() => {}); // who called has the error
        return done;
      };
    }
    trainer.manifest = manifest;
    trainer.state = state;
    replace(await stored(), 0);
    // Only the runtime that the program's numbers come from needs no proof.
    if (selfTest ?? !(ort.env?.versions.node && `${executionProviders ?? "cpu"}` == "cpu")) {
      try {
        await trainer.selfTest();
      } catch (error) {
        await trainer.release();
        throw error;
      }
    }
    return trainer;
  }
}

/** Return the JSON of a text whose first sha256 is that of itself, with zeros in its place (after `prefix`). */
const parse = async (what, bytes, prefix = "") => {
  const text = await new Blob([bytes]).text(), sum = /"sha256": ?"(\w+)/.exec(text)?.[1];
  return await digest(prefix, text.replace(sum, ZEROS)) == sum ? JSON.parse(text) : damaged(what);
};

const digest = async (...parts) => {
  const { subtle = fail("crypto.subtle needs https") } = crypto;
  return new Uint8Array(await subtle.digest("SHA-256", await join(...parts))).reduce((hex, byte) => hex + (byte + 256).toString(16).slice(1), "");
};

/** Every dimension that has a number, and every type, is as the manifest says. */
const check = (what, specs, tensors) => {
  const wrong = specs.flatMap(({ name, dtype, shape }) => {
    const { type = "missing", dims = [] } = tensors[name] ?? {}, found = `${name}: ${type}[${dims}]`;
    return found == `${name}: ${dtype}[${shape.map((size, i) => size === +size ? size : dims[i])}]` ? [] : `${found}, needed ${dtype}[${shape}]`;
  });
  return wrong[0] ? fail(what + ": " + wrong.join("; ")) : tensors;
};

/** The elements as numbers; without a Float16Array, onnxruntime gives the bits of float16. */
const numbers = async (tensor) => Array.from(await tensor.getData(), tensor.type != "float16" || globalThis.Float16Array ? Number : (bits) => {
  const exponent = bits >> 10 & 31;
  return exponent > 30 ? NaN : (1 - (bits >> 14 & 2)) * 2 ** ((exponent || 1) - 25) * ((exponent && 1024) + (bits & 1023));
});

/** Read a safetensors file of Onward, and check every bit of it: [tensors, data]. */
const readTensors = async (bytes, Tensor, what) => {
  const begin = 8 + (bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24), tensors = {};
  const { __metadata__: { onward }, ...header } = await parse(what, bytes.slice(8, begin), bytes.slice(0, 8));
  // Python writes NaN into the JSON of a run, where JSON has none.
  const { data, tensors: sums } = JSON.parse(onward.replace(/(?<=[:,[])(NaN|-?Infinity)/g, "null"));
  let end = begin;
  for (const name in header) {
    const { dtype, shape, data_offsets: [first, last] } = header[name], part = bytes.slice(begin + first, begin + last);
    const type = TYPES.find((type) => short(type) == dtype) ?? dtype;
    if (await digest(part) != sums[name]) damaged(`${name} of ${what}`);
    tensors[name] = new Tensor(type, new (type == "float16" ? Uint16Array : new Tensor(type, [], [0]).data.constructor)(part.buffer), shape);
    end += part.length;
  }
  return end == bytes.length ? [tensors, data] : damaged(what);
};

/** Write a safetensors file as Onward does: the sha256 of every tensor and of the header are in the header. */
const writeTensors = async (state, data) => {
  const tensors = {}, parts = [], header = {};
  let at = 0;
  for (const name in state) {
    const { type, dims: shape } = state[name], part = await state[name].getData();
    parts.push(part);
    tensors[name] = await digest(part);
    header[name] = { dtype: short(type), shape, data_offsets: [at, at += part.byteLength] };
  }
  let text = JSON.stringify({ __metadata__: { sha256: ZEROS, onward: JSON.stringify({ data, tensors }) }, ...header });
  text += " ".repeat(-new Blob([text]).size & 7);
  const size = Uint32Array.of(new Blob([text]).size, 0);
  return join(size, text.replace(ZEROS, await digest(size, text)), ...parts);
};

/** Return what `visit` gives for each field of a protobuf message: its number, all its bytes, its body. */
const fields = (bytes, visit) => {
  const found = [];
  for (let at = 0; at < bytes.length;) {
    const start = at, next = () => {
      let value = 0, shift = 0, byte;
      do {
        value |= ((byte = bytes[at++]) & 127) << shift;
        shift += 7;
      } while (byte > 127);
      return value;
    };
    // ModelProto and GraphProto have only plain numbers (wire type 0), which `next` reads, and what has a length.
    const tag = next(), size = next(), body = bytes.slice(at, at += tag & 7 && size);
    found.push(visit(tag >> 3, bytes.slice(start, at), body));
  }
  return found;
};
const field = (number, ...parts) => {
  const body = new Blob(parts);
  return new Blob([varint(number * 8 + 2), varint(body.size), body]);
};
const varint = (value) => {
  const bytes = [];
  for (; value > 127; value >>>= 7) bytes.push(value & 127 | 128);
  return Uint8Array.of(...bytes, value);
};

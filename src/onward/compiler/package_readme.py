"""The README of a compiled program: the training loop in four languages.

The loops read all names from the manifest, so they are the same for every program; `tests/e2e` runs them. A program
without training has no loop, and its README says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def readme(manifest: Mapping[str, Any]) -> str:
    """Return the README text for a manifest."""
    steps = [f"`{g['file']}`" for role, g in manifest["graphs"].items() if role.partition(":")[0] == "step"]
    rows = "\n".join(
        f"| `{s['name']}` | {s['dtype']} | {' × '.join(str(d) for d in s['shape']) or 'scalar'} |"
        for s in (*manifest["inputs"], *manifest["targets"])
    )
    if not steps:
        return _inference_readme(manifest, rows)
    in_turn = ", then to ".join(steps)
    settings = ", ".join(f"`{n}` (default {s['default']})" for n, s in manifest["settings"].items()) or "none"
    return f"""# {manifest["name"] or "A training program"}, compiled by Onward

Plain ONNX graphs (opset {manifest["opset"]}, IR {manifest["ir_version"]}): any ONNX runtime trains with them.
`manifest.json` says which output replaces which state; the loop is the same in every language:

1. read `state.safetensors` into a map from name to tensor, and add the defaults of the settings;
2. feed the batch and the state to {in_turn};
3. after each run, put every output with role `state` where `replaces` says; the output with role `loss` is the loss;
4. repeat. `infer.onnx` and `evaluate.onnx` take the same state.

A batch:

| input | type | shape |
|---|---|---|
{rows}

Settings that may be fed at any step: {settings}.

The programs below are complete, except for `batches`: an iterable of maps from the names above to tensors. Each prints
one loss per line.

ONNX Runtime 1.17 and 1.18 reuse memory that is still read, and gradients may be wrong without an error: with those two,
switch the memory pattern off (`enable_mem_pattern = False` in the session's options). Later versions are not affected.

## Python
```python
{_PYTHON}```

## JavaScript (onnxruntime-node; with onnxruntime-web `fetch` the files)
```js
{_JAVASCRIPT}```

## C# (Microsoft.ML.OnnxRuntime)
```csharp
{_CSHARP}```

## C++ (onnxruntime_cxx_api.h, and nlohmann/json for the manifest)
```cpp
{_CPP}```
"""


_PYTHON = """\
import json
import numpy as np
import onnxruntime
from pathlib import Path
from safetensors.numpy import load_file

manifest = json.loads(Path("manifest.json").read_text())
state = load_file(manifest["state"]["file"])
state |= {name: np.array(s["default"], s["dtype"]) for name, s in manifest["settings"].items()}
steps = [graph for role, graph in manifest["graphs"].items() if role.split(":")[0] == "step"]
sessions = [onnxruntime.InferenceSession(step["file"]) for step in steps]

for batch in batches:
    for step, session in zip(steps, sessions):
        known = {**state, **batch}
        feeds = {i["name"]: known[i["name"]] for i in step["inputs"]}
        results = session.run([o["name"] for o in step["outputs"]], feeds)
        for o, value in zip(step["outputs"], results):
            if o["role"] == "state":
                state[o["replaces"]] = value
            if o["role"] == "loss":
                print(float(value))
"""

_JAVASCRIPT = """\
import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-node";

const manifest = JSON.parse(readFileSync("manifest.json"));
const state = readTensors(readFileSync(manifest.state.file));
for (const [name, s] of Object.entries(manifest.settings))
  state[name] = new ort.Tensor(s.dtype, [s.default].flat(Infinity), s.shape);
const roles = Object.keys(manifest.graphs).filter((role) => role.split(":")[0] === "step");
const steps = roles.map((role) => manifest.graphs[role]);
for (const step of steps) step.session = await ort.InferenceSession.create(step.file);

for (const batch of batches) {
  for (const step of steps) {
    const results = await step.session.run(
      Object.fromEntries(step.inputs.map((i) => [i.name, batch[i.name] ?? state[i.name]])));
    for (const o of step.outputs) {
      if (o.role === "state") state[o.replaces] = results[o.name];
      if (o.role === "loss") console.log(results[o.name].data[0]);
    }
  }
}

function readTensors(bytes) {
  const kinds = { F32: ["float32", Float32Array], F64: ["float64", Float64Array], F16: ["float16", Uint16Array],
                  I64: ["int64", BigInt64Array], I32: ["int32", Int32Array], U8: ["uint8", Uint8Array],
                  BOOL: ["bool", Uint8Array] };
  const length = Number(bytes.readBigUInt64LE(0));
  const { __metadata__, ...header } = JSON.parse(bytes.subarray(8, 8 + length));
  return Object.fromEntries(Object.entries(header).map(([name, { dtype, shape, data_offsets: [first, last] }]) => {
    const [type, kind] = kinds[dtype];
    const copy = new Uint8Array(bytes.subarray(8 + length + first, 8 + length + last)).buffer;
    return [name, new ort.Tensor(type, new kind(copy), shape)];
  }));
}
"""

_CSHARP = """\
using System.Text.Json;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

var manifest = JsonDocument.Parse(File.ReadAllBytes("manifest.json")).RootElement;
var state = ReadTensors(File.ReadAllBytes(Text(manifest.GetProperty("state"), "file")));
foreach (var s in manifest.GetProperty("settings").EnumerateObject())
  state[s.Name] = OrtValue.CreateTensorValueFromMemory(
    new[] { s.Value.GetProperty("default").GetSingle() }, Array.Empty<long>());
var steps = manifest.GetProperty("graphs").EnumerateObject()
  .Where(g => g.Name.Split(':')[0] == "step").Select(g => g.Value).ToList();
var sessions = steps.Select(g => new InferenceSession(Text(g, "file"))).ToList();

foreach (Dictionary<string, OrtValue> batch in batches)
  foreach (var (step, session) in steps.Zip(sessions)) {
    var feeds = step.GetProperty("inputs").EnumerateArray().Select(i => Text(i, "name"))
      .ToDictionary(name => name, name => batch.TryGetValue(name, out var value) ? value : state[name]);
    var outputs = step.GetProperty("outputs").EnumerateArray().ToList();
    var results = session.Run(new RunOptions(), feeds, outputs.Select(o => Text(o, "name")).ToList());
    for (var k = 0; k < outputs.Count; k++) {
      if (Text(outputs[k], "role") == "loss") Console.WriteLine(results[k].GetTensorDataAsSpan<float>()[0]);
      if (Text(outputs[k], "role") == "state") {
        state[Text(outputs[k], "replaces")].Dispose();
        state[Text(outputs[k], "replaces")] = results[k];
      } else results[k].Dispose();
    }
  }

static string Text(JsonElement element, string key) => element.GetProperty(key).GetString()!;

static Dictionary<string, OrtValue> ReadTensors(byte[] bytes) {
  var kinds = new Dictionary<string, TensorElementType> {
    ["F32"] = TensorElementType.Float, ["F64"] = TensorElementType.Double, ["F16"] = TensorElementType.Float16,
    ["I64"] = TensorElementType.Int64, ["I32"] = TensorElementType.Int32, ["U8"] = TensorElementType.UInt8,
    ["BOOL"] = TensorElementType.Bool };
  var length = (int)BitConverter.ToInt64(bytes, 0);
  var found = new Dictionary<string, OrtValue>();
  foreach (var t in JsonDocument.Parse(bytes.AsMemory(8, length)).RootElement.EnumerateObject()) {
    if (t.Name == "__metadata__") continue;
    var shape = t.Value.GetProperty("shape").EnumerateArray().Select(d => d.GetInt64()).ToArray();
    var range = t.Value.GetProperty("data_offsets").EnumerateArray().Select(d => d.GetInt32()).ToArray();
    var kind = kinds[Text(t.Value, "dtype")];
    var value = OrtValue.CreateAllocatedTensorValue(OrtAllocator.DefaultInstance, kind, shape);
    bytes.AsSpan(8 + length + range[0], range[1] - range[0]).CopyTo(value.GetTensorMutableRawData());
    found[t.Name] = value;
  }
  return found;
}
"""

_CPP = """\
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <onnxruntime_cxx_api.h>
#include <string>
#include <vector>

using Tensors = std::map<std::string, Ort::Value>;

Ort::Value tensor(const std::string& kind, const std::vector<int64_t>& shape, const char* bytes, size_t size) {
  static const std::map<std::string, ONNXTensorElementDataType> kinds{
      {"F32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT}, {"F64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE},
      {"F16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16}, {"I64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},
      {"I32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32}, {"U8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8},
      {"BOOL", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL}};
  Ort::AllocatorWithDefaultOptions allocator;
  Ort::Value value = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), kinds.at(kind));
  if (size) std::memcpy(value.GetTensorMutableRawData(), bytes, size);
  return value;
}

Tensors readTensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), 8);
  std::string header(length, ' ');
  file.read(header.data(), static_cast<std::streamsize>(length));
  const std::string body(std::istreambuf_iterator<char>(file), {});
  Tensors found;
  const auto parsed = nlohmann::json::parse(header);
  for (auto& [name, t] : parsed.items()) {
    if (name == "__metadata__") continue;
    const size_t first = t["data_offsets"][0], last = t["data_offsets"][1];
    found.emplace(name, tensor(t["dtype"], t["shape"], body.data() + first, last - first));
  }
  return found;
}

void train(const std::vector<Tensors>& batches) {
  Ort::Env env;
  const auto manifest = nlohmann::json::parse(std::ifstream("manifest.json"));
  Tensors state = readTensors(manifest["state"]["file"]);
  for (auto& [name, s] : manifest["settings"].items()) {
    const float value = s["default"];
    state.insert_or_assign(name, tensor("F32", {}, reinterpret_cast<const char*>(&value), sizeof value));
  }
  std::vector<std::pair<nlohmann::json, Ort::Session>> steps;
  for (const std::string entry : manifest["entries"]) {
    const auto& graphs = manifest["graphs"];
    const auto& graph = graphs.contains("step") ? graphs["step"] : graphs["step:" + entry];
    const std::string file = graph["file"];
    steps.emplace_back(graph, Ort::Session(env, file.c_str(), Ort::SessionOptions{}));
  }
  const auto cpu = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeCPU);
  for (const Tensors& batch : batches) {
    for (auto& [step, session] : steps) {
      Ort::IoBinding binding(session);
      for (const auto& i : step["inputs"]) {
        const std::string name = i["name"];
        binding.BindInput(name.c_str(), batch.count(name) ? batch.at(name) : state.at(name));
      }
      for (const auto& o : step["outputs"]) binding.BindOutput(o["name"].get<std::string>().c_str(), cpu);
      session.Run(Ort::RunOptions{}, binding);
      auto results = binding.GetOutputValues();
      for (size_t k = 0; k < results.size(); ++k) {
        const auto& o = step["outputs"][k];
        if (o["role"] == "loss") std::cout << *results[k].GetTensorData<float>() << "\\n";
        if (o["role"] == "state") state.insert_or_assign(o["replaces"], std::move(results[k]));
      }
    }
  }
}
"""


def _inference_readme(manifest: Mapping[str, Any], rows: str) -> str:
    return f"""# {manifest["name"] or "A model"}, compiled by Onward

One plain ONNX graph, `infer.onnx` (opset {manifest["opset"]}, IR {manifest["ir_version"]}). The model has no
training information, so there is no step and no state; `onward make-trainable` adds a loss and an optimizer.

| input | type | shape |
|---|---|---|
{rows}

```python
import onnxruntime

session = onnxruntime.InferenceSession("infer.onnx")
outputs = session.run(None, batch)          # a dict from input to array
```
"""

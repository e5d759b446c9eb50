"""The README of a compiled program: the training loop in four languages, with the program's own names filled in.

A program without training has no loop, and its README says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def readme(manifest: Mapping[str, Any]) -> str:
    """Return the README text for a manifest."""
    names = [s["name"] for s in (*manifest["inputs"], *manifest["targets"])]
    batch = ", ".join(f'"{n}"' for n in names)
    steps = {role: g["file"] for role, g in manifest["graphs"].items() if role.startswith("step")}
    rows = "\n".join(
        f"| `{s['name']}` | {s['dtype']} | {' × '.join(str(d) for d in s['shape']) or 'scalar'} |"
        for s in (*manifest["inputs"], *manifest["targets"])
    )
    if not steps:
        return _inference_readme(manifest, rows)
    role, step = next(iter(steps.items()))
    in_turn = f"\nOne iteration runs {', '.join(f'`{f}`' for f in steps.values())} in turn.\n" if len(steps) > 1 else ""
    settings = ", ".join(f"`{n}` (default {s['default']})" for n, s in manifest["settings"].items()) or "none"
    return f"""# {manifest["name"] or "A training program"}, compiled by Onward

Plain ONNX graphs (opset {manifest["opset"]}, IR {manifest["ir_version"]}): any ONNX runtime trains with them.
`manifest.json` says which output replaces which state; the loop is the same in every language:

1. read `state.safetensors` into a map from name to tensor;
2. feed the batch, the state and the settings to `{step}`;
3. for each output with role `state`, put it where `replaces` says; the output `{manifest["loss"]}` is the loss;
4. repeat. `infer.onnx` and `evaluate.onnx` take the same state.
{in_turn}
A batch:

| input | type | shape |
|---|---|---|
{rows}

Settings that may be fed at any step: {settings}.

## Python
```python
import json, onnxruntime
import numpy as np
from pathlib import Path
from safetensors.numpy import load_file

manifest = json.loads(Path("manifest.json").read_text())
state = load_file("state.safetensors")
state.update({{n: np.array(s["default"], s["dtype"]) for n, s in manifest["settings"].items()}})
session = onnxruntime.InferenceSession("{step}")
outputs = [o["name"] for o in manifest["graphs"]["{role}"]["outputs"]]
known = {{i.name for i in session.get_inputs()}}
for batch in batches:                       # a dict with {batch}
    feeds = {{k: v for k, v in {{**state, **batch}}.items() if k in known}}
    results = dict(zip(outputs, session.run(outputs, feeds)))
    for o in manifest["graphs"]["{role}"]["outputs"]:
        if o["role"] == "state":
            state[o["replaces"]] = results[o["name"]]
    print(results["{manifest["loss"]}"])
```

## JavaScript (onnxruntime-node or onnxruntime-web)
```js
const step = manifest.graphs["{role}"];
const session = await ort.InferenceSession.create(step.file);
for (const batch of batches) {{              // {{ {batch} }} as ort.Tensor
  const feeds = {{}};
  for (const i of step.inputs) feeds[i.name] = batch[i.name] ?? state[i.name] ?? settings[i.name];
  const results = await session.run(feeds);
  for (const o of step.outputs) if (o.role === "state") state[o.replaces] = results[o.name];
  console.log(results["{manifest["loss"]}"].data[0]);
}}
```

## C#
```csharp
using var session = new InferenceSession(step.File);
foreach (var batch in batches) {{            // Dictionary<string, OrtValue> with {batch}
  var feeds = step.Inputs.ToDictionary(i => i.Name, i => batch.TryGetValue(i.Name, out var v) ? v : state[i.Name]);
  var names = step.Outputs.Select(o => o.Name).ToList();
  var results = session.Run(new RunOptions(), feeds, names);
  for (int k = 0; k < names.Count; k++)
    if (step.Outputs[k].Role == "state") state[step.Outputs[k].Replaces] = results[k];
}}
```

## C++
```cpp
Ort::Session session(env, "{step}", options);
for (auto& batch : batches) {{               // std::map<std::string, Ort::Value> with {batch}
  std::vector<Ort::Value> inputs;
  for (auto& i : step.inputs) inputs.push_back(batch.count(i.name) ? view(batch[i.name]) : view(state[i.name]));
  auto results = session.Run(run, inputNames, inputs.data(), inputs.size(), outputNames, step.outputs.size());
  for (size_t k = 0; k < results.size(); ++k)
    if (step.outputs[k].role == "state") state[step.outputs[k].replaces] = std::move(results[k]);
}}
```
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

// Train a program that Onward compiled, with the C++ API of ONNX Runtime (1.17 or newer) and nlohmann/json. C++17.
//
//   c++ -std=c++17 -O2 train.cpp -o train -lonnxruntime
//   ./train PROGRAM BATCHES.safetensors OUT [STATE.safetensors]
//
// BATCHES holds one tensor per input and batch, named "<batch>/<input>". Without STATE, training starts from the state
// of the program. Prints the loss of each step and, last, that of the last batch in inference mode. Writes to the
// folder OUT: state.safetensors (to go on with, here or in Python), outputs.safetensors (what the model says about the
// last batch) and model.onnx (the inference model with the trained weights).
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <onnxruntime_cxx_api.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using Json = nlohmann::ordered_json;  // the graphs of several training entries are in the order of one iteration
using Tensors = std::map<std::string, Ort::Value>;

struct Kind {
  const char *stored, *numpy;
  ONNXTensorElementDataType type;
  size_t size;
};
const Kind kinds[] = {
    {"F32", "float32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4},
    {"F64", "float64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8},
    {"F16", "float16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2},
    {"BF16", "bfloat16", ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, 2},
    {"I64", "int64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8},
    {"I32", "int32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4},
    {"I16", "int16", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, 2},
    {"I8", "int8", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1},
    {"U8", "uint8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1},
    {"BOOL", "bool", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1},
};

template <class Fits>
const Kind& kind_of(Fits fits) {
  for (const Kind& kind : kinds)
    if (fits(kind)) return kind;
  throw std::runtime_error("an element type that a safetensors file has no name for");
}

// ---------------------------------------------------------------- files

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

Ort::Value tensor(const Kind& kind, const std::vector<int64_t>& shape) {
  Ort::AllocatorWithDefaultOptions allocator;
  return Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), kind.type);
}

std::string_view bytes_of(const Ort::Value& value) {
  const auto info = value.GetTensorTypeAndShapeInfo();
  const Kind& kind = kind_of([&](const Kind& k) { return k.type == info.GetElementType(); });
  return {static_cast<const char*>(value.GetTensorRawData()), info.GetElementCount() * kind.size};
}

Tensors read_tensors(const std::string& path) {
  const std::string file = read_file(path);
  uint64_t length = 0;
  if (file.size() >= 8) std::memcpy(&length, file.data(), 8);
  if (file.size() < 8 || length > file.size() - 8) throw std::runtime_error(path + " is not a safetensors file");
  const std::string_view body = std::string_view(file).substr(8 + length);
  Tensors found;
  const Json header = Json::parse(file.substr(8, length));
  for (const auto& [name, t] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t first = t.at("data_offsets").at(0), last = t.at("data_offsets").at(1);
    const Kind& kind = kind_of([&, &t = t](const Kind& k) { return t.at("dtype") == k.stored; });
    Ort::Value value = tensor(kind, t.at("shape"));
    const size_t size = bytes_of(value).size();
    if (first > last || last > body.size() || last - first != size) throw std::runtime_error(path + " is damaged");
    if (size) std::memcpy(value.GetTensorMutableRawData(), body.data() + first, size);
    found.emplace(name, std::move(value));
  }
  return found;
}

void write_tensors(const std::string& path, const Tensors& tensors) {
  Json header = Json::object();
  std::string body;
  for (const auto& [name, value] : tensors) {
    const auto info = value.GetTensorTypeAndShapeInfo();
    const Kind& kind = kind_of([&](const Kind& k) { return k.type == info.GetElementType(); });
    const size_t first = body.size();
    body += bytes_of(value);
    header[name] = {{"dtype", kind.stored}, {"shape", info.GetShape()}, {"data_offsets", {first, body.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  write_file(path, std::string(reinterpret_cast<const char*>(&length), 8) + text + body);
}

// ---------------------------------------------------------------- settings: nested lists of numbers

void fill(const Json& number, const Kind& kind, char*& to) {
  if (number.is_array()) {
    for (const Json& item : number) fill(item, kind, to);
    return;
  }
  const auto put = [&](auto value) { std::memcpy(to, &value, sizeof value); };
  switch (kind.type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: put(number.get<float>()); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: put(number.get<double>()); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: put(number.get<int64_t>()); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: put(number.get<int32_t>()); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: put(number.get<bool>()); break;
    default: throw std::runtime_error(std::string("a setting of element type ") + kind.numpy);
  }
  to += kind.size;
}

Tensors read_settings(const Json& manifest) {
  Tensors found;
  for (const auto& [name, s] : manifest.at("settings").items()) {
    const Kind& kind = kind_of([&, &s = s](const Kind& k) { return s.at("dtype") == k.numpy; });
    Ort::Value value = tensor(kind, s.at("shape"));
    char* data = static_cast<char*>(value.GetTensorMutableRawData());
    fill(s.at("default"), kind, data);
    found.emplace(name, std::move(value));
  }
  return found;
}

// ---------------------------------------------------------------- graphs

struct Graph {
  Json about;  // what the manifest says
  Ort::Session session;

  Graph(Ort::Env& env, const std::string& folder, const Json& said)
      : about(said), session(env, (folder + "/" + said.at("file").get<std::string>()).c_str(), options()) {}

  static Ort::SessionOptions options() {
    Ort::SessionOptions made;
    made.DisableMemPattern();  // 1.17 and 1.18 reuse memory that is still read
    return made;
  }

  // Run: new state goes to where `replaces` says, other outputs to `outputs`; return the loss.
  float run(const Tensors& batch, const Tensors& settings, Tensors& state, Tensors& outputs) {
    Ort::IoBinding binding(session);
    for (const Json& i : about.at("inputs")) {
      const std::string name = i.at("name");
      const Tensors* source = nullptr;
      for (const Tensors* known : {&batch, &settings, static_cast<const Tensors*>(&state)})
        if (!source && known->count(name)) source = known;
      if (!source) throw std::runtime_error("no value for input " + name);
      binding.BindInput(name.c_str(), source->at(name));
    }
    const auto cpu = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeCPU);
    for (const Json& o : about.at("outputs")) binding.BindOutput(o.at("name").get<std::string>().c_str(), cpu);
    session.Run(Ort::RunOptions{}, binding);
    auto results = binding.GetOutputValues();
    float loss = 0;
    for (size_t k = 0; k < results.size(); ++k) {
      const Json& o = about.at("outputs").at(k);
      if (o.at("role") == "loss") loss = *results[k].GetTensorData<float>();
      Tensors& to = o.at("role") == "state" ? state : outputs;
      to.insert_or_assign(o.at(o.at("role") == "state" ? "replaces" : "name"), std::move(results[k]));
    }
    return loss;
  }
};

// ---------------------------------------------------------------- the inference model with its weights

void put_number(std::string& to, uint64_t number) {
  for (; number >= 0x80; number >>= 7) to += static_cast<char>(number | 0x80);
  to += static_cast<char>(number);
}

void put_field(std::string& to, unsigned field, std::string_view data) {
  put_number(to, field << 3 | 2);
  put_number(to, data.size());
  to += data;
}

struct Field {
  unsigned number;
  std::string_view whole, data;  // with and without its tag and length
};

// Take the first field off a protobuf message.
Field take_field(std::string_view& message) {
  const std::string_view start = message;
  const auto take = [&](size_t size) {
    if (size > message.size()) throw std::runtime_error("infer.onnx is cut off");
    const std::string_view data = message.substr(0, size);
    message.remove_prefix(size);
    return data;
  };
  const auto take_number = [&] {
    uint64_t number = 0;
    for (int shift = 0;; shift += 7) {
      const unsigned char byte = static_cast<unsigned char>(take(1)[0]);
      number |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (!(byte & 0x80)) return number;
    }
  };
  const uint64_t tag = take_number();
  std::string_view data;
  if ((tag & 7) == 0) take_number();
  else if ((tag & 7) == 1) take(8);
  else if ((tag & 7) == 5) take(4);
  else data = take(take_number());
  return {static_cast<unsigned>(tag >> 3), start.substr(0, start.size() - message.size()), data};
}

std::string exported(const std::string& file, const Json& about, const Tensors& state) {
  const auto is_state = [&](std::string_view value_info) {  // the name of a ValueInfoProto is its field 1
    while (!value_info.empty()) {
      const Field field = take_field(value_info);
      if (field.number != 1) continue;
      for (const Json& i : about.at("inputs"))
        if (i.at("role") == "state" && i.at("name") == field.data) return true;
    }
    return false;
  };
  std::string model, graph;
  for (std::string_view rest = file; !rest.empty();) {
    Field field = take_field(rest);
    if (field.number != 7) model += field.whole;  // 7: the graph
    else
      while (!field.data.empty()) {
        const Field inner = take_field(field.data);
        if (inner.number != 11 || !is_state(inner.data)) graph += inner.whole;  // 11: an input
      }
  }
  for (const Json& i : about.at("inputs")) {
    if (i.at("role") != "state") continue;
    const Ort::Value& value = state.at(i.at("name"));
    const auto info = value.GetTensorTypeAndShapeInfo();
    std::string made;
    for (const int64_t size : info.GetShape()) put_number(made, 1 << 3), put_number(made, static_cast<uint64_t>(size));
    put_number(made, 2 << 3), put_number(made, info.GetElementType());
    put_field(made, 8, i.at("name").get<std::string>());
    put_field(made, 9, bytes_of(value));
    put_field(graph, 5, made);  // 5: an initializer
  }
  put_field(model, 7, graph);
  return model;
}

// ---------------------------------------------------------------- the loop

void train(const std::string& folder, const std::string& data, const std::string& out, const char* start) {
  Ort::Env env;
  const Json manifest = Json::parse(read_file(folder + "/manifest.json"));
  const Json& graphs = manifest.at("graphs");
  const Tensors settings = read_settings(manifest);
  Tensors state = read_tensors(start ? start : folder + "/" + manifest.at("state").at("file").get<std::string>());
  std::map<unsigned long, Tensors> batches;
  for (auto& [name, value] : read_tensors(data)) {
    const size_t slash = name.find('/');
    batches[std::stoul(name.substr(0, slash))].emplace(name.substr(slash + 1), std::move(value));
  }
  if (batches.empty()) throw std::runtime_error(data + " holds no batch");

  std::vector<Graph> steps;
  for (const auto& [role, graph] : graphs.items())
    if (role.substr(0, role.find(':')) == "step") steps.emplace_back(env, folder, graph);
  Tensors outputs;
  for (const auto& [number, batch] : batches)
    for (Graph& step : steps) std::printf("%.9g\n", static_cast<double>(step.run(batch, settings, state, outputs)));

  const Tensors& last = batches.rbegin()->second;
  Graph evaluate(env, folder, graphs.at("evaluate")), infer(env, folder, graphs.at("infer"));
  std::printf("%.9g\n", static_cast<double>(evaluate.run(last, settings, state, outputs)));
  outputs.clear();
  infer.run(last, settings, state, outputs);

  write_tensors(out + "/outputs.safetensors", outputs);
  write_tensors(out + "/state.safetensors", state);
  const std::string file = read_file(folder + "/" + infer.about.at("file").get<std::string>());
  write_file(out + "/model.onnx", exported(file, infer.about, state));
}

int main(int argc, char** argv) {
  try {
    if (argc < 4) throw std::runtime_error("usage: train PROGRAM BATCHES.safetensors OUT [STATE.safetensors]");
    train(argv[1], argv[2], argv[3], argc > 4 ? argv[4] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

// Train a program that Onward compiled, with the C API of ONNX Runtime (1.17 or newer) and nothing else.
//
//   cc -std=c99 -O2 train.c -o train -lonnxruntime
//   ./train PROGRAM BATCHES.safetensors OUT [STATE.safetensors]
//
// BATCHES holds one tensor per input and batch, named "<batch>/<input>". Without STATE, training starts from the state
// of the program. Prints the loss of each step and, last, that of the last batch in inference mode. Writes to the
// folder OUT: state.safetensors (to go on with, here or in Python), outputs.safetensors (what the model says about the
// last batch) and model.onnx (the inference model with the trained weights).
#include <onnxruntime_c_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const OrtApi *ort;
static OrtAllocator *allocator;

static void fail(const char *what, const char *detail) {
  fprintf(stderr, "error: %s: %s\n", what, detail);
  exit(1);
}

static void check(OrtStatus *status) {
  if (status) fail("ONNX Runtime", ort->GetErrorMessage(status));
}

static void *grow(void *old, size_t size) {
  void *memory = realloc(old, size ? size : 1);
  if (!memory) fail("memory", "there is not enough");
  return memory;
}

// ---------------------------------------------------------------- bytes and files

typedef struct {
  char *data;
  size_t size;
} Bytes;

static void append(Bytes *to, const void *data, size_t size) {
  to->data = grow(to->data, to->size + size + 1);
  if (size) memcpy(to->data + to->size, data, size);
  to->size += size;
  to->data[to->size] = 0;
}

static void text(Bytes *to, const char *words) { append(to, words, strlen(words)); }

static char *join(const char *folder, const char *name) {
  Bytes path = {0};
  text(&path, folder), text(&path, "/"), text(&path, name);
  return path.data;
}

static Bytes read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) fail("cannot read", path);
  Bytes found = {0};
  char part[1 << 16];
  append(&found, "", 0);
  for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) append(&found, part, n);
  fclose(file);
  return found;
}

static void write_file(const char *path, Bytes bytes) {
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(bytes.data, 1, bytes.size, file) != bytes.size || fclose(file)) fail("cannot write", path);
}

// ---------------------------------------------------------------- JSON

typedef struct Json {
  char kind;  // one of { [ " and 0 for numbers and words
  char *key, *text;
  struct Json *child, *next;
} Json;

static unsigned hexadecimal(const char *digits) {
  unsigned number = 0;
  if (sscanf(digits, "%4x", &number) != 1) fail("JSON", "a wrong escape");
  return number;
}

static char *parse_string(const char **at) {
  Bytes found = {0};
  append(&found, "", 0);
  for (++*at; **at != '"'; ++*at) {
    if (!**at) fail("JSON", "a string has no end");
    if (**at != '\\') {
      append(&found, *at, 1);
      continue;
    }
    const char *plain = "\"\"\\\\//b\bf\fn\nr\rt\t", *escape;
    if (*++*at != 'u') {
      for (escape = plain; *escape && *escape != **at; escape += 2) {}
      if (!*escape) fail("JSON", "a wrong escape");
      append(&found, escape + 1, 1);
      continue;
    }
    unsigned long c = hexadecimal(*at + 1);
    *at += 4;
    if (c >= 0xD800 && c < 0xDC00 && (*at)[1] == '\\' && (*at)[2] == 'u') {
      c = 0x10000 + ((c - 0xD800) << 10) + (hexadecimal(*at + 3) - 0xDC00);
      *at += 6;
    }
    char utf8[4];
    int length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, c >>= 6) utf8[i] = (char)(0x80 | (c & 0x3F));
    utf8[0] = (char)(length == 1 ? c : (0xF00 >> length & 0xF0) | c);
    append(&found, utf8, (size_t)length);
  }
  ++*at;
  return found.data;
}

static const char *skip(const char **at) {
  while (**at && strchr(" \t\r\n,:", **at)) ++*at;
  return *at;
}

static Json *parse(const char **at) {
  Json *found = grow(NULL, sizeof *found);
  *found = (Json){.kind = *skip(at)};
  if (found->kind == '{' || found->kind == '[') {
    const char end = found->kind == '{' ? '}' : ']';
    Json **last = &found->child;
    for (++*at; *skip(at) != end; last = &(*last)->next) {
      if (!**at) fail("JSON", "the text is cut off");
      char *key = end == '}' ? parse_string(at) : NULL;
      *last = parse(at);
      (*last)->key = key;
    }
    ++*at;
  } else if (found->kind == '"') {
    found->text = parse_string(at);
  } else {
    Bytes word = {0};
    const size_t length = strcspn(*at, " \t\r\n,:]}");
    append(&word, *at, length);
    *found = (Json){.text = word.data};
    *at += length;
  }
  return found;
}

static Json *get(const Json *object, const char *key) {
  for (Json *item = object->child; item; item = item->next)
    if (item->key && !strcmp(item->key, key)) return item;
  return NULL;
}

static const char *word(const Json *object, const char *key) {
  const Json *found = get(object, key);
  if (!found || !found->text) fail("the manifest lacks", key);
  return found->text;
}

// ---------------------------------------------------------------- tensors by name

static const struct {
  const char *stored, *numpy;
  ONNXTensorElementDataType type;
  size_t size;
} kinds[] = {
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
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct {
  size_t count;
  struct {
    const char *name;
    OrtValue *value;
  } *items;
} Tensors;

static OrtValue *find(const Tensors *tensors, const char *name) {
  for (size_t i = 0; i < tensors->count; i++)
    if (!strcmp(tensors->items[i].name, name)) return tensors->items[i].value;
  return NULL;
}

static void put(Tensors *tensors, const char *name, OrtValue *value) {
  for (size_t i = 0; i < tensors->count; i++)
    if (!strcmp(tensors->items[i].name, name)) {
      ort->ReleaseValue(tensors->items[i].value);
      tensors->items[i].value = value;
      return;
    }
  tensors->items = grow(tensors->items, (tensors->count + 1) * sizeof *tensors->items);
  tensors->items[tensors->count].name = name;
  tensors->items[tensors->count++].value = value;
}

static size_t read_shape(const Json *dimensions, int64_t *shape) {
  size_t rank = 0;
  for (const Json *d = dimensions->child; d; d = d->next) {
    if (rank == 16) fail("shape", "it has more than 16 dimensions");
    shape[rank++] = strtoll(d->text, NULL, 10);
  }
  return rank;
}

static void *data_of(OrtValue *value) {
  void *data;
  check(ort->GetTensorMutableData(value, &data));
  return data;
}

static Tensors read_tensors(const char *path) {
  const Bytes file = read_file(path);
  uint64_t length = 0;
  if (file.size >= 8) memcpy(&length, file.data, 8);
  if (file.size < 8 || length > file.size - 8) fail("not a safetensors file", path);
  Bytes header = {0};
  append(&header, file.data + 8, length);
  const char *at = header.data, *body = file.data + 8 + length;
  Tensors found = {0};
  for (const Json *t = parse(&at)->child; t; t = t->next) {
    if (!strcmp(t->key, "__metadata__")) continue;
    int64_t shape[16];
    const size_t rank = read_shape(get(t, "shape"), shape);
    const Json *range = get(t, "data_offsets")->child;
    const size_t first = strtoull(range->text, NULL, 10), last = strtoull(range->next->text, NULL, 10);
    size_t k = 0, size;
    while (k < KINDS && strcmp(kinds[k].stored, word(t, "dtype"))) k++;
    if (k == KINDS) fail("unknown element type", word(t, "dtype"));
    size = kinds[k].size;
    for (size_t i = 0; i < rank; i++) size *= (size_t)shape[i];
    if (first > last || last > file.size - 8 - length || last - first != size) fail("damaged file", path);
    OrtValue *value;
    check(ort->CreateTensorAsOrtValue(allocator, shape, rank, kinds[k].type, &value));
    if (size) memcpy(data_of(value), body + first, size);
    put(&found, t->key, value);
  }
  free(file.data);
  return found;
}

typedef struct {
  size_t kind, rank, size;  // size in bytes
  int64_t shape[16];
} Description;

static Description describe(const OrtValue *value) {
  Description found = {0};
  OrtTensorTypeAndShapeInfo *info;
  ONNXTensorElementDataType type;
  check(ort->GetTensorTypeAndShape(value, &info));
  check(ort->GetTensorElementType(info, &type));
  check(ort->GetDimensionsCount(info, &found.rank));
  if (found.rank > 16) fail("shape", "it has more than 16 dimensions");
  check(ort->GetDimensions(info, found.shape, found.rank));
  check(ort->GetTensorShapeElementCount(info, &found.size));
  ort->ReleaseTensorTypeAndShapeInfo(info);
  while (found.kind < KINDS && kinds[found.kind].type != type) found.kind++;
  if (found.kind == KINDS) fail("element type", "a safetensors file has no name for it");
  found.size *= kinds[found.kind].size;
  return found;
}

static void write_tensors(const char *path, const Tensors *tensors) {
  Bytes header = {0}, body = {0}, file = {0};
  char number[64];
  text(&header, "{");
  for (size_t i = 0; i < tensors->count; i++) {
    const Description d = describe(tensors->items[i].value);
    text(&header, i ? ",\"" : "\"");
    for (const char *c = tensors->items[i].name; *c; c++) {
      if (*c == '"' || *c == '\\') text(&header, "\\");
      append(&header, c, 1);
    }
    text(&header, "\":{\"dtype\":\""), text(&header, kinds[d.kind].stored), text(&header, "\",\"shape\":[");
    for (size_t k = 0; k < d.rank; k++) {
      snprintf(number, sizeof number, "%s%lld", k ? "," : "", (long long)d.shape[k]);
      text(&header, number);
    }
    snprintf(number, sizeof number, "],\"data_offsets\":[%zu,%zu]}", body.size, body.size + d.size);
    text(&header, number);
    append(&body, data_of(tensors->items[i].value), d.size);
  }
  text(&header, "}");
  while (header.size % 8) text(&header, " ");
  const uint64_t length = header.size;
  append(&file, &length, 8), append(&file, header.data, header.size), append(&file, body.data, body.size);
  write_file(path, file);
  free(header.data), free(body.data), free(file.data);
}

// ---------------------------------------------------------------- settings: nested lists of numbers

static void fill(const Json *number, size_t kind, char **to) {
  if (number->kind == '[') {
    for (const Json *item = number->child; item; item = item->next) fill(item, kind, to);
    return;
  }
  const double real = !strcmp(number->text, "true") ? 1 : strtod(number->text, NULL);
  const float single = (float)real;
  const int64_t whole = !strcmp(number->text, "true") ? 1 : strtoll(number->text, NULL, 10);
  const int32_t narrow = (int32_t)whole;
  const char small = (char)whole;
  switch (kinds[kind].type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: memcpy(*to, &single, 4); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: memcpy(*to, &real, 8); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: memcpy(*to, &whole, 8); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: memcpy(*to, &narrow, 4); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: memcpy(*to, &small, 1); break;
    default: fail("a setting has the element type", kinds[kind].numpy);
  }
  *to += kinds[kind].size;
}

static Tensors read_settings(const Json *manifest) {
  Tensors found = {0};
  for (const Json *s = get(manifest, "settings")->child; s; s = s->next) {
    int64_t shape[16];
    const size_t rank = read_shape(get(s, "shape"), shape);
    size_t k = 0;
    while (k < KINDS && strcmp(kinds[k].numpy, word(s, "dtype"))) k++;
    if (k == KINDS) fail("a setting has the element type", word(s, "dtype"));
    OrtValue *value;
    check(ort->CreateTensorAsOrtValue(allocator, shape, rank, kinds[k].type, &value));
    char *data = data_of(value);
    fill(get(s, "default"), k, &data);
    put(&found, s->key, value);
  }
  return found;
}

// ---------------------------------------------------------------- graphs

typedef struct {
  const Json *about;  // what the manifest says
  OrtSession *session;
} Graph;

static Graph open_graph(OrtEnv *env, const char *folder, const Json *about) {
  Graph graph = {about, NULL};
  OrtSessionOptions *options;
  check(ort->CreateSessionOptions(&options));
  check(ort->DisableMemPattern(options));  // 1.17 and 1.18 reuse memory that is still read
  char *path = join(folder, word(about, "file"));
  check(ort->CreateSession(env, path, options, &graph.session));
  ort->ReleaseSessionOptions(options);
  free(path);
  return graph;
}

static size_t count(const Json *list) {
  size_t n = 0;
  for (const Json *item = list->child; item; item = item->next) n++;
  return n;
}

// Run a graph: new state goes to where `replaces` says, other outputs to `outputs` if it is given; returns the loss.
static float run(const Graph *graph, const Tensors *batch, const Tensors *settings, Tensors *state, Tensors *outputs) {
  const Json *wanted = get(graph->about, "inputs"), *given = get(graph->about, "outputs"), *item;
  const size_t in = count(wanted), out = count(given);
  const char **names = grow(NULL, (in + out) * sizeof *names);
  OrtValue **values = grow(NULL, (in + out) * sizeof *values);
  size_t k = 0;
  for (item = wanted->child; item; item = item->next, k++) {
    names[k] = word(item, "name");
    values[k] = find(batch, names[k]);
    if (!values[k]) values[k] = find(settings, names[k]);
    if (!values[k]) values[k] = find(state, names[k]);
    if (!values[k]) fail("no value for input", names[k]);
  }
  for (item = given->child; item; item = item->next, k++) names[k] = word(item, "name"), values[k] = NULL;
  check(ort->Run(graph->session, NULL, names, (const OrtValue *const *)values, in, names + in, out, values + in));
  float loss = 0;
  for (item = given->child, k = in; item; item = item->next, k++) {
    if (!strcmp(word(item, "role"), "loss")) loss = *(float *)data_of(values[k]);
    if (!strcmp(word(item, "role"), "state")) put(state, word(item, "replaces"), values[k]);
    else if (outputs) put(outputs, names[k], values[k]);
    else ort->ReleaseValue(values[k]);
  }
  free(names), free(values);
  return loss;
}

// ---------------------------------------------------------------- the inference model with its weights

static void put_number(Bytes *to, uint64_t number) {
  for (; number >= 0x80; number >>= 7) append(to, &(char){(char)(number | 0x80)}, 1);
  append(to, &(char){(char)number}, 1);
}

static uint64_t take_number(const char **at, const char *end) {
  uint64_t number = 0;
  for (int shift = 0; *at < end && shift < 64; shift += 7) {
    const unsigned char byte = (unsigned char)*(*at)++;
    number |= (uint64_t)(byte & 0x7F) << shift;
    if (!(byte & 0x80)) return number;
  }
  fail("model.onnx", "a number is cut off");
  return 0;
}

static void put_field(Bytes *to, unsigned field, const void *data, size_t size) {
  put_number(to, field << 3 | 2), put_number(to, size), append(to, data, size);
}

// Take one field off a protobuf message; a field with bytes is in `data`. Returns its number.
static unsigned take_field(const char **at, const char *end, Bytes *data) {
  const uint64_t tag = take_number(at, end);
  *data = (Bytes){0};
  if ((tag & 7) == 0) take_number(at, end);
  else if ((tag & 7) == 1) *at += 8;
  else if ((tag & 7) == 5) *at += 4;
  else {
    data->size = take_number(at, end);
    data->data = (char *)*at;
    if (data->size > (size_t)(end - *at)) fail("model.onnx", "a field is cut off");
    *at += data->size;
  }
  return (unsigned)(tag >> 3);
}

static int is_state(const Json *about, Bytes value_info) {  // the name of a ValueInfoProto is its field 1
  Bytes name;
  const char *at = value_info.data, *end = at + value_info.size;
  while (at < end && take_field(&at, end, &name) != 1) {}
  for (const Json *i = get(about, "inputs")->child; i; i = i->next)
    if (!strcmp(word(i, "role"), "state") && strlen(word(i, "name")) == name.size &&
        !memcmp(word(i, "name"), name.data, name.size))
      return 1;
  return 0;
}

static void export_model(const char *from, const char *to, const Json *about, const Tensors *state) {
  const Bytes file = read_file(from);
  const char *at = file.data, *end = at + file.size, *start;
  Bytes model = {0}, graph = {0}, part, inner;
  while (at < end) {
    start = at;
    if (take_field(&at, end, &part) != 7) {  // 7: the graph
      append(&model, start, (size_t)(at - start));
      continue;
    }
    for (const char *in = part.data, *stop = in + part.size; in < stop;) {
      start = in;
      if (take_field(&in, stop, &inner) != 11 || !is_state(about, inner))  // 11: an input
        append(&graph, start, (size_t)(in - start));
    }
  }
  for (const Json *i = get(about, "inputs")->child; i; i = i->next) {
    if (strcmp(word(i, "role"), "state")) continue;
    OrtValue *value = find(state, word(i, "name"));
    const Description d = describe(value);
    Bytes tensor = {0};
    for (size_t k = 0; k < d.rank; k++) put_number(&tensor, 1 << 3), put_number(&tensor, (uint64_t)d.shape[k]);
    put_number(&tensor, 2 << 3), put_number(&tensor, kinds[d.kind].type);
    put_field(&tensor, 8, word(i, "name"), strlen(word(i, "name")));
    put_field(&tensor, 9, data_of(value), d.size);
    put_field(&graph, 5, tensor.data, tensor.size);  // 5: an initializer
    free(tensor.data);
  }
  put_field(&model, 7, graph.data, graph.size);
  write_file(to, model);
  free(file.data), free(model.data), free(graph.data);
}

// ---------------------------------------------------------------- the loop

int main(int argc, char **argv) {
  if (argc < 4) fail("usage", "train PROGRAM BATCHES.safetensors OUT [STATE.safetensors]");
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (!ort) fail("ONNX Runtime", "the library is older than the header");
  OrtEnv *env;
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "onward", &env));
  check(ort->GetAllocatorWithDefaultOptions(&allocator));

  const char *at = read_file(join(argv[1], "manifest.json")).data;
  const Json *manifest = parse(&at), *graphs = get(manifest, "graphs");
  const Tensors settings = read_settings(manifest), batches = read_tensors(argv[2]);
  Tensors state = read_tensors(argc > 4 ? argv[4] : join(argv[1], word(get(manifest, "state"), "file")));

  Graph *steps = NULL;
  size_t entries = 0;
  for (const Json *g = graphs->child; g; g = g->next)
    if (!strncmp(g->key, "step", 4) && (g->key[4] == 0 || g->key[4] == ':')) {
      steps = grow(steps, (entries + 1) * sizeof *steps);
      steps[entries++] = open_graph(env, argv[1], g);
    }

  Tensors batch = {0};
  for (unsigned long number = 0;; number++) {
    Tensors next = {0};
    for (size_t i = 0; i < batches.count; i++) {
      char *rest;
      if (strtoul(batches.items[i].name, &rest, 10) == number) put(&next, rest + 1, batches.items[i].value);
    }
    if (!next.count) break;
    batch = next;
    for (size_t i = 0; i < entries; i++) printf("%.9g\n", run(&steps[i], &batch, &settings, &state, NULL));
  }

  const Graph evaluate = open_graph(env, argv[1], get(graphs, "evaluate"));
  printf("%.9g\n", run(&evaluate, &batch, &settings, &state, NULL));
  const Graph infer = open_graph(env, argv[1], get(graphs, "infer"));
  Tensors outputs = {0};
  run(&infer, &batch, &settings, &state, &outputs);

  write_tensors(join(argv[3], "outputs.safetensors"), &outputs);
  write_tensors(join(argv[3], "state.safetensors"), &state);
  export_model(join(argv[1], word(infer.about, "file")), join(argv[3], "model.onnx"), infer.about, &state);
  return 0;
}

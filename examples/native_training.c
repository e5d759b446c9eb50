// Train a native program without Python: `onward compile digits.onnx --target iree:cpu --batch 32 -o program/`, then
//   native_training program/ EPOCHS images.f32 labels.i64
// One file of raw numbers for each input and target of the step, in the order of program/arguments.txt. State stays in
// buffers of the device: what a step returns is what the next one reads. docs/native.md says how to build it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iree/runtime/api.h"

#define MOST 512
typedef struct {
  char role[16], type[16], shape[64], where[256], name[128];
  iree_hal_dim_t dims[8];
  int rank;
  size_t bytes;
  iree_hal_element_type_t element;
  iree_hal_buffer_view_t* view;  // of a state or a setting
  char* data;                    // of an input or a target: all samples
} value_t;

static void stop(const char* what, const char* which) {
  fprintf(stderr, "%s: %s\n", what, which);
  exit(1);
}

static void ok(iree_status_t status) {
  if (iree_status_is_ok(status)) return;
  iree_status_fprint(stderr, status);
  exit(1);
}

static char* read_file(const char* folder, const char* name, size_t* size) {
  char path[1024];
  snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", name);
  FILE* file = fopen(path, "rb");
  if (!file) stop("cannot read", path);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  char* content = calloc(*size + 1, 1);
  if (!content || fread(content, 1, *size, file) != *size) stop("cannot read", path);
  fclose(file);
  return content;
}

static void measure(value_t* v) {  // the size in bytes, from type and shape
  static const struct { const char* name; iree_hal_element_type_t element; size_t bytes; } kinds[] = {
      {"float32", IREE_HAL_ELEMENT_TYPE_FLOAT_32, 4}, {"float64", IREE_HAL_ELEMENT_TYPE_FLOAT_64, 8},
      {"int64", IREE_HAL_ELEMENT_TYPE_SINT_64, 8},    {"int32", IREE_HAL_ELEMENT_TYPE_SINT_32, 4},
      {"bool", IREE_HAL_ELEMENT_TYPE_BOOL_8, 1}};
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; ++k)
    if (!strcmp(kinds[k].name, v->type)) v->element = kinds[k].element, v->bytes = kinds[k].bytes;
  if (!v->bytes) stop("an element type that this program does not know", v->type);
  if (!strcmp(v->shape, "scalar")) return;
  for (char* part = strtok(v->shape, ","); part && v->rank < 8; part = strtok(NULL, ","))
    v->bytes *= v->dims[v->rank++] = (iree_hal_dim_t)atoll(part);
}

static iree_hal_buffer_view_t* put(iree_runtime_session_t* session, const value_t* v, const void* data) {
  iree_hal_buffer_params_t how = {.type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL, .access = IREE_HAL_MEMORY_ACCESS_ALL,
                                  .usage = IREE_HAL_BUFFER_USAGE_DEFAULT};
  iree_hal_buffer_view_t* view = NULL;
  ok(iree_hal_buffer_view_allocate_buffer_copy(
      iree_runtime_session_device(session), iree_runtime_session_device_allocator(session), v->rank, v->dims,
      v->element, IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, how, iree_make_const_byte_span(data, v->bytes), &view));
  return view;
}

int main(int count, char** given) {
  if (count < 4) stop("usage", "native_training PROGRAM EPOCHS FILE...");
  static value_t in[MOST], out[MOST];
  int ins = 0, outs = 0, fed = 3;
  size_t size, samples = 0, batch = 0;
  char *text = read_file(given[1], "arguments.txt", &size), *state = read_file(given[1], "state.safetensors", &size);

  iree_runtime_instance_options_t options;
  iree_runtime_instance_options_initialize(&options);
  iree_runtime_instance_options_use_all_available_drivers(&options);
  iree_runtime_instance_t* instance = NULL;
  ok(iree_runtime_instance_create(&options, iree_allocator_system(), &instance));
  iree_hal_device_t* device = NULL;
  ok(iree_runtime_instance_try_create_default_device(instance, iree_make_cstring_view("local-sync"), &device));
  iree_runtime_session_options_t session_options;
  iree_runtime_session_options_initialize(&session_options);
  iree_runtime_session_t* session = NULL;
  ok(iree_runtime_session_create_with_device(instance, &session_options, device, iree_allocator_system(), &session));
  char path[1024];
  snprintf(path, sizeof path, "%s/step.vmfb", given[1]);
  ok(iree_runtime_session_append_bytecode_module_from_file(session, path));

  char* rest = NULL;
  for (char* line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    char side[8];
    value_t v = {0};
    if (strncmp(line, "step.run ", 9)) continue;
    if (sscanf(line + 9, "%7s %15s %15s %63s %255s %127[^\n]", side, v.role, v.type, v.shape, v.where, v.name) != 6)
      stop("arguments.txt has another form", line);
    measure(&v);
    if (ins == MOST || outs == MOST) stop("too many arguments", v.name);
    if (*side == 'o') out[outs++] = v;
    else if (!strcmp(v.role, "state")) v.view = put(session, &v, state + atoll(v.where)), in[ins++] = v;
    else if (!strcmp(v.role, "setting")) {
      float number = (float)atof(v.where);  // settings are numbers; -1 would be a shape this program does not feed
      if (v.rank || v.element != IREE_HAL_ELEMENT_TYPE_FLOAT_32) stop("a setting that is no float32 number", v.name);
      v.view = put(session, &v, &number), in[ins++] = v;
    } else {
      if (fed == count) stop("there is no file for", v.name);
      v.data = read_file("", given[fed++], &size);
      batch = (size_t)v.dims[0];
      if (samples && samples != size / (v.bytes / batch)) stop("another number of samples", v.name);
      samples = size / (v.bytes / batch), in[ins++] = v;
    }
  }
  if (samples < batch || !batch) stop("fewer samples than one batch", given[1]);

  iree_runtime_call_t call;
  ok(iree_runtime_call_initialize_by_name(session, iree_make_cstring_view("step.run"), &call));
  for (int epoch = 0; epoch < atoi(given[2]); ++epoch) {
    double total = 0;
    for (size_t step = 0; step < samples / batch; ++step) {
      for (int k = 0; k < ins; ++k) {
        iree_hal_buffer_view_t* view = in[k].data ? put(session, &in[k], in[k].data + step * in[k].bytes) : in[k].view;
        ok(iree_runtime_call_inputs_push_back_buffer_view(&call, view));
        if (in[k].data) iree_hal_buffer_view_release(view);  // the call holds it
      }
      ok(iree_runtime_call_invoke(&call, 0));
      for (int k = 0; k < outs; ++k) {
        iree_hal_buffer_view_t* view = NULL;
        ok(iree_runtime_call_outputs_pop_front_buffer_view(&call, &view));
        float loss = 0;
        if (!strcmp(out[k].role, "loss"))
          ok(iree_hal_device_transfer_d2h(device, iree_hal_buffer_view_buffer(view), 0, &loss, sizeof loss,
                                          IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, iree_infinite_timeout()));
        total += loss;
        if (!strcmp(out[k].role, "state") && *out[k].where != '-') {
          value_t* old = &in[atoi(out[k].where)];
          iree_hal_buffer_view_release(old->view), old->view = view;
        } else iree_hal_buffer_view_release(view);
      }
      iree_runtime_call_reset(&call);
    }
    printf("epoch %d: loss %.7f\n", epoch + 1, total / (double)(samples / batch));
  }
  return 0;
}

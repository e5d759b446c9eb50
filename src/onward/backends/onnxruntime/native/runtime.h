/* What the kernels need of ONNX Runtime's C API, whose header the wheel does not have.

   The table of functions only ever grows at its end, and each function keeps its place: that is what ONNX Runtime promises
   (docs/ABI_Dev_Notes). The numbers are the places in onnxruntime_c_api.h; tests/backends/test_native.py compares them
   with the header. */
#ifndef ONWARD_RUNTIME_H
#define ONWARD_RUNTIME_H
#include <stddef.h>
#include <stdint.h>

enum { API_VERSION = 17 }; /* of ONNX Runtime 1.17, the oldest that has all of these */

typedef struct status status; /* NULL: all is well */
typedef struct {
    const void *(*functions)(uint32_t version);
    const char *(*version)(void);
} api_base;
typedef void *const *api; /* the table of functions */

enum {
    CREATE_STATUS = 0, CREATE_DOMAIN = 26, DOMAIN_ADD = 27, ADD_DOMAIN = 28, CREATE_TENSOR = 49, TENSOR_DATA = 51,
    DIMENSIONS_COUNT = 61, DIMENSIONS = 62, TENSOR_SHAPE = 65, CPU_MEMORY = 69, CONTEXT_INPUT = 90, CONTEXT_OUTPUT = 91,
    RELEASE_STATUS = 93, RELEASE_MEMORY_INFO = 94, RELEASE_TENSOR = 96, RELEASE_SHAPE = 99, INTS_OF_ATTRIBUTE = 163,
    CREATE_ATTRIBUTE = 211, RELEASE_ATTRIBUTE = 212, CREATE_OPERATOR = 213, INVOKE_OPERATOR = 214, RELEASE_OPERATOR = 215,
    PARALLEL_FOR = 274,
};

/* struct OrtCustomOp, up to what version 17 of the API has. */
typedef struct operator operator;
struct operator {
    uint32_t version;
    void *create; /* older than create_v2 */
    const char *(*name)(const operator *);
    const char *(*provider)(const operator *);
    int (*input_type)(const operator *, size_t);
    size_t (*input_count)(const operator *);
    int (*output_type)(const operator *, size_t);
    size_t (*output_count)(const operator *);
    void *compute; /* older than compute_v2 */
    void (*destroy)(void *);
    int (*input_kind)(const operator *, size_t);
    int (*output_kind)(const operator *, size_t);
    int (*input_memory)(const operator *, size_t);
    int (*variadic_inputs)(const operator *);
    int (*variadic_inputs_alike)(const operator *);
    int (*variadic_outputs)(const operator *);
    int (*variadic_outputs_alike)(const operator *);
    status *(*create_v2)(const operator *, api, const void *info, void **kernel);
    status *(*compute_v2)(void *kernel, void *context);
    status *(*infer_shapes)(const operator *, void *);
    int (*first_version)(const operator *);
    int (*last_version)(const operator *);
    size_t (*may_inplace)(int **, int **);
    void (*release_inplace)(int *, int *);
    size_t (*aliases)(int **, int **);
    void (*release_aliases)(int *, int *);
};

#endif

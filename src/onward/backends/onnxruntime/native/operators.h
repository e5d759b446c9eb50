/* What an operator of the domain ai.onward.native is, and what each of them may use. */
#ifndef ONWARD_OPERATORS_H
#define ONWARD_OPERATORS_H
#include "runtime.h"
#include "vectors.h"

#define CALL(functions, place, type) ((type)(functions)[place])
enum { FLOAT = 1, INT64 = 7 }; /* ONNXTensorElementDataType */

typedef struct {
    const float *data;
    int64_t size[8];
    size_t rank;
} tensor;

enum { NO_MEMORY = 1, NO_FIT = 2, NO_LABEL = 3, NO_STANDARD = 4 };

/* Returns the memory of output `index`, of this shape; NULL if there is none. */
typedef float *(*outputs)(workers *team, size_t index, int64_t *size, size_t rank);

typedef struct {
    operator base;
    const char *name;
    size_t inputs, outputs;
    unsigned whole; /* a bit for each input of whole numbers, int64; the others are float */
    status *(*standard)(api functions, const void *info, const int64_t *sizes, void **made); /* for run_standard, or NULL */
    int (*run)(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out);
} kind;

/* The operators of each part of the library; the last has no name. */
extern kind image_operators[], product_operators[], recurrent_operators[], row_operators[];

/* Lets ONNX Runtime's operator `which`, of those that `standard` has made, compute output 0, of this shape, from the first two
   inputs, or from `first` and the second input. */
int run_standard(workers *team, size_t which, const tensor *first, const int64_t *size, size_t rank);
enum { MOST_STANDARD = 2 };

static inline void dismiss(api functions, status *problem) {
    if (problem) CALL(functions, RELEASE_STATUS, void (*)(status *))(problem);
}

static inline int same_shape(const tensor *a, const tensor *b) {
    return a->rank == b->rank && !memcmp(a->size, b->size, a->rank * sizeof(int64_t));
}

static inline int is_vector(const tensor *t, int64_t size) { return t->rank == 1 && t->size[0] == size; }

#endif

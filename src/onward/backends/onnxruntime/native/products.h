/* Products of matrices. */
#ifndef ONWARD_PRODUCTS_H
#define ONWARD_PRODUCTS_H
#include "vectors.h"

/* Rows, columns or depth up to which ONNX Runtime's product is faster than splitting the other factor into bfloat16. */
enum { THIN = 16 };

/* Depth and columns from which on it pays to transpose a factor for ONNX Runtime: four times as many columns where the factor does not
   fit into the second cache. Above the last limit, a copy would be fresh memory in each step. */
enum { TURN_DEPTH = 96, TURN_COLUMNS = 256, TURN_NEAR = 1 << 20, TURN_BYTES = 16 << 20 };

/* C[n] = scale * A[n] B[n] + bias for each n of a batch, cut off at 0 if `relu`; C is contiguous. */
typedef struct {
    int64_t batch, M, N, K;
    const float *A, *B, *bias; /* A [M, K], or [K, M] if `turned_A`; B [K, N], or [N, K] if `turned_B`; bias [N] or NULL */
    float *C;
    const int64_t *at_A, *at_B; /* where the matrices of a batch begin; NULL: at 0, there is one */
    int turned_A, turned_B, relu;
    int64_t threads; /* for which the work is divided; the bits do not depend on it */
    float scale;
} matrices;

/* Y[columns, rows] is the transpose of X[rows, columns]. */
void turn(workers *team, int64_t rows, int64_t columns, const float *X, float *Y);

/* Products on tiles. Returns 1 without memory. */
int multiply_matrices(workers *team, const matrices *m);

#endif

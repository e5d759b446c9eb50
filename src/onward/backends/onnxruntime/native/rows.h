/* What works on the rows of a matrix: layer normalisation, gradients of Softmax and Relu, sums of rows, the loss.

   Every result is the same for any number of threads: a task is a block of rows, and the blocks depend on the sizes only. */
#ifndef ONWARD_ROWS_H
#define ONWARD_ROWS_H
#include "vectors.h"

/* Layer normalisation over the last axis. */
typedef struct {
    int64_t rows, columns;
    float epsilon;
    const float *X, *scale, *bias;
    float *Y, *mean, *inverse;
    /* Backward: reads mean and inverse. The gradient is dY + more, where there is `more`. */
    const float *dY, *more;
    float *dX, *dscale, *dbias;
} row_normalization;

void normalize_rows(workers *team, row_normalization *n);
int normalize_rows_back(workers *team, row_normalization *n); /* not 0: no memory */

/* dX = Y * (dY - the sum of dY * Y over the row) */
void softmax_back(workers *team, int64_t rows, int64_t columns, const float *dY, const float *Y, float *dX);

/* dX = dY where Y > 0, else 0 * dY; and, unless `sum` is NULL, the sum of its rows. Not 0: no memory. */
int relu_back(workers *team, int64_t rows, int64_t columns, const float *dY, const float *Y, float *dX, float *sum);
int sum_rows(workers *team, int64_t rows, int64_t columns, const float *X, float *sum);

/* The mean of -log softmax(X)[label] over the rows whose label is not `ignored`, and `seed` times its gradient.
   Not 0: no memory, or 2: a label beyond the columns. */
int cross_entropy(workers *team, int64_t rows, int64_t columns, const float *X, const int64_t *labels, int64_t ignored,
                  float seed, float *loss, float *dX);

#endif

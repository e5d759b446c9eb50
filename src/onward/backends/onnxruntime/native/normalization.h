/* Batch normalisation in training: [N, C, pixels], with the statistics of the batch. */
#ifndef ONWARD_NORMALIZATION_H
#define ONWARD_NORMALIZATION_H
#include "vectors.h"

typedef struct {
    int64_t N, C, pixels;
    float epsilon;
    const float *X, *scale, *bias;
    float *Y, *mean, *variance; /* Y is cut off at 0 if `relu` */
    int relu;
    /* Backward: reads mean and variance. The gradient counts where Y > 0, if `relu`. */
    const float *dY;
    float *dX, *dscale, *dbias;
} normalization;

void normalize(workers *team, normalization *n);
void normalize_back(workers *team, normalization *n);

#endif

/* Convolutions and pools of float32 images [N, C, H, W] and their gradients. */
#ifndef ONWARD_CONVOLUTION_H
#define ONWARD_CONVOLUTION_H
#include "vectors.h"

/* A convolution from images of C channels to images of M channels. */
typedef struct {
    int64_t N, C, H, W, M, OH, OW, groups;
    int64_t kh, kw, sh, sw, dh, dw, top, left, bottom, right;
} conv;

/* Return 0, or 1 where there is no memory. `bias` may be NULL; with `relu`, Y is cut off at 0. */
int convolve(workers *team, const conv *c, const float *X, const float *K, const float *bias, int relu, float *Y);
int convolve_back(workers *team, const conv *c, const float *dY, const float *K, float *dX);
int kernel_gradient(workers *team, const conv *c, const float *X, const float *dY, float *dK);

/* The same where each channel has a kernel of its own: C, M and groups are equal. */
int depthwise(workers *team, const conv *c, const float *X, const float *K, const float *bias, float *Y);
int depthwise_back(workers *team, const conv *c, const float *dY, const float *K, float *dX);
int depthwise_kernel(workers *team, const conv *c, const float *X, const float *dY, float *dK);

/* Max-pooling by windows of the same kind, from X to Y: dX of the elements that made Y. */
void pool_back(workers *team, const conv *c, const float *X, const float *Y, const float *dY, float *dX);

#endif

/* The operators of images: convolutions, pools, batch normalisation. */
#include "convolution.h"
#include "normalization.h"
#include "operators.h"

/* The attribute `sizes`: H, W, kernel, strides, dilations, pads, groups. */
static int read_conv(const int64_t *s, conv *c) {
    *c = (conv){.H = s[0], .W = s[1], .kh = s[2], .kw = s[3], .sh = s[4], .sw = s[5], .dh = s[6], .dw = s[7],
                .top = s[8], .left = s[9], .bottom = s[10], .right = s[11], .groups = s[12]};
    c->OH = (c->H + c->top + c->bottom - (c->kh - 1) * c->dh - 1) / c->sh + 1;
    c->OW = (c->W + c->left + c->right - (c->kw - 1) * c->dw - 1) / c->sw + 1;
    return c->groups < 1;
}

static int image_is(const tensor *t, int64_t n, int64_t channels, int64_t high, int64_t wide) {
    return t->rank == 4 && t->size[0] == n && t->size[1] == channels && t->size[2] == high && t->size[3] == wide;
}

static int is_depthwise(const conv *c) { return c->groups > 1 && c->groups == c->C && c->groups == c->M; }

/* (X, K) or (X, K, bias) -> Y; sizes[13]: cut off at 0 */
static int run_convolve(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    conv c;
    if (read_conv(sizes, &c)) return NO_FIT;
    c.N = in[0].size[0], c.C = in[0].size[1], c.M = in[1].size[0];
    if (!image_is(in, c.N, c.C, c.H, c.W) || !image_is(in + 1, c.M, c.C / c.groups, c.kh, c.kw)) return NO_FIT;
    if (inputs == 3 && (in[2].rank != 1 || in[2].size[0] != c.M)) return NO_FIT;
    int64_t shape[] = {c.N, c.M, c.OH, c.OW};
    float *Y = out(team, 0, shape, 4);
    const float *bias = inputs == 3 ? in[2].data : NULL;
    if (!c.N) return 0;
    if (!Y) return NO_MEMORY;
    if (is_depthwise(&c) && !sizes[13]) return depthwise(team, &c, in[0].data, in[1].data, bias, Y);
    return convolve(team, &c, in[0].data, in[1].data, bias, sizes[13] != 0, Y);
}

/* (X, dY) -> the gradient of the kernel */
static int run_kernel_gradient(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    conv c;
    (void)inputs;
    if (read_conv(sizes, &c)) return NO_FIT;
    c.N = in[0].size[0], c.C = in[0].size[1], c.M = in[1].size[1];
    if (!image_is(in, c.N, c.C, c.H, c.W) || !image_is(in + 1, c.N, c.M, c.OH, c.OW)) return NO_FIT;
    int64_t shape[] = {c.M, c.C / c.groups, c.kh, c.kw};
    float *dK = out(team, 0, shape, 4);
    if (!dK) return NO_MEMORY;
    return (is_depthwise(&c) ? depthwise_kernel : kernel_gradient)(team, &c, in[0].data, in[1].data, dK);
}

/* (dY, K) -> the gradient of the input */
static int run_convolve_back(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    conv c;
    (void)inputs;
    if (read_conv(sizes, &c)) return NO_FIT;
    c.N = in[0].size[0], c.M = in[0].size[1], c.C = in[1].size[1] * c.groups;
    if (!image_is(in, c.N, c.M, c.OH, c.OW) || !image_is(in + 1, c.M, c.C / c.groups, c.kh, c.kw)) return NO_FIT;
    int64_t shape[] = {c.N, c.C, c.H, c.W};
    float *dX = out(team, 0, shape, 4);
    if (!c.N) return 0;
    if (!dX) return NO_MEMORY;
    return (is_depthwise(&c) ? depthwise_back : convolve_back)(team, &c, in[0].data, in[1].data, dX);
}

/* (X, Y, dY) of a max-pooling -> dX */
static int run_pool_back(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    conv c;
    (void)inputs;
    if (read_conv(sizes, &c) || in[0].rank != 4 || in[1].rank != 4) return NO_FIT;
    c.N = in[0].size[0], c.C = c.M = in[0].size[1], c.OH = in[1].size[2], c.OW = in[1].size[3]; /* as ceil_mode has it */
    for (int i = 1; i < 3; i++)
        if (!image_is(in, c.N, c.C, c.H, c.W) || !image_is(in + i, c.N, c.C, c.OH, c.OW)) return NO_FIT;
    float *dX = out(team, 0, (int64_t *)in[0].size, 4);
    if (!c.N) return 0;
    if (!dX) return NO_MEMORY;
    pool_back(team, &c, in[0].data, in[1].data, in[2].data, dX);
    return 0;
}

/* The attribute `sizes`: the bits of epsilon, whether a Relu follows. */
static int read_normalization(const int64_t *sizes, const tensor *X, normalization *n) {
    int32_t bits = (int32_t)sizes[0];
    *n = (normalization){.relu = sizes[1] != 0, .X = X->data, .N = X->size[0], .C = X->size[1], .pixels = 1};
    memcpy(&n->epsilon, &bits, sizeof bits);
    for (size_t i = 2; i < X->rank; i++) n->pixels *= X->size[i];
    return X->rank < 2;
}

/* (X, scale, bias) -> Y, mean, variance */
static int run_normalize(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    normalization n;
    (void)inputs;
    if (read_normalization(sizes, in, &n) || !is_vector(in + 1, n.C) || !is_vector(in + 2, n.C)) return NO_FIT;
    int64_t vector[] = {n.C};
    n.scale = in[1].data, n.bias = in[2].data;
    n.Y = out(team, 0, (int64_t *)in[0].size, in[0].rank);
    n.mean = out(team, 1, vector, 1), n.variance = out(team, 2, vector, 1);
    if ((n.N && !n.Y) || !n.mean || !n.variance) return NO_MEMORY;
    normalize(team, &n);
    return 0;
}

/* (dY, X, scale, mean, variance), and Y if a Relu follows -> dX, dscale, dbias */
static int run_normalize_back(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    normalization n;
    if (read_normalization(sizes, in + 1, &n) || !same_shape(in, in + 1) || n.relu != (inputs == 6)) return NO_FIT;
    for (int i = 2; i < 5; i++)
        if (!is_vector(in + i, n.C)) return NO_FIT;
    if (n.relu && !same_shape(in + 1, in + 5)) return NO_FIT;
    int64_t vector[] = {n.C};
    n.dY = in[0].data, n.scale = in[2].data, n.mean = (float *)in[3].data, n.variance = (float *)in[4].data;
    n.Y = n.relu ? (float *)in[5].data : NULL;
    n.dX = out(team, 0, (int64_t *)in[1].size, in[1].rank);
    n.dscale = out(team, 1, vector, 1), n.dbias = out(team, 2, vector, 1);
    if ((n.N && !n.dX) || !n.dscale || !n.dbias) return NO_MEMORY;
    normalize_back(team, &n);
    return 0;
}

kind image_operators[] = {
    {.name = "Convolve", .inputs = 2, .outputs = 1, .run = run_convolve},
    {.name = "ConvolveBiased", .inputs = 3, .outputs = 1, .run = run_convolve},
    {.name = "KernelGradient", .inputs = 2, .outputs = 1, .run = run_kernel_gradient},
    {.name = "ConvolveBack", .inputs = 2, .outputs = 1, .run = run_convolve_back},
    {.name = "PoolBack", .inputs = 3, .outputs = 1, .run = run_pool_back},
    {.name = "Normalize", .inputs = 3, .outputs = 3, .run = run_normalize},
    {.name = "NormalizeBack", .inputs = 5, .outputs = 3, .run = run_normalize_back},
    {.name = "NormalizeReluBack", .inputs = 6, .outputs = 3, .run = run_normalize_back},
    {.name = NULL},
};

/* Batch normalisation in training. A task is a channel: its pixels are read once from memory, then from the cache. */
#include "normalization.h"

#include <math.h>

typedef struct {
    double first, second;
} sums;

/* Runs over the pixels of a channel: `vector` for LANES of them, `single` for the rest of an image. */
#define OVER(n, channel, vector, single)                                        \
    for (int64_t image = 0; image < (n)->N; image++) {                          \
        int64_t at = (image * (n)->C + (channel)) * (n)->pixels, end = at + (n)->pixels; \
        for (; at + LANES <= end; at += LANES) vector;                          \
        for (; at < end; at++) single;                                          \
    }

static void forward(void *argument, size_t channel) {
    normalization *n = argument;
    const float *X = n->X;
    double count = (double)n->N * n->pixels, total_sum = 0, squares = 0;
    for (int64_t image = 0; image < n->N; image++) { /* an image at a time in single precision */
        const float *x = X + (image * n->C + channel) * n->pixels;
        vec sum = splat(0);
        float rest = 0;
        int64_t p = 0;
        for (; p + LANES <= n->pixels; p += LANES) sum += load(x + p);
        for (; p < n->pixels; p++) rest += x[p];
        total_sum += (double)total(sum) + rest;
    }
    float mean = (float)(total_sum / count);
    for (int64_t image = 0; image < n->N; image++) {
        const float *x = X + (image * n->C + channel) * n->pixels;
        vec sum = splat(0);
        float rest = 0;
        int64_t p = 0;
        for (; p + LANES <= n->pixels; p += LANES) {
            vec d = load(x + p) - mean;
            sum += d * d;
        }
        for (; p < n->pixels; p++) rest += (x[p] - mean) * (x[p] - mean);
        squares += (double)total(sum) + rest;
    }
    float variance = (float)(squares / count);
    float slope = n->scale[channel] / sqrtf(variance + n->epsilon), shift = n->bias[channel];
    n->mean[channel] = mean, n->variance[channel] = variance;
    OVER(n, channel,
         {
             vec y = (load(X + at) - mean) * slope + shift;
             store(n->Y + at, n->relu ? where(~(y < 0), y) : y); /* NaN stays */
         },
         {
             float y = (X[at] - mean) * slope + shift;
             n->Y[at] = n->relu && y < 0 ? 0 : y;
         })
}

/* dY where Y > 0, if there is a Relu behind the normalisation. */
static inline vec masked(const normalization *n, int64_t at) {
    vec dy = load(n->dY + at);
    return n->relu ? where(load(n->Y + at) > 0, dy) : dy;
}

static inline float masked_one(const normalization *n, int64_t at) {
    return n->relu && !(n->Y[at] > 0) ? 0 : n->dY[at];
}

static void backward(void *argument, size_t channel) {
    normalization *n = argument;
    const float *X = n->X;
    float mean = n->mean[channel], deviation = sqrtf(n->variance[channel] + n->epsilon);
    double count = (double)n->N * n->pixels;
    sums s = {0, 0};
    for (int64_t image = 0; image < n->N; image++) {
        int64_t at = (image * n->C + channel) * n->pixels, end = at + n->pixels;
        vec a = splat(0), b = splat(0);
        float c = 0, d = 0;
        for (; at + LANES <= end; at += LANES) {
            vec dy = masked(n, at);
            a += dy, b += dy * (load(X + at) - mean);
        }
        for (; at < end; at++) c += masked_one(n, at), d += masked_one(n, at) * (X[at] - mean);
        s.first += (double)total(a) + c, s.second += (double)total(b) + d;
    }
    n->dbias[channel] = (float)s.first, n->dscale[channel] = (float)(s.second / deviation);
    float offset = (float)(s.first / count), tilt = (float)(s.second / deviation / deviation / count);
    float slope = n->scale[channel] / deviation;
    OVER(n, channel, { store(n->dX + at, (masked(n, at) - offset - (load(X + at) - mean) * tilt) * slope); },
         { n->dX[at] = (masked_one(n, at) - offset - (X[at] - mean) * tilt) * slope; })
}

void normalize(workers *team, normalization *n) { share(team, forward, n->C, n); }

void normalize_back(workers *team, normalization *n) { share(team, backward, n->C, n); }

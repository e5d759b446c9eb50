/* The gradient of a max-pooling, without Indices: ONNX Runtime's MaxPool takes ten times as long with them. */
#include "convolution.h"

typedef struct {
    const conv *c;
    const float *X, *Y, *dY;
    float *dX;
} job;

/* The taps of a window that lie inside of the image: `first` to `last` - 1 of `taps`, from `start` on, `step` apart. */
typedef struct {
    int64_t first, last;
} inside;

static inline inside taps_inside(int64_t start, int64_t step, int64_t taps, int64_t size) {
    inside t = {start < 0 ? parts(-start, step) : 0, start < size ? least(taps, parts(size - start, step)) : 0};
    return t;
}

/* One plane: the first element of a window that equals the result gets its gradient, as Indices would have it. */
static void pool_plane(void *argument, size_t index) {
    const job *j = argument;
    const conv *c = j->c;
    const float *X = j->X + index * c->H * c->W;
    const float *Y = j->Y + index * c->OH * c->OW, *dY = j->dY + index * c->OH * c->OW;
    float *dX = j->dX + index * c->H * c->W;
    memset(dX, 0, c->H * c->W * sizeof(float));
    for (int64_t y = 0; y < c->OH; y++) {
        int64_t top = y * c->sh - c->top;
        inside down = taps_inside(top, c->dh, c->kh, c->H);
        for (int64_t x = 0; x < c->OW; x++, Y++, dY++) {
            int64_t left = x * c->sw - c->left, at = -1;
            inside across = taps_inside(left, c->dw, c->kw, c->W);
            for (int64_t a = down.last - 1; a >= down.first; a--)
                for (int64_t b = across.last - 1; b >= across.first; b--) {
                    int64_t place = (top + a * c->dh) * c->W + left + b * c->dw;
                    at = X[place] == *Y ? place : at;
                }
            if (at < 0 && down.first < down.last && across.first < across.last) /* NaN equals nothing */
                at = (top + down.first * c->dh) * c->W + left + across.first * c->dw;
            if (at >= 0) dX[at] += *dY;
        }
    }
}

/* The same for windows of 2 x 2 that tile the image. */
static void pool_pairs(void *argument, size_t index) {
    const job *j = argument;
    const conv *c = j->c;
    int64_t W = c->W;
    for (int64_t y = 0; y < c->OH; y++) {
        const float *X = j->X + index * c->H * W + 2 * y * W;
        const float *Y = j->Y + (index * c->OH + y) * c->OW, *dY = j->dY + (index * c->OH + y) * c->OW;
        float *dX = j->dX + index * c->H * W + 2 * y * W;
        for (int64_t x = 0; x < c->OW; x++) {
            const float *p = X + 2 * x;
            int second = p[1] == Y[x], third = p[W] == Y[x], fourth = p[W + 1] == Y[x];
            int first = p[0] == Y[x] || !(second | third | fourth);
            second &= !first, third &= !(first | second), fourth &= !(first | second | third);
            dX[2 * x] = first ? dY[x] : 0, dX[2 * x + 1] = second ? dY[x] : 0;
            dX[2 * x + W] = third ? dY[x] : 0, dX[2 * x + W + 1] = fourth ? dY[x] : 0;
        }
    }
}

void pool_back(workers *team, const conv *c, const float *X, const float *Y, const float *dY, float *dX) {
    job j = {c, X, Y, dY, dX};
    int pairs = c->kh == 2 && c->kw == 2 && c->sh == 2 && c->sw == 2 && c->dh == 1 && c->dw == 1;
    int tiles = !c->top && !c->left && c->H == 2 * c->OH && c->W == 2 * c->OW;
    share(team, pairs && tiles ? pool_pairs : pool_plane, c->N * c->C, &j);
}

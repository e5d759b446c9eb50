/* Depthwise convolutions: each channel has a kernel of its own.

   A padded plane is stored as sh * sw planes, one for each remainder of a place divided by the strides. In these, the
   pixels that one tap meets lie next to each other for any stride, so that all loops run over plain vectors. The result
   has rows of the same pitch, whose last columns are not used. */
#include "convolution.h"

enum {
    TAPS = 8,   /* whose sums stay in registers */
    TASKS = 64, /* at most: planes of one task use the same memory */
};

typedef struct job job;
struct job {
    const conv *c;
    void (*each)(const job *j, int64_t index, float *memory); /* one plane, or one channel */
    const float *X, *dY, *K, *bias;
    float *Y;
    int64_t high, wide, plane, pixels, room; /* of one of the sh * sw planes; pixels of a result with its pitch */
    const int64_t *offsets;                  /* of each tap */
    int64_t count, tasks;                    /* planes, or channels */
    int failed;                              /* becomes 1 where a task finds no memory */
};

static int prepare(job *j, int64_t **offsets) {
    const conv *c = j->c;
    j->high = parts(c->H + c->top + c->bottom, c->sh), j->wide = parts(c->W + c->left + c->right, c->sw);
    j->plane = j->high * j->wide, j->pixels = c->OH * j->wide;
    j->room = c->sh * c->sw * j->plane + 2 * LANES + j->wide * (1 + (c->kh - 1) * c->dh / c->sh);
    *offsets = borrow(c->kh * c->kw * sizeof(int64_t));
    if (!*offsets) return 1;
    for (int64_t t = 0; t < c->kh * c->kw; t++) {
        int64_t y = t / c->kw * c->dh, x = t % c->kw * c->dw;
        (*offsets)[t] = (y % c->sh * c->sw + x % c->sw) * j->plane + y / c->sh * j->wide + x / c->sw;
    }
    j->offsets = *offsets;
    return 0;
}

/* Where the first pixel of row y of the image is, among the planes; the others follow, sw apart. */
static float *place(const job *j, float *planes, int64_t y, int64_t x) {
    const conv *c = j->c;
    int64_t Y = y + c->top, X = x + c->left;
    return planes + (Y % c->sh * c->sw + X % c->sw) * j->plane + Y / c->sh * j->wide + X / c->sw;
}

static void spread(const job *j, const float *image, float *planes) {
    const conv *c = j->c;
    memset(planes, 0, j->room * sizeof(float));
    for (int64_t y = 0; y < c->H; y++, image += c->W) {
        if (c->sw == 1)
            memcpy(place(j, planes, y, 0), image, c->W * sizeof(float));
        else
            for (int64_t first = 0; first < least(c->sw, c->W); first++) {
                float *to = place(j, planes, y, first);
                for (int64_t x = first; x < c->W; x += c->sw) *to++ = image[x];
            }
    }
}

static void forward(const job *j, int64_t index, float *planes) {
    const conv *c = j->c;
    int64_t channel = index % c->C, size = c->kh * c->kw;
    const float *kernel = j->K + channel * size;
    float *made = planes + j->room;
    spread(j, j->X + index * c->H * c->W, planes);
    for (int64_t p = 0; p < j->pixels; p += LANES) {
        vec sum = splat(j->bias ? j->bias[channel] : 0);
        for (int64_t t = 0; t < size; t++) sum += kernel[t] * load(planes + j->offsets[t] + p);
        store(made + p, sum);
    }
    for (int64_t y = 0; y < c->OH; y++)
        memcpy(j->Y + (index * c->OH + y) * c->OW, made + y * j->wide, c->OW * sizeof(float));
}

static void spread_gradient(const job *j, const float *dY, float *rows) {
    const conv *c = j->c;
    memset(rows, 0, (j->pixels + LANES) * sizeof(float));
    for (int64_t y = 0; y < c->OH; y++) memcpy(rows + y * j->wide, dY + y * c->OW, c->OW * sizeof(float));
}

static void backward(const job *j, int64_t index, float *planes) {
    const conv *c = j->c;
    int64_t size = c->kh * c->kw;
    const float *kernel = j->K + index % c->C * size;
    float *rows = planes + j->room;
    spread_gradient(j, j->dY + index * c->OH * c->OW, rows);
    memset(planes, 0, j->room * sizeof(float));
    for (int64_t t = 0; t < size; t++) {
        float *to = planes + j->offsets[t];
        for (int64_t p = 0; p < j->pixels; p += LANES) store(to + p, load(to + p) + kernel[t] * load(rows + p));
    }
    float *image = j->Y + index * c->H * c->W;
    for (int64_t y = 0; y < c->H; y++, image += c->W)
        for (int64_t first = 0; first < least(c->sw, c->W); first++) {
            const float *from = place(j, planes, y, first);
            if (c->sw == 1)
                memcpy(image, from, c->W * sizeof(float));
            else
                for (int64_t x = first; x < c->W; x += c->sw) image[x] = *from++;
        }
}

static void kernel_of_channel(const job *j, int64_t channel, float *planes) {
    const conv *c = j->c;
    int64_t size = c->kh * c->kw;
    float *rows = planes + j->room, *sums = rows + j->pixels + LANES;
    memset(sums, 0, size * LANES * sizeof(float));
    for (int64_t n = 0; n < c->N; n++) {
        int64_t index = n * c->C + channel;
        spread(j, j->X + index * c->H * c->W, planes);
        spread_gradient(j, j->dY + index * c->OH * c->OW, rows);
        for (int64_t t = 0; t < size; t += TAPS) {
            int64_t several = least(TAPS, size - t), offsets[TAPS];
            vec sum[TAPS];
            for (int64_t k = 0; k < TAPS; k++) offsets[k] = j->offsets[t + least(k, several - 1)], sum[k] = splat(0);
            for (int64_t p = 0; p < j->pixels; p += LANES) {
                vec y = load(rows + p);
                for (int k = 0; k < TAPS; k++) sum[k] += y * load(planes + offsets[k] + p);
            }
            for (int64_t k = 0; k < several; k++)
                store(sums + (t + k) * LANES, load(sums + (t + k) * LANES) + sum[k]);
        }
    }
    for (int64_t t = 0; t < size; t++) j->Y[channel * size + t] = total(load(sums + t * LANES));
}

static void some(void *argument, size_t index) {
    job *j = argument;
    float *planes = borrow((j->room + j->pixels + LANES + j->c->kh * j->c->kw * LANES) * sizeof(float));
    if (!planes) {
        __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t i = index * j->count / j->tasks; i < (int64_t)(index + 1) * j->count / j->tasks; i++)
        j->each(j, i, planes);
    give_back(planes);
}

static int run(workers *team, job *j) {
    int64_t *offsets;
    int failed = prepare(j, &offsets);
    j->tasks = least(TASKS, j->count);
    if (!failed) share(team, some, j->tasks, j);
    give_back(offsets);
    return failed || j->failed;
}

int depthwise(workers *team, const conv *c, const float *X, const float *K, const float *bias, float *Y) {
    job j = {.c = c, .X = X, .K = K, .bias = bias, .Y = Y, .each = forward, .count = c->N * c->C};
    return run(team, &j);
}

int depthwise_back(workers *team, const conv *c, const float *dY, const float *K, float *dX) {
    job j = {.c = c, .dY = dY, .K = K, .Y = dX, .each = backward, .count = c->N * c->C};
    return run(team, &j);
}

int depthwise_kernel(workers *team, const conv *c, const float *X, const float *dY, float *dK) {
    job j = {.c = c, .X = X, .dY = dY, .Y = dK, .each = kernel_of_channel, .count = c->C};
    return run(team, &j);
}

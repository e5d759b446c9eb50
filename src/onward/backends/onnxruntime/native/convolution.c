/* Convolutions and transposed convolutions as products of matrices, without columns (im2col) in memory.

   Result pixels are taken WIDE at a time, of several images if these are small: for these pixels, the elements of the
   images that each tap meets are copied next to each other ("panel"), and a tile of up to ROWS channels x WIDE pixels is
   summed up in registers. A transposed convolution with strides is several convolutions with fewer taps each: one for each
   remainder of the pixel's place, divided by the strides. */
#include "convolution.h"

enum {
    DEEP = 256,        /* taps of a panel */
    TASKS = 16,        /* at least, where the pixels are enough: so that the threads end at about the same time */
    AT_ONCE = 1 << 20, /* elements of the padded images of a round */
};

/* One convolution with stride: result pixel (y, x) of image n reads from[n, y * down + x * across + tap's offset]. */
typedef struct {
    const float *from, *bias;
    float *to;
    const float *kernels; /* [strips, taps, rows] */
    const int64_t *offsets;
    int64_t taps, channels, strips, rows; /* `rows`: channels of a strip */
    int64_t images, high, wide;             /* of the result */
    int64_t from_image, down, across;       /* from one image, row, pixel to the next, in `from` */
    int64_t to_image, to_channel, to_down, to_across; /* the same in `to` */
    int64_t start, to_start, tasks;
    int relu;
    int *failed; /* becomes 1 where a task finds no memory */
} product;

/* Pixels next to each other that are next to each other, or `across` apart, in the images, too. */
typedef struct {
    int64_t at, length, from, to;
} run;

static int64_t find_runs(const product *p, int64_t first, int64_t count, run *runs) {
    int64_t found = 0, image = p->high * p->wide;
    for (int64_t q = first; q < first + count;) {
        int64_t n = q / image, y = q % image / p->wide, x = q % p->wide;
        int64_t length = least(p->wide - x, first + count - q);
        runs[found++] = (run){q - first, length, n * p->from_image + p->start + y * p->down + x * p->across,
                              n * p->to_image + p->to_start + y * p->to_down + x * p->to_across};
        q += length;
    }
    return found;
}

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

static inline void copy_few(float *to, const float *from, int64_t n) {
    for (; n >= LANES; n -= LANES, to += LANES, from += LANES) store(to, load(from));
    for (; n >= 4; n -= 4, to += 4, from += 4) *(four *)to = *(const four *)from;
    for (int64_t i = 0; i < n; i++) to[i] = from[i];
}

static void fill_panel(const product *p, const run *runs, int64_t count, int64_t tap, int64_t taps, float *panel) {
    const int64_t *offsets = p->offsets + tap;
    int whole = count == 1 ? runs[0].length == WIDE : count == 2 && runs[0].length == LANES && runs[1].length == LANES;
    if (p->across == 1 && whole) {
        const float *a = p->from + runs[0].from, *b = count == 1 ? a + LANES : p->from + runs[1].from;
        for (int64_t t = 0; t < taps; t++, panel += WIDE)
            store(panel, load(a + offsets[t])), store(panel + LANES, load(b + offsets[t]));
        return;
    }
    for (int64_t t = 0; t < taps; t++, panel += WIDE)
        for (int64_t r = 0; r < count; r++) {
            const float *from = p->from + runs[r].from + offsets[t];
            float *to = panel + runs[r].at;
            if (p->across == 1)
                copy_few(to, from, runs[r].length);
            else
                for (int64_t i = 0; i < runs[r].length; i++) to[i] = from[i * p->across];
        }
}

/* sums[rows, WIDE] += kernels[taps, rows]^T panel[taps, WIDE] */
static inline __attribute__((always_inline)) void multiply_of(const int rows, const float *kernels, const float *panel,
                                                              int64_t taps, float *sums) {
    vec s[ROWS][2];
    for (int i = 0; i < rows; i++) s[i][0] = load(sums + i * WIDE), s[i][1] = load(sums + i * WIDE + LANES);
    for (int64_t t = 0; t < taps; t++, kernels += rows) {
        vec a = load(panel + t * WIDE), b = load(panel + t * WIDE + LANES);
        for (int i = 0; i < rows; i++) s[i][0] += kernels[i] * a, s[i][1] += kernels[i] * b;
    }
    for (int i = 0; i < rows; i++) store(sums + i * WIDE, s[i][0]), store(sums + i * WIDE + LANES, s[i][1]);
}

static void multiply(int64_t rows, const float *kernels, const float *panel, int64_t taps, float *sums) {
    FOR_ROWS(rows, multiply_of, kernels, panel, taps, sums)
}

static void multiply_panels(void *argument, size_t index) {
    const product *p = argument;
    int64_t pixels = p->images * p->high * p->wide, panels = parts(pixels, WIDE), rows = p->strips * p->rows;
    float *panel = borrow((DEEP + rows) * WIDE * sizeof(float)), *sums = panel + DEEP * WIDE;
    run runs[WIDE];
    if (!panel) {
        __atomic_store_n(p->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t k = index * panels / p->tasks; k < (int64_t)(index + 1) * panels / p->tasks; k++) {
        int64_t count = find_runs(p, k * WIDE, least(WIDE, pixels - k * WIDE), runs);
        for (int64_t m = 0; m < rows; m++) {
            vec first = splat(p->bias && m < p->channels ? p->bias[m] : 0);
            store(sums + m * WIDE, first), store(sums + m * WIDE + LANES, first);
        }
        for (int64_t tap = 0; tap < p->taps; tap += DEEP) {
            int64_t taps = least(DEEP, p->taps - tap);
            fill_panel(p, runs, count, tap, taps, panel);
            for (int64_t m = 0; m < p->strips; m++)
                multiply(p->rows, p->kernels + (m * p->taps + tap) * p->rows, panel, taps, sums + m * p->rows * WIDE);
        }
        for (int64_t m = 0; m < p->channels; m++)
            for (int64_t r = 0; r < count; r++) {
                float *to = p->to + m * p->to_channel + runs[r].to, *from = sums + m * WIDE + runs[r].at;
                if (p->relu)
                    for (int64_t i = 0; i < runs[r].length; i++) from[i] = from[i] < 0 ? 0 : from[i];
                if (p->to_across == 1)
                    copy_few(to, from, runs[r].length);
                else
                    for (int64_t i = 0; i < runs[r].length; i++) to[i * p->to_across] = from[i];
            }
    }
    give_back(panel);
}

typedef struct {
    const float *from;
    float *to;
    int64_t channels, H, W, height, width, top, left, first, group; /* `group`: how many planes are a task */
} padding;

static void pad_planes(void *argument, size_t index) {
    const padding *p = argument;
    for (int64_t i = index * p->group; i < (int64_t)(index + 1) * p->group; i++) {
        float *to = p->to + i * p->height * p->width;
        const float *from = p->from + (p->first * p->channels + i) * p->H * p->W;
        memset(to, 0, p->height * p->width * sizeof(float));
        for (int64_t y = 0; y < p->H; y++)
            memcpy(to + (y + p->top) * p->width + p->left, from + y * p->W, p->W * sizeof(float));
    }
}

/* Returns how many images are padded at once, so that they are still in the cache when they are read. */
static int64_t in_a_round(const conv *c, int64_t elements) {
    return elements < AT_ONCE ? least(AT_ONCE / elements, c->N) : 1;
}

/* Runs one product for each group and phase, of images that are padded a few at a time. Returns 1 without memory. */
static int run_products(workers *team, const conv *c, padding *around, int64_t round, product *list, int64_t count) {
    int failed = 0;
    for (around->first = 0; around->first < c->N; around->first += round) {
        int64_t images = least(round, c->N - around->first);
        around->group = around->channels;
        if (around->to) share(team, pad_planes, images, around);
        for (int64_t k = 0; k < count; k++) {
            product p = list[k];
            p.images = images, p.to += around->first * p.to_image, p.failed = &failed;
            p.from += around->to ? 0 : around->first * p.from_image;
            p.tasks = least(TASKS, parts(images * p.high * p.wide, WIDE));
            share(team, multiply_panels, p.tasks, &p);
        }
    }
    return failed;
}

typedef struct {
    const float *K;
    float *kernels;
    int64_t taps, channels, strips, rows;
} packing;

/* Writes the kernels of one strip of channels of a group: [taps, rows]. */
static inline __attribute__((always_inline)) void pack_strip(const packing *p, size_t index, const int64_t rows) {
    int64_t first = index % p->strips * rows, there = least(rows, p->channels - first);
    const float *from = p->K + (index / p->strips * p->channels + first) * p->taps;
    float *to = p->kernels + index * p->taps * rows;
    for (int64_t t = 0; t < p->taps; t++)
        for (int64_t r = 0; r < rows; r++) *to++ = r < there ? from[r * p->taps + t] : 0;
}

static void pack_kernels(void *argument, size_t index) {
    const packing *p = argument;
    if (p->rows == ROWS)
        pack_strip(p, index, ROWS); /* nearly always: a length that the compiler knows */
    else
        pack_strip(p, index, p->rows);
}

int convolve(workers *team, const conv *c, const float *X, const float *K, const float *bias, int relu, float *Y) {
    padding around = {X, NULL, c->C, c->H, c->W, c->H + c->top + c->bottom, c->W + c->left + c->right,
                      c->top, c->left, 0, 0};
    int64_t pads = c->top || c->left || c->bottom || c->right, plane = around.height * around.width;
    int64_t inner = c->C / c->groups, outer = c->M / c->groups, size = c->kh * c->kw, taps = inner * size;
    int64_t strips = parts(outer, ROWS), rows = parts(outer, strips), round = pads ? in_a_round(c, c->C * plane) : c->N;
    if (pads) around.to = borrow(round * c->C * plane * sizeof(float));
    float *kernels = borrow(c->groups * strips * taps * rows * sizeof(float));
    int64_t *offsets = borrow(taps * sizeof(int64_t));
    product *list = borrow(c->groups * sizeof(product));
    int failed = (pads && !around.to) || !kernels || !offsets || !list;
    if (!failed) {
        for (int64_t t = 0; t < taps; t++)
            offsets[t] = t / size * plane + t % size / c->kw * c->dh * around.width + t % c->kw * c->dw;
        for (int64_t g = 0; g < c->groups; g++) {
            list[g] = (product){
                .from = (pads ? around.to : X) + g * inner * plane, .bias = bias ? bias + g * outer : NULL,
                .to = Y + g * outer * c->OH * c->OW, .kernels = kernels + g * strips * taps * rows, .offsets = offsets,
                .taps = taps, .channels = outer, .strips = strips, .rows = rows, .high = c->OH, .wide = c->OW,
                .from_image = c->C * plane, .down = c->sh * around.width, .across = c->sw,
                .to_image = c->M * c->OH * c->OW, .to_channel = c->OH * c->OW, .to_down = c->OW, .to_across = 1, .relu = relu};
        }
        packing p = {K, kernels, taps, outer, strips, rows};
        share(team, pack_kernels, c->groups * strips, &p);
        failed = run_products(team, c, &around, round, list, c->groups);
    }
    give_back(around.to), give_back(kernels), give_back(offsets), give_back(list);
    return failed;
}

/* Returns how many places 0 <= i < n leave the remainder r, divided by s. */
static int64_t places(int64_t n, int64_t r, int64_t s) { return r < n ? (n - r - 1) / s + 1 : 0; }

typedef struct {
    const conv *c;
    const float *K;
    float *kernels;
    product *list;
} turning;

/* Writes the kernels of one strip of channels of X: [taps, rows], for each phase. */
static inline __attribute__((always_inline)) void turn_strip(const turning *t, size_t index, const int64_t rows) {
    const conv *c = t->c;
    int64_t inner = c->C / c->groups, outer = c->M / c->groups, strips = parts(inner, ROWS), phases = c->sh * c->sw;
    int64_t g = index / strips, first = index % strips * rows, there = least(rows, inner - first);
    for (int64_t phase = 0; phase < phases; phase++) {
        const product *p = t->list + g * phases + phase;
        float *to = (float *)p->kernels + index % strips * p->taps * rows;
        for (int64_t m = 0; m < outer; m++)
            for (int64_t a = 0; a < c->kh; a++)
                for (int64_t b = 0; b < c->kw; b++) {
                    if ((phase / c->sw - a * c->dh) % c->sh || (phase % c->sw - b * c->dw) % c->sw) continue;
                    const float *from = t->K + (((g * outer + m) * inner + first) * c->kh + a) * c->kw + b;
                    for (int64_t r = 0; r < rows; r++) *to++ = r < there ? from[r * c->kh * c->kw] : 0;
                }
    }
}

static void turn_kernels(void *argument, size_t index) {
    const turning *t = argument;
    if (t->list->rows == ROWS)
        turn_strip(t, index, ROWS);
    else
        turn_strip(t, index, t->list->rows);
}

/* dX[n, c, i, j] = sum of dY[n, m, y, x] K[m, c, a, b] where i + top = y * sh + a * dh, and the same for j. */
int convolve_back(workers *team, const conv *c, const float *dY, const float *K, float *dX) {
    int64_t inner = c->C / c->groups, outer = c->M / c->groups, strips = parts(inner, ROWS), rows = parts(inner, strips);
    int64_t phases = c->sh * c->sw, most = outer * c->kh * c->kw;
    int64_t above = (c->kh - 1) * c->dh / c->sh + 1, before = (c->kw - 1) * c->dw / c->sw + 1; /* zeros around dY */
    int64_t high = (c->H + c->top) / c->sh + 2, wide = (c->W + c->left) / c->sw + 2;
    padding around = {dY, NULL, c->M, c->OH, c->OW, above + (high > c->OH ? high : c->OH),
                      before + (wide > c->OW ? wide : c->OW), above, before, 0, 0};
    int64_t plane = around.height * around.width, round = in_a_round(c, c->M * plane);
    around.to = borrow(round * c->M * plane * sizeof(float));
    float *kernels = borrow(c->groups * strips * most * rows * sizeof(float)); /* each tap is in one phase */
    int64_t *offsets = borrow(most * sizeof(int64_t));
    product *list = borrow(c->groups * phases * sizeof(product));
    int failed = !around.to || !kernels || !offsets || !list;
    if (!failed) {
        float *own = kernels;
        for (int64_t k = 0; k < c->groups * phases; k++) {
            int64_t g = k / phases, py = k % phases / c->sw, px = k % c->sw; /* (i + top) mod sh, (j + left) mod sw */
            int64_t i0 = (py - c->top % c->sh + c->sh) % c->sh, j0 = (px - c->left % c->sw + c->sw) % c->sw;
            int64_t *next = g || !k ? offsets : (int64_t *)list[k - 1].offsets + list[k - 1].taps, taps = 0;
            if (g) next = (int64_t *)list[k - phases].offsets;
            for (int64_t t = 0; t < most; t++) {
                int64_t up = py - t / c->kw % c->kh * c->dh, back = px - t % c->kw * c->dw;
                if (up % c->sh || back % c->sw) continue;
                next[taps++] = t / (c->kh * c->kw) * plane + up / c->sh * around.width + back / c->sw;
            }
            list[k] = (product){
                .from = around.to + g * outer * plane,
                .to = dX + g * inner * c->H * c->W, .kernels = own, .offsets = next, .taps = taps,
                .channels = inner, .strips = strips, .rows = rows, .high = places(c->H, i0, c->sh), .wide = places(c->W, j0, c->sw),
                .from_image = c->M * plane, .down = around.width, .across = 1,
                .to_image = c->C * c->H * c->W, .to_channel = c->H * c->W, .to_down = c->sh * c->W, .to_across = c->sw,
                .to_start = i0 * c->W + j0,
                .start = ((i0 + c->top) / c->sh + above) * around.width + (j0 + c->left) / c->sw + before};
            own += strips * taps * rows;
        }
        turning t = {c, K, kernels, list};
        share(team, turn_kernels, c->groups * strips, &t);
        failed = run_products(team, c, &around, round, list, c->groups * phases);
    }
    give_back(around.to), give_back(kernels), give_back(offsets), give_back(list);
    return failed;
}

#include "recurrent.h"

#include <unistd.h>

enum {
    FEW = 8,      /* rows of a batch that is shared between the threads by units */
    MANY = 16,    /* rows of a task that read weights from the last cache */
    AT_ONCE = 32, /* rows that go through a panel of weights while it is in the first cache */
    PAD = 16,     /* between rows, so that rows do not meet in the same place of the cache */
    MOST_ROWS = 13,
};

/* -- functions --------------------------------------------------------------------------------------------------- */

static inline vec sigmoid(vec x) {
    x = choose(x < -87.0f, splat(-87), x), x = choose(x > 87.0f, splat(87), x); /* NaN stays */
    return 1.0f / (1.0f + exponential(-x));
}

static inline vec hyperbolic(vec x) {
    vec size = (vec)((ivec)x & 0x7fffffff), z = x * x;
    vec p = z * -5.70498872745e-3f + 2.06390887954e-2f; /* near 0, where 1 - 2 / (e^2x + 1) cancels out */
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    vec far = 1.0f - 2.0f / (exponential(2.0f * choose(size > 20.0f, splat(20), size)) + 1.0f);
    far = (vec)((ivec)far | ((ivec)x & (int32_t)0x80000000));
    return choose(size < 0.625f, p * z * x + x, far);
}

/* -- products ---------------------------------------------------------------------------------------------------- */

/* sums[rows, WIDE] = A[rows, depth] panel[depth, WIDE] */
static inline __attribute__((always_inline)) void tile_of(const int rows, const float *A, int64_t down,
                                                          const float *panel, int64_t depth, float *sums) {
    vec s[MOST_ROWS][2];
    for (int i = 0; i < rows; i++) s[i][0] = s[i][1] = splat(0);
    for (int64_t k = 0; k < depth; k++, panel += WIDE) {
        vec b0 = load(panel), b1 = load(panel + LANES);
        for (int i = 0; i < rows; i++) {
            float a = A[i * down + k];
            s[i][0] += a * b0, s[i][1] += a * b1;
        }
    }
    for (int i = 0; i < rows; i++) store(sums + i * WIDE, s[i][0]), store(sums + i * WIDE + LANES, s[i][1]);
}

static void tile(int64_t rows, const float *A, int64_t down, const float *panel, int64_t depth, float *sums) {
    FOR_ROWS(rows, tile_of, A, down, panel, depth, sums)
}

/* sums[rows, WIDE] = A[rows, depth] panel[depth, WIDE], by tiles of about the same size */
static void product(int64_t rows, const float *A, int64_t down, const float *panel, int64_t depth, float *sums) {
    int64_t tiles = parts(rows, ROWS);
    for (int64_t i = 0; i < tiles; i++) {
        int64_t first = i * rows / tiles, count = (i + 1) * rows / tiles - first;
        tile(count, A + first * down, down, panel, depth, sums + first * WIDE);
    }
}

/* LANES elements, of which `n` are there */
static inline vec get(const float *p, int64_t n) {
    vec v = splat(0);
    if (n >= LANES) return load(p);
    memcpy(&v, p, n * sizeof(float));
    return v;
}

static inline void put(float *p, vec v, int64_t n) {
    if (n >= LANES)
        store(p, v);
    else
        memcpy(p, &v, n * sizeof(float));
}

/* panels[group, gate, k, WIDE] = R[gate, unit, k] */
static void pack(void *argument, size_t index) {
    const recurrence *r = argument;
    int64_t gate = index % r->gates, first = index / r->gates * WIDE, units = least(WIDE, r->H - first);
    float *to = r->panels + index * r->H * WIDE;
    if (units < WIDE) memset(to, 0, r->H * WIDE * sizeof(float));
    for (int64_t u = 0; u < units; u++) {
        const float *from = r->R + (gate * r->H + first + u) * r->H;
        for (int64_t k = 0; k < r->H; k++) to[k * WIDE + u] = from[k];
    }
}

/* panels[group, gate and unit, WIDE] = R[gate and unit, k] */
static void pack_back(void *argument, size_t index) {
    const recurrence *r = argument;
    int64_t first = index * WIDE, units = least(WIDE, r->H - first), depth = r->gates * r->H;
    float *to = r->panels + index * depth * WIDE;
    if (units < WIDE) memset(to, 0, depth * WIDE * sizeof(float));
    for (int64_t k = 0; k < depth; k++) memcpy(to + k * WIDE, r->R + k * r->H + first, units * sizeof(float));
}

/* -- forward ----------------------------------------------------------------------------------------------------- */

/* The gates of one row and up to LANES units of a step; `sums`: of the first gate, WIDE * AT_ONCE before the next. */
static inline void lstm_gates(const recurrence *r, int64_t t, int64_t b, int64_t u, int64_t n, const float *sums) {
    int64_t row = t * r->B + b, H = r->H, next = WIDE * AT_ONCE;
    const float *x = r->X + row * 4 * H + u;
    float *kept = r->kept + row * 4 * H + u;
    vec i = sigmoid(get(x, n) + load(sums)), o = sigmoid(get(x + H, n) + load(sums + next));
    vec f = sigmoid(get(x + 2 * H, n) + load(sums + 2 * next));
    vec c = hyperbolic(get(x + 3 * H, n) + load(sums + 3 * next));
    vec cell = f * get(t ? r->cells + (row - r->B) * H + u : r->c0 + b * H + u, n) + i * c;
    vec h = o * hyperbolic(cell);
    put(kept, i, n), put(kept + H, o, n), put(kept + 2 * H, f, n), put(kept + 3 * H, c, n);
    put(r->cells + row * H + u, cell, n), put(r->hidden + row * H + u, h, n);
    store(r->states + (((t + 1) & 1) * r->B + b) * r->stride + u, h);
}

static inline void gru_gates(const recurrence *r, int64_t t, int64_t b, int64_t u, int64_t n, const float *sums) {
    int64_t row = t * r->B + b, H = r->H, next = WIDE * AT_ONCE;
    const float *x = r->X + row * 3 * H + u;
    float *kept = r->kept + row * 4 * H + u;
    vec part[3];
    for (int q = 0; q < 3; q++) {
        part[q] = load(sums + q * next);
        if (r->bias) part[q] += get(r->bias + q * H + u, n);
    }
    vec z = sigmoid(get(x, n) + part[0]), reset = sigmoid(get(x + H, n) + part[1]);
    vec h = hyperbolic(get(x + 2 * H, n) + reset * part[2]);
    vec before = load(r->states + ((t & 1) * r->B + b) * r->stride + u);
    vec after = h + z * (before - h);
    put(kept, z, n), put(kept + H, reset, n), put(kept + 2 * H, h, n), put(kept + 3 * H, part[2], n);
    put(r->hidden + row * H + u, after, n);
    store(r->states + (((t + 1) & 1) * r->B + b) * r->stride + u, after);
}

/* One step of some rows, for the units of one group. */
static void forward(const recurrence *r, int64_t t, int64_t first, int64_t rows, int64_t group) {
    float sums[4][AT_ONCE * WIDE];
    for (int64_t b = first; b < first + rows; b += AT_ONCE) {
        int64_t count = least(AT_ONCE, first + rows - b);
        const float *states = r->states + ((t & 1) * r->B + b) * r->stride;
        for (int64_t q = 0; q < r->gates; q++)
            product(count, states, r->stride, r->panels + (group * r->gates + q) * r->H * WIDE, r->H, sums[q]);
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < WIDE && group * WIDE + j < r->H; j += LANES)
                (r->gates == 4 ? lstm_gates : gru_gates)(r, t, b + i, group * WIDE + j,
                                                         least(LANES, r->H - group * WIDE - j), sums[0] + i * WIDE + j);
    }
}

/* One for each processor, of a tile or more. */
static int64_t row_tasks(const recurrence *r) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return least(processors > 1 ? processors : 1, parts(r->B, ROWS));
}

static int64_t cache(int level) {
    long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(level == 2 ? _SC_LEVEL2_CACHE_SIZE : _SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? bytes : 1 << 20;
}

/* Whether a task is some rows for all steps: there is nothing to wait for, but each task reads all weights in each step.
   They come from the second cache, or, where many rows use them, from the last one. */
static int goes_by_rows(const recurrence *r) {
    int64_t bytes = r->gates * r->H * r->H * sizeof(float);
    if (r->B < FEW) return 0;
    return bytes <= cache(2) / 2 || (r->B / row_tasks(r) >= MANY && bytes <= cache(3) / 4);
}

static void forward_rows(void *argument, size_t index) {
    const recurrence *r = argument;
    int64_t tasks = row_tasks(r), first = index * r->B / tasks, rows = (index + 1) * r->B / tasks - first;
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t group = 0; group < parts(r->H, WIDE); group++) forward(r, t, first, rows, group);
}

static void forward_units(void *argument, size_t group) {
    const recurrence *r = argument;
    forward(r, r->step, 0, r->B, group);
}

static int get_scratch(recurrence *r, int64_t depth) {
    int64_t groups = parts(r->H, WIDE);
    r->stride = groups * WIDE + PAD, r->wide_stride = depth + PAD;
    r->panels = borrow(groups * r->gates * r->H * WIDE * sizeof(float));
    r->states = borrow(2 * r->B * r->stride * sizeof(float));
    r->rows = borrow(r->B * r->wide_stride * sizeof(float));
    return !r->panels || !r->states || !r->rows;
}

static void end_scratch(recurrence *r) { give_back(r->panels), give_back(r->states), give_back(r->rows); }

int recur(workers *team, recurrence *r) {
    int64_t groups = parts(r->H, WIDE);
    int failed = get_scratch(r, 0);
    if (!failed) {
        share(team, pack, groups * r->gates, r);
        for (int64_t b = 0; b < r->B; b++)
            memcpy(r->states + b * r->stride, r->h0 + b * r->H, r->H * sizeof(float));
        if (goes_by_rows(r))
            share(team, forward_rows, row_tasks(r), r);
        else
            for (r->step = 0; r->step < r->T; r->step++) share(team, forward_units, groups, r);
    }
    end_scratch(r);
    return failed;
}

/* -- backward ---------------------------------------------------------------------------------------------------- */

/* dC += dH o (1 - tanh(C)^2); the gates' parts; dC of the step before = dC f */
static inline void lstm_slopes(const recurrence *r, int64_t t, int64_t b, int64_t u, int64_t n) {
    int64_t row = t * r->B + b, H = r->H;
    const float *kept = r->kept + row * 4 * H + u;
    float *dh = r->dh + b * H + u, *dc = r->dc + b * H + u, *to = r->dA + row * 4 * H + u;
    float *own = r->rows + b * r->wide_stride + u;
    vec i = get(kept, n), o = get(kept + H, n), f = get(kept + 2 * H, n), c = get(kept + 3 * H, n);
    vec before = get(t ? r->cells + (row - r->B) * H + u : r->c0 + b * H + u, n);
    vec h = hyperbolic(get(r->cells + row * H + u, n)), dH = get(dh, n);
    if (r->dY) dH += get(r->dY + row * H + u, n);
    vec dC = get(dc, n) + dH * (o * (1.0f - h * h));
    vec made[] = {dC * (c * (i * (1.0f - i))), dH * (h * (o * (1.0f - o))), dC * (before * (f * (1.0f - f))),
                   dC * (i * (1.0f - c * c))};
    for (int q = 0; q < 4; q++) put(to + q * H, made[q], n), put(own + q * H, made[q], n);
    put(dh, splat(0), n), put(dc, dC * f, n);
}

static inline void gru_slopes(const recurrence *r, int64_t t, int64_t b, int64_t u, int64_t n) {
    int64_t row = t * r->B + b, H = r->H;
    const float *kept = r->kept + row * 4 * H + u;
    float *dh = r->dh + b * H + u, *to = r->dA + row * 3 * H + u, *input = r->dX + row * 3 * H + u;
    float *own = r->rows + b * r->wide_stride + u;
    vec z = get(kept, n), reset = get(kept + H, n), h = get(kept + 2 * H, n), inner = get(kept + 3 * H, n);
    vec before = get(t ? r->hidden + (row - r->B) * H + u : r->h0 + b * H + u, n), dH = get(dh, n);
    if (r->dY) dH += get(r->dY + row * H + u, n);
    vec by_h = (1.0f - z) * (1.0f - h * h);
    vec made[] = {dH * ((before - h) * (z * (1.0f - z))), dH * (by_h * (inner * (reset * (1.0f - reset)))),
                   dH * (by_h * reset)};
    for (int q = 0; q < 3; q++) put(to + q * H, made[q], n), put(own + q * H, made[q], n);
    put(input, made[0], n), put(input + H, made[1], n), put(input + 2 * H, dH * by_h, n);
    put(dh, dH * z, n);
}

static void slopes(const recurrence *r, int64_t t, int64_t first, int64_t rows, int64_t unit, int64_t end) {
    for (int64_t b = first; b < first + rows; b++)
        for (int64_t u = unit; u < end; u += LANES)
            (r->gates == 4 ? lstm_slopes : gru_slopes)(r, t, b, u, least(LANES, end - u));
}

/* dH of the step before += dA R, for some rows and the units of one group */
static void backward(const recurrence *r, int64_t first, int64_t rows, int64_t group) {
    float sums[AT_ONCE * WIDE];
    int64_t depth = r->gates * r->H, unit = group * WIDE;
    for (int64_t b = first; b < first + rows; b += AT_ONCE) {
        int64_t count = least(AT_ONCE, first + rows - b);
        product(count, r->rows + b * r->wide_stride, r->wide_stride, r->panels + group * depth * WIDE, depth, sums);
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < WIDE && unit + j < r->H; j += LANES) {
                float *dh = r->dh + (b + i) * r->H + unit + j;
                int64_t n = least(LANES, r->H - unit - j);
                put(dh, get(dh, n) + load(sums + i * WIDE + j), n);
            }
    }
}

static void backward_rows(void *argument, size_t index) {
    const recurrence *r = argument;
    int64_t tasks = row_tasks(r), first = index * r->B / tasks, rows = (index + 1) * r->B / tasks - first;
    for (int64_t t = r->T - 1; t >= 0; t--) {
        slopes(r, t, first, rows, 0, r->H);
        for (int64_t group = 0; group < parts(r->H, WIDE); group++) backward(r, first, rows, group);
    }
}

static void slopes_of_units(void *argument, size_t group) {
    const recurrence *r = argument;
    slopes(r, r->step, 0, r->B, group * WIDE, least((group + 1) * WIDE, r->H));
}

static void backward_units(void *argument, size_t group) {
    const recurrence *r = argument;
    backward(r, 0, r->B, group);
}

int recur_back(workers *team, recurrence *r) {
    int64_t groups = parts(r->H, WIDE);
    int failed = get_scratch(r, r->gates * r->H);
    if (!failed) {
        share(team, pack_back, groups, r);
        if (goes_by_rows(r))
            share(team, backward_rows, row_tasks(r), r);
        else
            for (r->step = r->T - 1; r->step >= 0; r->step--) {
                share(team, slopes_of_units, groups, r);
                share(team, backward_units, groups, r);
            }
    }
    end_scratch(r);
    return failed;
}

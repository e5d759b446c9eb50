/* What works on the rows of a matrix; see rows.h. */
#include "rows.h"

#include <math.h>

enum { MOST_BLOCKS = 32, ELEMENTS = 16384 }; /* of a block: fewer are not worth a thread */

typedef struct {
    int64_t rows, columns, blocks;
} matrix;

static matrix matrix_of(int64_t rows, int64_t columns) {
    int64_t blocks = least(least(MOST_BLOCKS, rows), parts(rows * columns, ELEMENTS));
    return (matrix){rows, columns, blocks < 1 ? 1 : blocks};
}

static int64_t first_row(const matrix *m, int64_t block) { return block * m->rows / m->blocks; }

/* -- sums over the rows: each block has its own, and they are added in the order of the blocks -------------------- */

static float *sums_of_blocks(const matrix *m, int count) {
    float *sums = borrow(sizeof(float) * count * m->blocks * m->columns);
    if (sums) memset(sums, 0, sizeof(float) * count * m->blocks * m->columns);
    return sums;
}

static void add_blocks(const matrix *m, const float *sums, float *total) {
    for (int64_t c = 0; c < m->columns; c++) {
        double sum = 0;
        for (int64_t block = 0; block < m->blocks; block++) sum += sums[block * m->columns + c];
        total[c] = (float)sum;
    }
}

/* -- layer normalisation ----------------------------------------------------------------------------------------- */

typedef struct {
    matrix m;
    row_normalization *n;
    float *dscale, *dbias; /* of each block */
} normalization_task;

static void normalize_block(void *argument, size_t block) {
    const normalization_task *t = argument;
    const row_normalization *n = t->n;
    int64_t C = n->columns;
    for (int64_t row = first_row(&t->m, block); row < first_row(&t->m, block + 1); row++) {
        const float *x = n->X + row * C;
        float *y = n->Y + row * C;
        vec sum = splat(0), squares = splat(0);
        float rest = 0, rest_squares = 0;
        int64_t c = 0;
        for (; c + LANES <= C; c += LANES) sum += load(x + c);
        for (; c < C; c++) rest += x[c];
        float mean = (total(sum) + rest) / C;
        for (c = 0; c + LANES <= C; c += LANES) squares += (load(x + c) - mean) * (load(x + c) - mean);
        for (; c < C; c++) rest_squares += (x[c] - mean) * (x[c] - mean);
        float inverse = 1 / sqrtf((total(squares) + rest_squares) / C + n->epsilon);
        for (c = 0; c + LANES <= C; c += LANES)
            store(y + c, (load(x + c) - mean) * inverse * load(n->scale + c) + load(n->bias + c));
        for (; c < C; c++) y[c] = (x[c] - mean) * inverse * n->scale[c] + n->bias[c];
        n->mean[row] = mean, n->inverse[row] = inverse;
    }
}

void normalize_rows(workers *team, row_normalization *n) {
    normalization_task t = {.m = matrix_of(n->rows, n->columns), .n = n};
    share(team, normalize_block, t.m.blocks, &t);
}

/* dX = inverse * (dN - mean(dN) - N * mean(dN * N)), with N = (X - mean) * inverse and dN = dY * scale */
static inline __attribute__((always_inline)) void back_row(const normalization_task *t, int64_t row, int64_t block,
                                                           int has_more) {
    const row_normalization *n = t->n;
    int64_t C = n->columns, c = 0;
    const float *x = n->X + row * C, *dy = n->dY + row * C, *more = has_more ? n->more + row * C : NULL;
    float *dx = n->dX + row * C, *dscale = t->dscale + block * C, *dbias = t->dbias + block * C;
    float mean = n->mean[row], inverse = n->inverse[row], rest = 0, rest_product = 0;
    vec sum = splat(0), product = splat(0);
    for (; c + LANES <= C; c += LANES) {
        vec d = load(dy + c), N = (load(x + c) - mean) * inverse;
        if (has_more) d += load(more + c);
        store(dscale + c, load(dscale + c) + d * N), store(dbias + c, load(dbias + c) + d);
        d *= load(n->scale + c);
        sum += d, product += d * N;
    }
    for (; c < C; c++) {
        float d = dy[c] + (has_more ? more[c] : 0), N = (x[c] - mean) * inverse;
        dscale[c] += d * N, dbias[c] += d;
        d *= n->scale[c];
        rest += d, rest_product += d * N;
    }
    float offset = (total(sum) + rest) / C, tilt = (total(product) + rest_product) / C;
    for (c = 0; c + LANES <= C; c += LANES) {
        vec d = load(dy + c), N = (load(x + c) - mean) * inverse;
        if (has_more) d += load(more + c);
        store(dx + c, inverse * (d * load(n->scale + c) - offset - N * tilt));
    }
    for (; c < C; c++) {
        float d = dy[c] + (has_more ? more[c] : 0), N = (x[c] - mean) * inverse;
        dx[c] = inverse * (d * n->scale[c] - offset - N * tilt);
    }
}

static void normalize_block_back(void *argument, size_t block) {
    const normalization_task *t = argument;
    for (int64_t row = first_row(&t->m, block); row < first_row(&t->m, block + 1); row++)
        if (t->n->more)
            back_row(t, row, block, 1);
        else
            back_row(t, row, block, 0);
}

int normalize_rows_back(workers *team, row_normalization *n) {
    normalization_task t = {.m = matrix_of(n->rows, n->columns), .n = n};
    t.dscale = sums_of_blocks(&t.m, 2), t.dbias = t.dscale + t.m.blocks * t.m.columns;
    if (!t.dscale) return 1;
    share(team, normalize_block_back, t.m.blocks, &t);
    add_blocks(&t.m, t.dscale, n->dscale);
    add_blocks(&t.m, t.dbias, n->dbias);
    give_back(t.dscale);
    return 0;
}

/* -- Softmax and Relu -------------------------------------------------------------------------------------------- */

typedef struct {
    matrix m;
    const float *dY, *Y;
    float *dX, *sums; /* of each block */
} gradient_task;

static void softmax_block_back(void *argument, size_t block) {
    const gradient_task *t = argument;
    int64_t C = t->m.columns;
    for (int64_t row = first_row(&t->m, block); row < first_row(&t->m, block + 1); row++) {
        const float *dy = t->dY + row * C, *y = t->Y + row * C;
        float *dx = t->dX + row * C, rest = 0;
        vec sum = splat(0);
        int64_t c = 0;
        for (; c + LANES <= C; c += LANES) sum += load(dy + c) * load(y + c);
        for (; c < C; c++) rest += dy[c] * y[c];
        rest += total(sum);
        for (c = 0; c + LANES <= C; c += LANES) store(dx + c, load(y + c) * (load(dy + c) - rest));
        for (; c < C; c++) dx[c] = y[c] * (dy[c] - rest);
    }
}

void softmax_back(workers *team, int64_t rows, int64_t columns, const float *dY, const float *Y, float *dX) {
    gradient_task t = {.m = matrix_of(rows, columns), .dY = dY, .Y = Y, .dX = dX};
    share(team, softmax_block_back, t.m.blocks, &t);
}

static void relu_block_back(void *argument, size_t block) {
    const gradient_task *t = argument;
    int64_t C = t->m.columns, from = first_row(&t->m, block) * C, to = first_row(&t->m, block + 1) * C;
    if (!t->sums) { /* the rows do not matter */
        for (; from + LANES <= to; from += LANES)
            store(t->dX + from, load(t->dY + from) * where(load(t->Y + from) > 0, splat(1)));
        for (; from < to; from++) t->dX[from] = t->dY[from] * (t->Y[from] > 0);
        return;
    }
    float *sums = t->sums + block * C;
    for (; from < to; from += C) {
        const float *dy = t->dY + from, *y = t->Y + from;
        float *dx = t->dX + from;
        int64_t c = 0;
        for (; c + LANES <= C; c += LANES) {
            vec d = load(dy + c) * where(load(y + c) > 0, splat(1)); /* 0 * NaN stays NaN */
            store(dx + c, d), store(sums + c, load(sums + c) + d);
        }
        for (; c < C; c++) sums[c] += dx[c] = dy[c] * (y[c] > 0);
    }
}

int relu_back(workers *team, int64_t rows, int64_t columns, const float *dY, const float *Y, float *dX, float *sum) {
    gradient_task t = {.m = matrix_of(rows, columns), .dY = dY, .Y = Y, .dX = dX};
    if (sum && !(t.sums = sums_of_blocks(&t.m, 1))) return 1;
    share(team, relu_block_back, t.m.blocks, &t);
    if (sum) add_blocks(&t.m, t.sums, sum);
    give_back(t.sums);
    return 0;
}

static void sum_block(void *argument, size_t block) {
    const gradient_task *t = argument;
    int64_t C = t->m.columns;
    float *sums = t->sums + block * C;
    for (int64_t row = first_row(&t->m, block); row < first_row(&t->m, block + 1); row++) {
        const float *x = t->dY + row * C;
        for (int64_t c = 0; c < C; c++) sums[c] += x[c];
    }
}

int sum_rows(workers *team, int64_t rows, int64_t columns, const float *X, float *sum) {
    gradient_task t = {.m = matrix_of(rows, columns), .dY = X, .sums = NULL};
    if (!(t.sums = sums_of_blocks(&t.m, 1))) return 1;
    share(team, sum_block, t.m.blocks, &t);
    add_blocks(&t.m, t.sums, sum);
    give_back(t.sums);
    return 0;
}

/* -- the loss ------------------------------------------------------------------------------------------------------ */

/* e^x for x <= 0; 0 below the least normal number; NaN stays NaN. */
static inline vec fading(vec x) {
    ivec tiny = x < -87.33f;
    return where(~tiny, exponential(choose(tiny, splat(-87.33f), x)));
}

typedef struct {
    matrix m;
    const float *X;
    const int64_t *labels;
    int64_t ignored;
    float factor, *dX;
    double *losses; /* of each block */
    int beyond[MOST_BLOCKS];
} loss_task;

static void loss_block(void *argument, size_t block) {
    loss_task *t = argument;
    int64_t C = t->m.columns;
    for (int64_t row = first_row(&t->m, block); row < first_row(&t->m, block + 1); row++) {
        const float *x = t->X + row * C;
        float *dx = t->dX + row * C, most = x[0], rest = 0;
        int64_t label = t->labels[row], c;
        if (label == t->ignored) {
            memset(dx, 0, sizeof(float) * C);
            continue;
        }
        if (label < 0) label += C;
        if (label < 0 || label >= C) {
            t->beyond[block] = 1;
            continue;
        }
        vec sum = splat(0), largest = splat(most);
        for (c = 0; c + LANES <= C; c += LANES) {
            vec v = load(x + c);
            ivec larger = v > largest;
            largest = (vec)(((ivec)v & larger) | ((ivec)largest & ~larger));
        }
        for (; c < C; c++) most = x[c] > most ? x[c] : most;
        for (int i = 0; i < LANES; i++) most = largest[i] > most ? largest[i] : most;
        for (c = 0; c + LANES <= C; c += LANES) {
            vec e = fading(load(x + c) - most);
            store(dx + c, e), sum += e;
        }
        if (c < C) { /* the last columns, in a vector of their own */
            float last[LANES];
            for (int i = 0; i < LANES; i++) last[i] = c + i < C ? x[c + i] - most : -INFINITY;
            vec e = fading(load(last));
            store(last, e);
            memcpy(dx + c, last, sizeof(float) * (C - c));
            rest = total(e);
        }
        rest += total(sum);
        t->losses[block] += logf(rest) - (x[label] - most);
        float share = t->factor / rest;
        for (c = 0; c < C; c++) dx[c] *= share;
        dx[label] -= t->factor;
    }
}

int cross_entropy(workers *team, int64_t rows, int64_t columns, const float *X, const int64_t *labels, int64_t ignored,
                  float seed, float *loss, float *dX) {
    double losses[MOST_BLOCKS] = {0}, sum = 0;
    int64_t counted = 0;
    for (int64_t row = 0; row < rows; row++) counted += labels[row] != ignored;
    loss_task t = {.m = matrix_of(rows, columns), .X = X, .labels = labels, .ignored = ignored, .dX = dX,
                   .losses = losses, .factor = seed / (counted ? counted : 1)};
    share(team, loss_block, t.m.blocks, &t);
    for (int i = 0; i < t.m.blocks; i++) {
        sum += losses[i];
        if (t.beyond[i]) return 2;
    }
    *loss = (float)(sum / counted); /* NaN where no label counts, as in PyTorch */
    return 0;
}

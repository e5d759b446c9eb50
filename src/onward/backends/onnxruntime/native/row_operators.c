/* The operators of rows: all dimensions but the last are rows. */
#include "operators.h"
#include "rows.h"

static int64_t columns_of(const tensor *t) { return t->rank ? t->size[t->rank - 1] : 0; }

static int64_t rows_of(const tensor *t) {
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < t->rank; i++) rows *= t->size[i];
    return rows;
}

static int read_rows(const int64_t *sizes, const tensor *X, row_normalization *n) {
    int32_t bits = (int32_t)sizes[0];
    *n = (row_normalization){.X = X->data, .rows = rows_of(X), .columns = columns_of(X)};
    memcpy(&n->epsilon, &bits, sizeof bits);
    return X->rank < 1 || n->columns < 1;
}

/* (X, scale, bias) -> Y, mean, inverse deviation; sizes: the bits of epsilon */
static int run_normalize_rows(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    row_normalization n;
    int64_t column[8];
    (void)inputs;
    if (read_rows(sizes, in, &n) || !is_vector(in + 1, n.columns) || !is_vector(in + 2, n.columns)) return NO_FIT;
    memcpy(column, in[0].size, sizeof column);
    column[in[0].rank - 1] = 1;
    n.scale = in[1].data, n.bias = in[2].data;
    n.Y = out(team, 0, (int64_t *)in[0].size, in[0].rank);
    n.mean = out(team, 1, column, in[0].rank), n.inverse = out(team, 2, column, in[0].rank);
    if (!n.rows) return 0;
    if (!n.Y || !n.mean || !n.inverse) return NO_MEMORY;
    normalize_rows(team, &n);
    return 0;
}

/* (X, scale, mean, inverse deviation, dY), and what to add to dY -> dX, dscale, dbias */
static int run_normalize_rows_back(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    row_normalization n;
    if (read_rows(sizes, in, &n) || !is_vector(in + 1, n.columns)) return NO_FIT;
    if (rows_of(in + 2) * columns_of(in + 2) != n.rows || rows_of(in + 3) * columns_of(in + 3) != n.rows) return NO_FIT;
    for (size_t i = 4; i < inputs; i++)
        if (!same_shape(in, in + i)) return NO_FIT;
    int64_t vector[] = {n.columns};
    n.scale = in[1].data, n.mean = (float *)in[2].data, n.inverse = (float *)in[3].data;
    n.dY = in[4].data, n.more = inputs == 6 ? in[5].data : NULL;
    n.dX = out(team, 0, (int64_t *)in[0].size, in[0].rank);
    n.dscale = out(team, 1, vector, 1), n.dbias = out(team, 2, vector, 1);
    if ((n.rows && !n.dX) || !n.dscale || !n.dbias) return NO_MEMORY;
    return normalize_rows_back(team, &n) ? NO_MEMORY : 0;
}

/* (dY, Y) -> dX */
static int run_softmax_back(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    (void)sizes, (void)inputs;
    if (in[0].rank < 1 || !same_shape(in, in + 1)) return NO_FIT;
    float *dX = out(team, 0, (int64_t *)in[0].size, in[0].rank);
    if (!rows_of(in) || !columns_of(in)) return 0;
    if (!dX) return NO_MEMORY;
    softmax_back(team, rows_of(in), columns_of(in), in[0].data, in[1].data, dX);
    return 0;
}

/* (dY, Y) -> dX; sizes[0]: and the sum of its rows */
static int run_relu_back(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    (void)inputs;
    if (in[0].rank < 1 || !same_shape(in, in + 1)) return NO_FIT;
    int64_t vector[] = {columns_of(in)};
    float *dX = out(team, 0, (int64_t *)in[0].size, in[0].rank), *sum = sizes[0] ? out(team, 1, vector, 1) : NULL;
    if (!columns_of(in) || (!rows_of(in) && !sum)) return 0;
    if ((rows_of(in) && !dX) || (sizes[0] && !sum)) return NO_MEMORY;
    return relu_back(team, rows_of(in), columns_of(in), in[0].data, in[1].data, dX, sum) ? NO_MEMORY : 0;
}

/* X -> the sum of its rows */
static int run_sum_rows(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    (void)sizes, (void)inputs;
    int64_t vector[] = {columns_of(in)};
    float *sum = out(team, 0, vector, 1);
    if (!sum) return NO_MEMORY;
    return sum_rows(team, rows_of(in), columns_of(in), in[0].data, sum) ? NO_MEMORY : 0;
}

/* (scores, labels) -> loss, dscores; sizes: the label to ignore, the bits of the gradient of the loss */
static int run_cross_entropy(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    int32_t bits = (int32_t)sizes[1];
    float seed;
    (void)inputs;
    memcpy(&seed, &bits, sizeof bits);
    if (in[0].rank != 2 || !is_vector(in + 1, in[0].size[0]) || !in[0].size[1]) return NO_FIT;
    float *loss = out(team, 0, NULL, 0), *dX = out(team, 1, (int64_t *)in[0].size, 2);
    if (!loss || (in[0].size[0] && !dX)) return NO_MEMORY;
    return cross_entropy(team, in[0].size[0], in[0].size[1], in[0].data, (const int64_t *)in[1].data, sizes[0], seed,
                         loss, dX)
               ? NO_LABEL
               : 0;
}

kind row_operators[] = {
    {.name = "NormalizeRows", .inputs = 3, .outputs = 3, .run = run_normalize_rows},
    {.name = "NormalizeRowsBack", .inputs = 5, .outputs = 3, .run = run_normalize_rows_back},
    {.name = "NormalizeRowsAddedBack", .inputs = 6, .outputs = 3, .run = run_normalize_rows_back},
    {.name = "SoftmaxBack", .inputs = 2, .outputs = 1, .run = run_softmax_back},
    {.name = "ReluBack", .inputs = 2, .outputs = 1, .run = run_relu_back},
    {.name = "ReluSumBack", .inputs = 2, .outputs = 2, .run = run_relu_back},
    {.name = "SumRows", .inputs = 1, .outputs = 1, .run = run_sum_rows},
    {.name = "CrossEntropy", .inputs = 2, .outputs = 2, .whole = 1 << 1, .run = run_cross_entropy},
    {.name = NULL},
};

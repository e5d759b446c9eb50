/* The kernels as operators of ONNX Runtime, in the domain ai.onward.native. */
#include "runtime.h"

#include <pthread.h>

#include "convolution.h"
#include "normalization.h"
#include "products.h"
#include "recurrent.h"
#include "rows.h"
#include "tiles.h"

#define CALL(kernel_api, place, type) ((type)(kernel_api)[place])
enum { MOST_SIZES = 24, MOST_INPUTS = 8 };

struct workers {
    api functions;
    const void *context;
};

enum { BLOCKS = 32 }; /* into which many small tasks are put together */

typedef struct {
    task run;
    void *argument;
    size_t count, blocks;
} tasks;

static void run_block(void *argument, size_t block) {
    const tasks *t = argument;
    for (size_t i = block * t->count / t->blocks; i < (block + 1) * t->count / t->blocks; i++) t->run(t->argument, i);
}

void share(workers *team, task run, size_t count, void *argument) {
    typedef status *(*parallel_for)(const void *, task, size_t, size_t, void *);
    tasks t = {run, argument, count, count < BLOCKS ? count : BLOCKS};
    status *problem = NULL;
    if (count > 1)
        problem = CALL(team->functions, PARALLEL_FOR, parallel_for)(team->context, run_block, t.blocks, 0, &t);
    if (problem || count == 1) run_block(&(tasks){run, argument, count, 1}, 0);
    if (problem) CALL(team->functions, RELEASE_STATUS, void (*)(status *))(problem);
}

/* -- memory ---------------------------------------------------------------------------------------------------- */

enum { SLOTS = 32, HEADER = 64 };
static const size_t MOST_KEPT = 48 << 20; /* bytes */
static struct {
    pthread_mutex_t lock;
    void *kept[SLOTS];
    size_t bytes;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

void *borrow(size_t bytes) {
    int best = -1;
    void *block = NULL;
    bytes += HEADER + 4 * WIDE * sizeof(float); /* vectors may reach beyond the end */
    pthread_mutex_lock(&pool.lock);
    for (int i = 0; i < SLOTS; i++)
        if (pool.kept[i] && *(size_t *)pool.kept[i] >= bytes &&
            (best < 0 || *(size_t *)pool.kept[i] < *(size_t *)pool.kept[best]))
            best = i;
    if (best >= 0 && *(size_t *)pool.kept[best] / 2 <= bytes + 4096) {
        block = pool.kept[best];
        pool.kept[best] = NULL;
        pool.bytes -= *(size_t *)block;
    }
    pthread_mutex_unlock(&pool.lock);
    if (!block) {
        bytes = (bytes + HEADER - 1) / HEADER * HEADER;
        if (posix_memalign(&block, HEADER, bytes)) return NULL;
        *(size_t *)block = bytes;
    }
    return (char *)block + HEADER;
}

void give_back(void *memory) {
    if (!memory) return;
    void *block = (char *)memory - HEADER;
    pthread_mutex_lock(&pool.lock);
    for (int i = 0; i < SLOTS && block; i++)
        if (!pool.kept[i] && pool.bytes + *(size_t *)block <= MOST_KEPT) {
            pool.bytes += *(size_t *)block;
            pool.kept[i] = block;
            block = NULL;
        }
    pthread_mutex_unlock(&pool.lock);
    free(block);
}

/* -- the call of a kernel --------------------------------------------------------------------------------------- */

typedef struct {
    const float *data;
    int64_t size[8];
    size_t rank;
} tensor;

enum { NO_MEMORY = 1, NO_FIT = 2, NO_LABEL = 3 };

/* Returns the memory of output `index`, of this shape; NULL if there is none. */
typedef float *(*outputs)(workers *team, size_t index, int64_t *size, size_t rank);

typedef struct {
    operator base;
    const char *name;
    size_t inputs, outputs;
    unsigned whole; /* a bit for each input of whole numbers, int64; the others are float */
    int (*run)(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out);
} kind;

typedef struct {
    const kind *kind;
    api functions;
    int64_t sizes[MOST_SIZES];
} kernel;

static status *failure(api functions, const char *text) {
    return CALL(functions, CREATE_STATUS, status * (*)(int, const char *))(1, text);
}

static void dismiss(api functions, status *problem) {
    if (problem) CALL(functions, RELEASE_STATUS, void (*)(status *))(problem);
}

static float *output(workers *team, size_t index, int64_t *size, size_t rank) {
    void *value = NULL, *data = NULL;
    typedef status *(*get_output)(const void *, size_t, const int64_t *, size_t, void **);
    dismiss(team->functions, CALL(team->functions, CONTEXT_OUTPUT, get_output)(team->context, index, size, rank, &value));
    if (value)
        dismiss(team->functions, CALL(team->functions, TENSOR_DATA, status * (*)(void *, void **))(value, &data));
    return data;
}

static status *read_input(workers *team, size_t index, tensor *t) {
    api f = team->functions;
    const void *value = NULL;
    void *shape = NULL, *data = NULL;
    status *s = CALL(f, CONTEXT_INPUT, status * (*)(const void *, size_t, const void **))(team->context, index, &value);
    if (!s) s = CALL(f, TENSOR_DATA, status * (*)(const void *, void **))(value, &data);
    if (!s) s = CALL(f, TENSOR_SHAPE, status * (*)(const void *, void **))(value, &shape);
    if (!s) s = CALL(f, DIMENSIONS_COUNT, status * (*)(const void *, size_t *))(shape, &t->rank);
    if (!s && t->rank > 8) s = failure(f, "a tensor of more than eight dimensions");
    if (!s) s = CALL(f, DIMENSIONS, status * (*)(const void *, int64_t *, size_t))(shape, t->size, t->rank);
    if (shape) CALL(f, RELEASE_SHAPE, void (*)(void *))(shape);
    t->data = data;
    return s;
}

static status *compute(void *object, void *context) {
    kernel *k = object;
    workers team = {k->functions, context};
    tensor in[MOST_INPUTS];
    for (size_t i = 0; i < k->kind->inputs; i++) {
        status *problem = read_input(&team, i, in + i);
        if (problem) return problem;
    }
    switch (k->kind->run(&team, k->sizes, in, k->kind->inputs, output)) {
    case 0: return NULL;
    case NO_MEMORY: return failure(k->functions, "no memory for a native kernel of Onward");
    case NO_LABEL: return failure(k->functions, "a label of the cross entropy is not the number of a class");
    default: return failure(k->functions, "a native kernel of Onward got tensors that do not fit together");
    }
}

static status *create(const operator *op, api functions, const void *info, void **made) {
    kernel *k = calloc(1, sizeof(kernel));
    size_t count = MOST_SIZES;
    typedef status *(*get_ints)(const void *, const char *, int64_t *, size_t *);
    if (!k) return failure(functions, "no memory for a native kernel of Onward");
    k->kind = (const kind *)op, k->functions = functions;
    status *problem = CALL(functions, INTS_OF_ATTRIBUTE, get_ints)(info, "sizes", k->sizes, &count);
    if (problem)
        free(k);
    else
        *made = k;
    return problem;
}

/* -- the operators: a library may leave out the parts that a model does not use ---------------------------------- */

static int same_shape(const tensor *a, const tensor *b) {
    return a->rank == b->rank && !memcmp(a->size, b->size, a->rank * sizeof(int64_t));
}

static int is_vector(const tensor *t, int64_t size) { return t->rank == 1 && t->size[0] == size; }

#ifndef WITHOUT_IMAGES
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

#endif

#ifndef WITHOUT_RECURRENCES
static int64_t elements(const tensor *t) {
    int64_t count = 1;
    for (size_t i = 0; i < t->rank; i++) count *= t->size[i];
    return count;
}

static int is_cube(const tensor *t, int64_t a, int64_t b, int64_t c) {
    return t->rank == 3 && t->size[0] == a && t->size[1] == b && t->size[2] == c;
}

/* (X, R, h0, c0) of LSTM, (X, R, h0) or (X, R, h0, bias of R) of GRU; the attribute `sizes`: H, gates
   -> the last h, (the last c,) hidden, (cells,) kept */
static int run_recur(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    recurrence r = {.T = in[0].size[0], .B = in[0].size[1], .H = sizes[0], .gates = sizes[1], .X = in[0].data,
                    .R = in[1].data, .h0 = in[2].data};
    int64_t lstm = r.gates == 4, state = r.B * r.H, last = (r.T - 1) * state;
    if (!is_cube(in, r.T, r.B, r.gates * r.H) || elements(in + 1) != r.gates * r.H * r.H) return NO_FIT;
    if (elements(in + 2) != state || r.T < 1) return NO_FIT;
    if (inputs == 4 && elements(in + 3) != (lstm ? state : 3 * r.H)) return NO_FIT;
    if (lstm)
        r.c0 = in[3].data;
    else
        r.bias = inputs == 4 ? in[3].data : NULL;
    int64_t shape[] = {r.B, r.H}, all[] = {r.T, r.B, r.H}, four[] = {r.T, r.B, 4 * r.H};
    float *h = out(team, 0, shape, 2), *c = lstm ? out(team, 1, shape, 2) : h;
    r.hidden = out(team, 1 + lstm, all, 3), r.cells = lstm ? out(team, 3, all, 3) : r.hidden;
    r.kept = out(team, 2 + 2 * lstm, four, 3);
    if (state && (!h || !c || !r.hidden || !r.cells || !r.kept)) return NO_MEMORY;
    if (!state) return 0;
    if (recur(team, &r)) return NO_MEMORY;
    memcpy(h, r.hidden + last, state * sizeof(float));
    if (lstm) memcpy(c, r.cells + last, state * sizeof(float));
    return 0;
}

/* (kept, R, dh of the last step, h0, hidden) and (c0, cells, dc of the last step) for LSTM in place of (h0, hidden), and
   dY if there is one -> dh of the first step, dc of the first step or dX, dA */
static int run_recur_back(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    recurrence r = {.T = in[0].size[0], .B = in[0].size[1], .H = sizes[0], .gates = sizes[1],
                    .kept = (float *)in[0].data, .R = in[1].data};
    int64_t lstm = r.gates == 4, state = r.B * r.H;
    size_t count = 5 + lstm;
    if (!is_cube(in, r.T, r.B, 4 * r.H) || elements(in + 1) != r.gates * r.H * r.H) return NO_FIT;
    if (elements(in + 2) != state || elements(in + 3) != state || !is_cube(in + 4, r.T, r.B, r.H)) return NO_FIT;
    if ((lstm && elements(in + 5) != state) || (inputs > count && !is_cube(in + count, r.T, r.B, r.H))) return NO_FIT;
    int64_t shape[] = {r.B, r.H}, gates[] = {r.T, r.B, r.gates * r.H};
    r.dh = out(team, 0, shape, 2), r.dA = out(team, 2, gates, 3);
    r.dc = lstm ? out(team, 1, shape, 2) : NULL, r.dX = lstm ? NULL : out(team, 1, gates, 3);
    if (state && (!r.dh || !r.dA || (lstm ? !r.dc : !r.dX))) return NO_MEMORY;
    if (!state) return 0;
    r.dY = inputs > count ? in[count].data : NULL;
    memcpy(r.dh, in[2].data, state * sizeof(float));
    if (lstm) {
        r.c0 = in[3].data, r.cells = (float *)in[4].data;
        memcpy(r.dc, in[5].data, state * sizeof(float));
    } else
        r.h0 = in[3].data, r.hidden = (float *)in[4].data;
    return recur_back(team, &r) ? NO_MEMORY : 0;
}

#endif

/* -- rows: all dimensions but the last are rows ------------------------------------------------------------------- */

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

/* -- products: the last two dimensions are matrices, those before them are broadcast -------------------------------- */

#ifndef WITHOUT_PRODUCTS
/* A tensor of matrices: [batch ..., rows, columns]. A vector is one row, or one column. */
static void read_matrices(tensor *t, int first) {
    if (t->rank != 1) return;
    t->size[1] = first ? t->size[0] : 1, t->rank = 2;
    if (first) t->size[0] = 1;
}

/* Writes where each matrix of `t` begins for a batch of this shape, whose last dimension is `rank` - 3 of the result. */
static void find_matrices(const tensor *t, const int64_t *shape, size_t rank, int64_t batch, int64_t *at) {
    for (int64_t n = 0; n < batch; n++) {
        int64_t rest = n, step = t->size[t->rank - 1] * t->size[t->rank - 2];
        at[n] = 0;
        for (size_t back = 3; back <= rank; back++) {
            int64_t own = back <= t->rank ? t->size[t->rank - back] : 1, i = rest % shape[rank - back];
            if (own > 1) at[n] += i * step;
            rest /= shape[rank - back], step *= own;
        }
    }
}

/* (A, B) or (A, B, bias) -> A B; sizes: whether A and B are transposed, a Relu follows, the bits of a factor, threads */
static int run_multiply(workers *team, const int64_t *sizes, const tensor *in, size_t inputs, outputs out) {
    matrices m = {.batch = 1, .A = in[0].data, .B = in[1].data, .bias = inputs == 3 ? in[2].data : NULL,
                  .turned_A = sizes[0] != 0, .turned_B = sizes[1] != 0, .relu = sizes[2] != 0, .threads = sizes[4]};
    int32_t bits = (int32_t)sizes[3];
    tensor A = in[0], B = in[1];
    int64_t shape[9] = {0}, given[9], *at = NULL;
    size_t rank, left = 0;
    memcpy(&m.scale, &bits, sizeof bits);
    if (!A.rank || !B.rank || !tiles_allowed()) return NO_FIT;
    read_matrices(&A, 1), read_matrices(&B, 0);
    rank = A.rank > B.rank ? A.rank : B.rank;
    m.M = A.size[A.rank - 2 + m.turned_A], m.K = A.size[A.rank - 1 - m.turned_A], m.N = B.size[B.rank - 1 - m.turned_B];
    if (m.K != B.size[B.rank - 2 + m.turned_B] || (m.bias && !is_vector(in + 2, m.N))) return NO_FIT;
    for (size_t back = 3; back <= rank; back++) {
        int64_t a = back <= A.rank ? A.size[A.rank - back] : 1, b = back <= B.rank ? B.size[B.rank - back] : 1;
        if (a != b && a != 1 && b != 1) return NO_FIT;
        m.batch *= shape[rank - back] = a == 1 ? b : a;
    }
    shape[rank - 2] = m.M, shape[rank - 1] = m.N;
    for (size_t i = 0; i < rank; i++)
        if ((in[0].rank > 1 || i != rank - 2) && (in[1].rank > 1 || i != rank - 1)) given[left++] = shape[i];
    m.C = out(team, 0, given, left);
    if (!m.batch || !m.M || !m.N) return 0;
    if (!m.C) return NO_MEMORY;
    if (B.rank == 2 && !m.turned_A) m.M *= m.batch, m.batch = 1; /* one matrix for all */
    if (m.batch > 1) {
        if (!(at = borrow(2 * m.batch * sizeof(int64_t)))) return NO_MEMORY;
        find_matrices(&A, shape, rank, m.batch, at), find_matrices(&B, shape, rank, m.batch, at + m.batch);
        m.at_A = at, m.at_B = at + m.batch;
    }
    int failed = multiply_matrices(team, &m);
    give_back(at);
    return failed ? NO_MEMORY : 0;
}
#endif

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

static const char *name_of(const operator *op) { return ((const kind *)op)->name; }
static const char *on_cpu(const operator *op) { return (void)op, "CPUExecutionProvider"; }
enum { FLOAT = 1, INT64 = 7 }; /* ONNXTensorElementDataType */
static int input_type(const operator *op, size_t i) { return ((const kind *)op)->whole >> i & 1 ? INT64 : FLOAT; }
static int output_type(const operator *op, size_t i) { return (void)op, (void)i, FLOAT; }
static int is_required(const operator *op, size_t i) { return (void)op, (void)i, 0; }
static int first_version(const operator *op) { return (void)op, 1; }
static int last_version(const operator *op) { return (void)op, 1; }
static size_t inputs_of(const operator *op) { return ((const kind *)op)->inputs; }
static size_t outputs_of(const operator *op) { return ((const kind *)op)->outputs; }

static kind kinds[] = {
#ifndef WITHOUT_IMAGES
    {.name = "Convolve", .inputs = 2, .outputs = 1, .run = run_convolve},
    {.name = "ConvolveBiased", .inputs = 3, .outputs = 1, .run = run_convolve},
    {.name = "KernelGradient", .inputs = 2, .outputs = 1, .run = run_kernel_gradient},
    {.name = "ConvolveBack", .inputs = 2, .outputs = 1, .run = run_convolve_back},
    {.name = "PoolBack", .inputs = 3, .outputs = 1, .run = run_pool_back},
    {.name = "Normalize", .inputs = 3, .outputs = 3, .run = run_normalize},
    {.name = "NormalizeBack", .inputs = 5, .outputs = 3, .run = run_normalize_back},
    {.name = "NormalizeReluBack", .inputs = 6, .outputs = 3, .run = run_normalize_back},
#endif
#ifndef WITHOUT_RECURRENCES
    {.name = "Lstm", .inputs = 4, .outputs = 5, .run = run_recur},
    {.name = "Gru", .inputs = 3, .outputs = 3, .run = run_recur},
    {.name = "GruBiased", .inputs = 4, .outputs = 3, .run = run_recur},
    {.name = "LstmBack", .inputs = 6, .outputs = 3, .run = run_recur_back},
    {.name = "LstmBackAll", .inputs = 7, .outputs = 3, .run = run_recur_back},
    {.name = "GruBack", .inputs = 5, .outputs = 3, .run = run_recur_back},
    {.name = "GruBackAll", .inputs = 6, .outputs = 3, .run = run_recur_back},
#endif
    {.name = "NormalizeRows", .inputs = 3, .outputs = 3, .run = run_normalize_rows},
    {.name = "NormalizeRowsBack", .inputs = 5, .outputs = 3, .run = run_normalize_rows_back},
    {.name = "NormalizeRowsAddedBack", .inputs = 6, .outputs = 3, .run = run_normalize_rows_back},
    {.name = "SoftmaxBack", .inputs = 2, .outputs = 1, .run = run_softmax_back},
    {.name = "ReluBack", .inputs = 2, .outputs = 1, .run = run_relu_back},
    {.name = "ReluSumBack", .inputs = 2, .outputs = 2, .run = run_relu_back},
#ifndef WITHOUT_PRODUCTS
    {.name = "Multiply", .inputs = 2, .outputs = 1, .run = run_multiply},
    {.name = "MultiplyBiased", .inputs = 3, .outputs = 1, .run = run_multiply},
#endif
    {.name = "SumRows", .inputs = 1, .outputs = 1, .run = run_sum_rows},
    {.name = "CrossEntropy", .inputs = 2, .outputs = 2, .whole = 1 << 1, .run = run_cross_entropy},
};

/* Whether the kernels that need tiles can run in this process. */
__attribute__((visibility("default"))) int onward_tiles(void) { return tiles_allowed(); }

__attribute__((visibility("default"))) status *RegisterCustomOps(void *options, const api_base *base) {
    static void *domain; /* lives as long as the library: every session reads it */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    api f = base->functions(API_VERSION);
    status *problem = NULL;
    pthread_mutex_lock(&lock);
    if (!domain) {
        problem = CALL(f, CREATE_DOMAIN, status * (*)(const char *, void **))("ai.onward.native", &domain);
        for (size_t i = 0; !problem && i < sizeof(kinds) / sizeof(kind); i++) {
            kinds[i].base = (operator){
                .version = API_VERSION, .name = name_of, .provider = on_cpu, .input_type = input_type,
                .input_count = inputs_of, .output_type = output_type, .output_count = outputs_of, .destroy = free,
                .input_kind = is_required, .output_kind = is_required, .input_memory = is_required,
                .create_v2 = create, .compute_v2 = compute, .first_version = first_version,
                .last_version = last_version};
            problem = CALL(f, DOMAIN_ADD, status * (*)(void *, operator *))(domain, &kinds[i].base);
        }
    }
    pthread_mutex_unlock(&lock);
    return problem ? problem : CALL(f, ADD_DOMAIN, status * (*)(void *, void *))(options, domain);
}

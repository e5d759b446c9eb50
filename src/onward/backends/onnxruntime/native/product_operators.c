/* The operators of products: the last two dimensions are matrices, those before them are broadcast. */
#include "operators.h"
#include "products.h"
#include "tiles.h"

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

enum { AS_IT_IS, TURNED }; /* ONNX Runtime's products: of the inputs, and of the first one transposed */

static status *make_product(api functions, const void *info, int64_t turned_A, int64_t turned_B, int32_t scale, void **made) {
    enum { INT = 1, FLOATING = 3 }; /* OrtOpAttrType */
    typedef status *(*attribute)(const char *, const void *, int, int, void **);
    typedef status *(*operator_of)(const void *, const char *, const char *, int, const char **, const int *, int,
                                   void *const *, int, int, int, void **);
    static const char *const names[] = {"transA", "transB", "alpha"};
    const char *type = "T";
    const void *values[] = {&turned_A, &turned_B, &scale};
    void *attributes[3] = {NULL};
    status *problem = NULL;
    for (int i = 0; i < 3 && !problem; i++)
        problem = CALL(functions, CREATE_ATTRIBUTE, attribute)(names[i], values[i], 1, i < 2 ? INT : FLOATING, attributes + i);
    if (!problem)
        problem = CALL(functions, CREATE_OPERATOR, operator_of)(info, "FusedMatMul", "com.microsoft", 1, &type, (int[]){FLOAT},
                                                                1, attributes, 3, 2, 1, made);
    for (int i = 0; i < 3; i++)
        if (attributes[i]) CALL(functions, RELEASE_ATTRIBUTE, void (*)(void *))(attributes[i]);
    return problem;
}

static status *make_products(api functions, const void *info, const int64_t *sizes, void **made) {
    int32_t scale = (int32_t)sizes[3];
    status *problem = make_product(functions, info, sizes[0], sizes[1], scale, made + AS_IT_IS);
    return problem || !sizes[0] ? problem : make_product(functions, info, 0, sizes[1], scale, made + TURNED);
}

static void add_bias(const matrices *m, int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < m->N; k++) {
            float x = m->C[i * m->N + k] + (m->bias ? m->bias[k] : 0);
            m->C[i * m->N + k] = m->relu && x < 0 ? 0 : x;
        }
}

/* ONNX Runtime's products of a transposed matrix take more time than others, by more than it may take to transpose it. */
static int pays_to_turn(const matrices *m, size_t rank) {
    int64_t bytes = m->M * m->K * sizeof(float), columns = bytes > TURN_NEAR ? 4 * TURN_COLUMNS : TURN_COLUMNS;
    return m->turned_A && rank == 2 && m->K >= TURN_DEPTH && m->N >= columns && bytes <= TURN_BYTES;
}

/* Lets ONNX Runtime multiply, with the first factor transposed beforehand where that pays. */
static int multiply_standard(workers *team, const matrices *m, const int64_t *given, size_t rank) {
    if (!pays_to_turn(m, rank)) return run_standard(team, AS_IT_IS, NULL, given, rank);
    tensor turned = {.data = borrow(m->M * m->K * sizeof(float)), .size = {m->M, m->K}, .rank = 2};
    if (!turned.data) return NO_MEMORY;
    turn(team, m->K, m->M, m->A, (float *)turned.data);
    int failed = run_standard(team, TURNED, &turned, given, rank);
    give_back((float *)turned.data);
    return failed;
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
    if (!A.rank || !B.rank) return NO_FIT;
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
    if (!m.K || !tiles_allowed() || least(m.M, least(m.N, m.K)) <= THIN) {
        int failed = m.K ? multiply_standard(team, &m, given, left) : 0;
        if (!m.K) memset(m.C, 0, m.batch * m.M * m.N * sizeof(float));
        if (!failed && (m.bias || m.relu)) add_bias(&m, m.batch * m.M);
        return failed;
    }
    if (m.batch > 1) {
        if (!(at = borrow(2 * m.batch * sizeof(int64_t)))) return NO_MEMORY;
        find_matrices(&A, shape, rank, m.batch, at), find_matrices(&B, shape, rank, m.batch, at + m.batch);
        m.at_A = at, m.at_B = at + m.batch;
    }
    int failed = multiply_matrices(team, &m);
    give_back(at);
    return failed ? NO_MEMORY : 0;
}

kind product_operators[] = {
    {.name = "Multiply", .inputs = 2, .outputs = 1, .standard = make_products, .run = run_multiply},
    {.name = "MultiplyBiased", .inputs = 3, .outputs = 1, .standard = make_products, .run = run_multiply},
    {.name = NULL},
};

/* The kernels as operators of ONNX Runtime, in the domain ai.onward.native. */
#include "operators.h"

#include <pthread.h>

#include "tiles.h"

enum { MOST_SIZES = 24, MOST_INPUTS = 8 };

struct workers {
    api functions;
    const void *context;
    void *const *standard;
    status *problem; /* of the standard operator */
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
    dismiss(team->functions, problem);
}

/* -- the call of a kernel --------------------------------------------------------------------------------------- */

typedef struct {
    const kind *kind;
    api functions;
    int64_t sizes[MOST_SIZES];
    void *standard[MOST_STANDARD]; /* operators of ONNX Runtime that do a part of the work; NULL: not needed */
} kernel;

static status *failure(api functions, const char *text) {
    return CALL(functions, CREATE_STATUS, status * (*)(int, const char *))(1, text);
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
    workers team = {k->functions, context, k->standard, NULL};
    tensor in[MOST_INPUTS];
    for (size_t i = 0; i < k->kind->inputs; i++) {
        status *problem = read_input(&team, i, in + i);
        if (problem) return problem;
    }
    switch (k->kind->run(&team, k->sizes, in, k->kind->inputs, output)) {
    case 0: return NULL;
    case NO_MEMORY: return failure(k->functions, "no memory for a native kernel of Onward");
    case NO_LABEL: return failure(k->functions, "a label of the cross entropy is not the number of a class");
    case NO_STANDARD: return team.problem;
    default: return failure(k->functions, "a native kernel of Onward got tensors that do not fit together");
    }
}

static void destroy(void *object) {
    kernel *k = object;
    for (size_t i = 0; i < MOST_STANDARD; i++)
        if (k->standard[i]) CALL(k->functions, RELEASE_OPERATOR, void (*)(void *))(k->standard[i]);
    free(k);
}

static status *create(const operator *op, api functions, const void *info, void **made) {
    kernel *k = calloc(1, sizeof(kernel));
    size_t count = MOST_SIZES;
    typedef status *(*get_ints)(const void *, const char *, int64_t *, size_t *);
    if (!k) return failure(functions, "no memory for a native kernel of Onward");
    k->kind = (const kind *)op, k->functions = functions;
    status *problem = CALL(functions, INTS_OF_ATTRIBUTE, get_ints)(info, "sizes", k->sizes, &count);
    if (!problem && k->kind->standard) problem = k->kind->standard(functions, info, k->sizes, k->standard);
    if (problem)
        destroy(k);
    else
        *made = k;
    return problem;
}

/* Makes a tensor over memory that stays where it is. */
static status *wrap(api f, const tensor *t, void **made) {
    typedef status *(*cpu_memory)(int, int, void **);
    typedef status *(*create_tensor)(const void *, const void *, size_t, const int64_t *, size_t, int, void **);
    enum { DEVICE = 0, USUAL = 0 }; /* OrtAllocatorType, OrtMemType */
    void *place = NULL;
    size_t bytes = sizeof(float);
    for (size_t i = 0; i < t->rank; i++) bytes *= t->size[i];
    status *problem = CALL(f, CPU_MEMORY, cpu_memory)(DEVICE, USUAL, &place);
    if (!problem) problem = CALL(f, CREATE_TENSOR, create_tensor)(place, t->data, bytes, t->size, t->rank, FLOAT, made);
    if (place) CALL(f, RELEASE_MEMORY_INFO, void (*)(void *))(place);
    return problem;
}

int run_standard(workers *team, size_t which, const tensor *first, const int64_t *size, size_t rank) {
    typedef status *(*get_input)(const void *, size_t, const void **);
    typedef status *(*get_output)(const void *, size_t, const int64_t *, size_t, void **);
    typedef status *(*invoke)(const void *, const void *, const void *const *, int, void *const *, int);
    api f = team->functions;
    const void *in[2];
    void *out = NULL, *wrapped = NULL;
    status *problem = first ? wrap(f, first, &wrapped) : CALL(f, CONTEXT_INPUT, get_input)(team->context, 0, in);
    if (first) in[0] = wrapped;
    if (!problem) problem = CALL(f, CONTEXT_INPUT, get_input)(team->context, 1, in + 1);
    if (!problem) problem = CALL(f, CONTEXT_OUTPUT, get_output)(team->context, 0, size, rank, &out);
    if (!problem) problem = CALL(f, INVOKE_OPERATOR, invoke)(team->context, team->standard[which], in, 2, &out, 1);
    if (wrapped) CALL(f, RELEASE_TENSOR, void (*)(void *))(wrapped);
    team->problem = problem;
    return problem ? NO_STANDARD : 0;
}

static const char *name_of(const operator *op) { return ((const kind *)op)->name; }
static const char *on_cpu(const operator *op) { return (void)op, "CPUExecutionProvider"; }
static int input_type(const operator *op, size_t i) { return ((const kind *)op)->whole >> i & 1 ? INT64 : FLOAT; }
static int output_type(const operator *op, size_t i) { return (void)op, (void)i, FLOAT; }
static int is_required(const operator *op, size_t i) { return (void)op, (void)i, 0; }
static int first_version(const operator *op) { return (void)op, 1; }
static int last_version(const operator *op) { return (void)op, 1; }
static size_t inputs_of(const operator *op) { return ((const kind *)op)->inputs; }
static size_t outputs_of(const operator *op) { return ((const kind *)op)->outputs; }

/* A library may leave out the parts that a model does not use. */
static kind *const parts_here[] = {
#ifndef WITHOUT_IMAGES
    image_operators,
#endif
#ifndef WITHOUT_PRODUCTS
    product_operators,
#endif
#ifndef WITHOUT_RECURRENCES
    recurrent_operators,
#endif
    row_operators,
};

static status *add_operators(api f, void *domain, kind *k) {
    status *problem = NULL;
    for (; !problem && k->name; k++) {
        k->base = (operator){
            .version = API_VERSION, .name = name_of, .provider = on_cpu, .input_type = input_type,
            .input_count = inputs_of, .output_type = output_type, .output_count = outputs_of, .destroy = destroy,
            .input_kind = is_required, .output_kind = is_required, .input_memory = is_required, .create_v2 = create,
            .compute_v2 = compute, .first_version = first_version, .last_version = last_version};
        problem = CALL(f, DOMAIN_ADD, status * (*)(void *, operator *))(domain, &k->base);
    }
    return problem;
}

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
        for (size_t i = 0; !problem && i < sizeof parts_here / sizeof *parts_here; i++)
            problem = add_operators(f, domain, parts_here[i]);
    }
    pthread_mutex_unlock(&lock);
    return problem ? problem : CALL(f, ADD_DOMAIN, status * (*)(void *, void *))(options, domain);
}

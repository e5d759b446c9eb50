/* The operators of LSTM and GRU. */
#include "operators.h"
#include "recurrent.h"

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

kind recurrent_operators[] = {
    {.name = "Lstm", .inputs = 4, .outputs = 5, .run = run_recur},
    {.name = "Gru", .inputs = 3, .outputs = 3, .run = run_recur},
    {.name = "GruBiased", .inputs = 4, .outputs = 3, .run = run_recur},
    {.name = "LstmBack", .inputs = 6, .outputs = 3, .run = run_recur_back},
    {.name = "LstmBackAll", .inputs = 7, .outputs = 3, .run = run_recur_back},
    {.name = "GruBack", .inputs = 5, .outputs = 3, .run = run_recur_back},
    {.name = "GruBackAll", .inputs = 6, .outputs = 3, .run = run_recur_back},
    {.name = NULL},
};

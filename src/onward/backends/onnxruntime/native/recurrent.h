/* The recurrences of LSTM and GRU (with linear_before_reset) over time, forward and backward. */
#ifndef ONWARD_RECURRENT_H
#define ONWARD_RECURRENT_H
#include "vectors.h"

/* Gates are i, o, f, c of LSTM, and z, r, h of GRU. X is the projected input [T, B, gates, H], with the bias of W; R is
   [gates, H, H]. `kept` is [T, B, 4, H]: the gates, and for GRU the recurrent part of h. A task is some rows of the batch
   for all steps; with a small batch or large weights it is some units for one step. Each sum has one order, whatever the
   tasks are. */
typedef struct {
    int64_t T, B, H, gates; /* 4: LSTM, 3: GRU */
    const float *X, *R, *bias, *h0, *c0;
    float *hidden, *cells, *kept; /* [T, B, H] */
    /* Backward: dY [T, B, H] or NULL; dh and dc [B, H] hold the gradients of the last states, then of the first.
       dA [T, B, gates, H] is for R; dX the same for the input, where it differs (GRU). */
    const float *dY;
    float *dh, *dc, *dA, *dX;
    /* scratch */
    float *panels, *states, *rows;
    int64_t stride, wide_stride, step;
} recurrence;

int recur(workers *team, recurrence *r);
int recur_back(workers *team, recurrence *r);

#endif

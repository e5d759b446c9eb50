/* Vectors of float, as wide as the machine has them, and the loop that shares work between the threads. */
#ifndef ONWARD_VECTORS_H
#define ONWARD_VECTORS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 13 /* of a tile: ROWS x 2 sums stay in registers; 5 x 13 is little more than 64 */
#elif defined(__AVX__)
#define LANES 8
#define ROWS 6
#else
#define LANES 4
#define ROWS 6
#endif
#define WIDE (2 * LANES) /* columns of a tile */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef vec loose __attribute__((aligned(4), may_alias)); /* a vec at any address */

static inline vec load(const float *p) { return *(const loose *)p; }
static inline void store(float *p, vec v) { *(loose *)p = v; }
static inline vec splat(float x) { return x - (vec){0}; }
static inline float total(vec v) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
}


/* v where the comparison holds, else 0 */
static inline vec where(ivec holds, vec v) { return (vec)(holds & (ivec)v); }

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Runs task(argument, i) for i = 0 .. count - 1, on the threads of the session. */
typedef void (*task)(void *argument, size_t i);
typedef struct workers workers;
void share(workers *team, task run, size_t count, void *argument);

/* Memory for the time of a kernel: kept for the next one, because fresh pages cost more than the work on them. */
void *borrow(size_t bytes);
void give_back(void *memory);

#endif

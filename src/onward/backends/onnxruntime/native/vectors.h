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

/* Calls f(rows, ...) with a constant for the 1 to ROWS rows: each number of them is a loop of its own. */
#define ROWS_CASE(n, f, ...) case n: if (n <= ROWS) f(n, __VA_ARGS__); break;
#define FOR_ROWS(rows, f, ...) \
    switch (rows) { \
        ROWS_CASE(1, f, __VA_ARGS__) ROWS_CASE(2, f, __VA_ARGS__) ROWS_CASE(3, f, __VA_ARGS__) \
        ROWS_CASE(4, f, __VA_ARGS__) ROWS_CASE(5, f, __VA_ARGS__) ROWS_CASE(6, f, __VA_ARGS__) \
        ROWS_CASE(7, f, __VA_ARGS__) ROWS_CASE(8, f, __VA_ARGS__) ROWS_CASE(9, f, __VA_ARGS__) \
        ROWS_CASE(10, f, __VA_ARGS__) ROWS_CASE(11, f, __VA_ARGS__) ROWS_CASE(12, f, __VA_ARGS__) \
        ROWS_CASE(13, f, __VA_ARGS__) \
    }
_Static_assert(ROWS <= 13, "a case for each number of rows");

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
static inline vec choose(ivec holds, vec a, vec b) { return (vec)((holds & (ivec)a) | (~holds & (ivec)b)); }

/* exp(x) for -87.33 <= x <= 87, and NaN, to the last digit but one: 2^n times a polynomial of the rest. */
static inline vec exponential(vec x) {
    vec magic = splat(12582912.0f), n = x * 1.44269504f + magic; /* 1.5 * 2^23: the sum is rounded to a whole number */
    ivec power = (ivec)n - (ivec)magic;
    n -= magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f; /* log 2 in two parts */
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vec)((power + 127) << 23);
}

/* The transpose of LANES vectors, in place. */
#if defined(__GNUC__) && !defined(__clang__)
static inline void transpose(vec *t) {
    for (int s = 1; s < LANES; s *= 2) {
        ivec low, high;
        for (int j = 0; j < LANES; j++) {
            low[j] = j & s ? LANES + j - s : j;
            high[j] = j & s ? LANES + j : j + s;
        }
        for (int i = 0; i < LANES; i++)
            if (!(i & s)) {
                vec a = t[i], b = t[i + s];
                t[i] = __builtin_shuffle(a, b, low);
                t[i + s] = __builtin_shuffle(a, b, high);
            }
    }
}
#else
static inline void transpose(vec *t) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) {
            float kept = t[i][j];
            t[i][j] = t[j][i];
            t[j][i] = kept;
        }
}
#endif

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

/* Products of float32 on the tile unit of a processor (AMX), which multiplies tiles of bfloat16 and adds in float32.

   A float32 is the sum of three bfloat16, exactly: high + middle + low, of 8 bits each. Of the nine products of two such
   sums, the six largest are added: what is left out is less than the rounding of a float32. */
#ifndef ONWARD_TILES_H
#define ONWARD_TILES_H

#include "vectors.h"

/* Lets the threads of this process use tiles; returns whether they may. */
int tiles_allowed(void);

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#define TILES 1
#include <immintrin.h>

enum {
    SIDE = 32,            /* lines of a panel, and how deep it is: a panel is SIDE rows or columns of a product */
    TILE_BYTES = 1024,
    PART_BYTES = 2 * TILE_BYTES,
    PANEL_BYTES = 3 * PART_BYTES, /* high, middle and low of 2 tiles of 16 lines */
};

/* The numbers that are next to each other in a tile, k and k + 16 of a panel, as three words of two bfloat16. */
static inline __attribute__((always_inline)) void split(vec a, vec b, char *to) {
    ivec half = (ivec)(splat(0)) + 0x8000, mask = (ivec)(splat(0)) + (int32_t)0xffff0000;
    typedef uint32_t words __attribute__((vector_size(64)));
    typedef ivec target __attribute__((may_alias));
    ivec p = ((ivec)a + half) & mask, q = ((ivec)b + half) & mask;
    *(target *)to = (ivec)((words)p >> 16) | q;
    a -= (vec)p, b -= (vec)q;
    p = ((ivec)a + half) & mask, q = ((ivec)b + half) & mask;
    *(target *)(to + PART_BYTES) = (ivec)((words)p >> 16) | q;
    a -= (vec)p, b -= (vec)q; /* 7 bits are left, so the lower half is zeros; NaN stays NaN */
    *(target *)(to + 2 * PART_BYTES) = (ivec)((words)a >> 16) | ((ivec)b & mask);
}

static inline void configure_tiles(void) {
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } all = {.palette = 1};
    for (int i = 0; i < 8; i++) all.bytes[i] = 64, all.rows[i] = 16;
    _tile_loadconfig(&all);
}

/* Adds to the sums in tiles 0 to 3 the product of two rows of `deep` panels; `high`, `wide`: the panels have more than 16
   rows, columns. Small terms come first. */
static inline __attribute__((always_inline)) void multiply_panels_of(const int high, const int wide, const char *a,
                                                                     const char *b, int64_t deep) {
#define LOAD(tile, from, part, half) _tile_loadd(tile, (from) + (part) * PART_BYTES + (half) * TILE_BYTES, 64)
#define NEW_ROWS(part) /* the second tile is loaded while the first is multiplied */ \
    LOAD(4, a, part, 0); \
    _tile_dpbf16ps(0, 4, 6); \
    if (wide) _tile_dpbf16ps(1, 4, 7); \
    if (high) { \
        LOAD(5, a, part, 1); \
        _tile_dpbf16ps(2, 5, 6); \
        if (wide) _tile_dpbf16ps(3, 5, 7); \
    }
#define NEW_COLUMNS(part) \
    LOAD(6, b, part, 0); \
    _tile_dpbf16ps(0, 4, 6); \
    if (high) _tile_dpbf16ps(2, 5, 6); \
    if (wide) { \
        LOAD(7, b, part, 1); \
        _tile_dpbf16ps(1, 4, 7); \
        if (high) _tile_dpbf16ps(3, 5, 7); \
    }
    for (; deep > 0; deep--, a += PANEL_BYTES, b += PANEL_BYTES) {
        LOAD(6, b, 2, 0);
        if (wide) LOAD(7, b, 2, 1);
        NEW_ROWS(0) NEW_COLUMNS(1) NEW_ROWS(1) NEW_COLUMNS(0) NEW_ROWS(2) NEW_ROWS(0)
    }
#undef LOAD
#undef NEW_ROWS
#undef NEW_COLUMNS
}

#endif
#endif

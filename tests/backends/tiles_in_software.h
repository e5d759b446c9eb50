/* The tile unit (AMX) in plain C, for processors without one: what Intel's manual says of each instruction.

   Given to the compiler with -include, so that the kernels for tiles are tested on any processor with AVX-512. */
#ifndef TILES_IN_SOFTWARE
#define TILES_IN_SOFTWARE
#if defined(__AVX512F__) && !defined(__AMX_TILE__)
#define _GNU_SOURCE
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Thread_local char in_tiles[8][16][64];
static _Thread_local int tiles_configured;

static inline float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x; /* denormals are zeros, whatever the mode says */
}

static inline float not_denormal(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x; }

static inline void need_tiles(void) {
    if (!tiles_configured) __builtin_trap();
}

static __attribute__((noinline, unused)) void load_in_software(int tile, const void *from, int64_t pitch) {
    need_tiles();
    for (int row = 0; row < 16; row++) memcpy(in_tiles[tile][row], (const char *)from + row * pitch, 64);
}

static __attribute__((noinline, unused)) void store_in_software(int tile, void *to, int64_t pitch) {
    need_tiles();
    for (int row = 0; row < 16; row++) memcpy((char *)to + row * pitch, in_tiles[tile][row], 64);
}

static __attribute__((noinline, unused)) void multiply_in_software(int to, int a, int b) {
    need_tiles();
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 16; column++) {
            float sums[2] = {0, 0}, sum;
            for (int k = 0; k < 16; k++) {
                uint32_t x, y;
                memcpy(&x, in_tiles[a][row] + 4 * k, 4), memcpy(&y, in_tiles[b][k] + 4 * column, 4);
                sums[0] = not_denormal(fmaf(as_float(x << 16), as_float(y << 16), sums[0]));
                sums[1] = not_denormal(fmaf(as_float(x & 0xffff0000), as_float(y & 0xffff0000), sums[1]));
            }
            memcpy(&sum, in_tiles[to][row] + 4 * column, 4);
            sum = not_denormal(not_denormal(sum) + not_denormal(sums[0] + sums[1]));
            memcpy(in_tiles[to][row] + 4 * column, &sum, 4);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(all) ((void)(all), (void)(tiles_configured = 1))
#define _tile_release() ((void)(tiles_configured = 0))
#define _tile_loadd(tile, from, pitch) load_in_software(tile, from, pitch)
#define _tile_stored(tile, to, pitch) store_in_software(tile, to, pitch)
#define _tile_zero(tile) memset(in_tiles[tile], 0, sizeof in_tiles[tile])
#define _tile_dpbf16ps(to, a, b) multiply_in_software(to, a, b)
#define syscall(...) 0 /* the permission that Linux gives */
#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#endif
#endif

/* Products of matrices on tiles.

   The rows of A are split into bfloat16 first, all or a few megabytes of them. Then each task takes some columns of B, splits
   them into a buffer that stays in the second cache, and multiplies all rows with them. The order in which the terms of a sum
   are added depends on nothing but the depth. */
#include "products.h"

#include "tiles.h"

#ifdef TILES
enum {
    DEEP = 16,        /* panels of a strip of columns, and */
    STRIPS = 8,       /* strips that are split at once: they stay in the second cache */
    MANY = 8,         /* blocks of rows from which on it pays to split more than one strip at once */
    AHEAD = 6 << 20,  /* bytes of rows that are split at once */
    FEWEST = 4,       /* blocks of rows for which a strip of columns is split again */
};

/* -- splitting ----------------------------------------------------------------------------------------------------- */

static inline vec load_some(const float *from, int64_t count) {
    return count >= LANES ? load(from) : count <= 0 ? splat(0) : (vec)_mm512_maskz_loadu_ps((1u << count) - 1, from);
}

/* A block of 16 x 16 numbers, with zeros where there are none. What comes next is asked for. */
static inline void fetch(const float *from, int64_t pitch, int64_t rows, int64_t columns, int64_t next, vec *block) {
    if (rows >= LANES && columns >= LANES)
        for (int64_t i = 0; i < LANES; i++) block[i] = load(from + i * pitch), __builtin_prefetch(from + i * pitch + next);
    else
        for (int64_t i = 0; i < LANES; i++) block[i] = i < rows ? load_some(from + i * pitch, columns) : splat(0);
}

/* The same, transposed. */
static inline void fetch_turned(const float *from, int64_t pitch, int64_t rows, int64_t columns, int64_t next, vec *block) {
    if (rows < LANES || columns < LANES) {
        fetch(from, pitch, rows, columns, next, block);
        transpose(block);
        return;
    }
    for (int64_t i = 0; i < LANES; i++) __builtin_prefetch(from + i * pitch + next);
    for (int64_t c = 0; c < LANES; c += 4) {
        __m512 r[4];
        for (int64_t i = 0; i < 4; i++) { /* rows i, i + 4, i + 8, i + 12: a quarter of a vector each */
            const float *at = from + i * pitch + c;
            r[i] = _mm512_castps128_ps512(_mm_loadu_ps(at));
            r[i] = _mm512_mask_broadcast_f32x4(r[i], 0x00f0, _mm_loadu_ps(at + 4 * pitch));
            r[i] = _mm512_mask_broadcast_f32x4(r[i], 0x0f00, _mm_loadu_ps(at + 8 * pitch));
            r[i] = _mm512_mask_broadcast_f32x4(r[i], 0xf000, _mm_loadu_ps(at + 12 * pitch));
        }
        __m512d low = (__m512d)_mm512_unpacklo_ps(r[0], r[1]), low2 = (__m512d)_mm512_unpacklo_ps(r[2], r[3]);
        __m512d high = (__m512d)_mm512_unpackhi_ps(r[0], r[1]), high2 = (__m512d)_mm512_unpackhi_ps(r[2], r[3]);
        block[c] = (vec)_mm512_unpacklo_pd(low, low2), block[c + 1] = (vec)_mm512_unpackhi_pd(low, low2);
        block[c + 2] = (vec)_mm512_unpacklo_pd(high, high2), block[c + 3] = (vec)_mm512_unpackhi_pd(high, high2);
    }
}

/* Splits `lines` and `depth` numbers, 32 of each at most, into a panel. `along`: the numbers of a line are next to each
   other in memory. `columns`: the lines become columns of tiles, and not rows. */
static inline __attribute__((always_inline)) void split_panel_of(const float *from, int64_t pitch, const int along,
                                                                 int64_t lines, int64_t depth, const int columns, char *to) {
    for (int64_t first = 0; first < lines; first += LANES, to += TILE_BYTES) {
        vec low[LANES], high[LANES];
        const float *line = from + (along ? first * pitch : first), *more = line + (along ? LANES : LANES * pitch);
        int64_t there = lines - first, next = along ? 2 * SIDE : SIDE * pitch;
        int64_t rows = along ? there : depth, wide = along ? depth : there;
        if (along == columns) {
            fetch_turned(line, pitch, rows, wide, next, low);
            fetch_turned(more, pitch, along ? rows : depth - LANES, along ? depth - LANES : wide, next, high);
        } else if (there >= LANES && depth == SIDE) { /* nearly always */
            for (int64_t i = 0; i < LANES; i++) {
                split(load(line + i * pitch), load(more + i * pitch), to + i * 64);
                __builtin_prefetch(line + i * pitch + next), __builtin_prefetch(more + i * pitch + next);
            }
            continue;
        } else {
            fetch(line, pitch, rows, wide, next, low);
            fetch(more, pitch, along ? rows : depth - LANES, along ? depth - LANES : wide, next, high);
        }
        for (int64_t i = 0; i < LANES; i++) split(low[i], high[i], to + i * 64);
    }
}

static void split_panel(const float *from, int64_t pitch, int along, int64_t lines, int64_t depth, int columns, char *to) {
    if (along && columns) split_panel_of(from, pitch, 1, lines, depth, 1, to);
    else if (along) split_panel_of(from, pitch, 1, lines, depth, 0, to);
    else if (columns) split_panel_of(from, pitch, 0, lines, depth, 1, to);
    else split_panel_of(from, pitch, 0, lines, depth, 0, to);
}

static const float *part_of(const float *from, int64_t pitch, int along, int64_t line, int64_t depth) {
    return from + (along ? line * pitch + depth : depth * pitch + line);
}

/* -- multiplying --------------------------------------------------------------------------------------------------- */

typedef struct {
    const matrices *m;
    char *rows;                            /* [blocks of 32 rows, panels]: A, split */
    int64_t first, count, panels, from;    /* what is split: `count` rows from `first` on, `panels` panels from `from` on */
    int64_t blocks, strips, parts, groups; /* of 32 rows or columns; the tasks share them in parts and in groups */
    int *failed;
} job;

static int64_t panels_of(int64_t n) { return parts(n, SIDE); }

static void split_part(const job *j, int64_t i, int64_t k) {
    const matrices *m = j->m;
    int64_t pitch = m->turned_A ? m->M : m->K, row = j->first + i * SIDE, depth = (j->from + k) * SIDE;
    split_panel(part_of(m->A, pitch, !m->turned_A, row, depth), pitch, !m->turned_A, least(SIDE, j->first + j->count - row),
                least(SIDE, m->K - depth), 0, j->rows + (i * j->panels + k) * PANEL_BYTES);
}

/* Splits 32 rows, or, of columns, what is 32 deep: in the order of the memory. */
static void split_rows(void *argument, size_t index) {
    const job *j = argument;
    if (j->m->turned_A)
        for (int64_t i = 0; i < j->blocks; i++) split_part(j, i, index);
    else
        for (int64_t k = 0; k < j->panels; k++) split_part(j, index, k);
}

/* C of 32 x 32, or less, from `deep` panels: begins with the bias, or goes on with what is in C. */
static inline __attribute__((always_inline)) void block_of(const int high, const int wide, const char *a, const char *b,
                                                           int64_t deep, const float *bias, const float *sums, float *C,
                                                           int64_t pitch) {
#define BEGIN(tile, at, row, column) \
    if (sums) _tile_loadd(tile, sums + (row) * pitch + (column), pitch * 4); \
    else if (bias) _tile_loadd(tile, bias + (column), 0); \
    else _tile_zero(tile);
    BEGIN(0, 0, 0, 0)
    if (wide) { BEGIN(1, 1, 0, 16) }
    if (high) { BEGIN(2, 2, 16, 0) }
    if (high && wide) { BEGIN(3, 3, 16, 16) }
#undef BEGIN
    multiply_panels_of(high, wide, a, b, deep);
    _tile_stored(0, C, pitch * 4);
    if (wide) _tile_stored(1, C + 16, pitch * 4);
    if (high) _tile_stored(2, C + 16 * pitch, pitch * 4);
    if (high && wide) _tile_stored(3, C + 16 * pitch + 16, pitch * 4);
}

static void block(int high, int wide, const char *a, const char *b, int64_t deep, const float *bias, const float *sums,
                  float *C, int64_t pitch) {
    if (high && wide) block_of(1, 1, a, b, deep, bias, sums, C, pitch);
    else if (high) block_of(1, 0, a, b, deep, bias, sums, C, pitch);
    else if (wide) block_of(0, 1, a, b, deep, bias, sums, C, pitch);
    else block_of(0, 0, a, b, deep, bias, sums, C, pitch);
}

static void finish(const matrices *m, float *C, int64_t rows, int64_t columns, const float *bias) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < columns; k += LANES) {
            float *c = C + i * m->N + k;
            __mmask16 there = columns - k >= LANES ? 0xffff : (1u << (columns - k)) - 1;
            vec x = (vec)_mm512_maskz_loadu_ps(there, c);
            if (m->scale != 1) x = x * m->scale + (bias ? (vec)_mm512_maskz_loadu_ps(there, bias + k) : splat(0));
            if (m->relu) x = choose(x < splat(0), splat(0), x); /* NaN stays NaN */
            _mm512_mask_storeu_ps(c, there, (__m512)x);
        }
}

/* Splits `deep` panels of some strips of columns, in the order of the memory. */
static void split_strips(const job *j, const float *B, int64_t first, int64_t strips, int64_t panel, int64_t deep, char *to) {
    const matrices *m = j->m;
    int64_t pitch = m->turned_B ? m->K : m->N;
    for (int64_t i = 0; i < strips * deep; i++) {
        int64_t s = m->turned_B ? i / deep : i % strips, k = m->turned_B ? i % deep : i / strips;
        int64_t column = (first + s) * SIDE, depth = (j->from + panel + k) * SIDE;
        split_panel(part_of(B, pitch, m->turned_B, column, depth), pitch, m->turned_B, least(SIDE, m->N - column),
                    least(SIDE, m->K - depth), 1, to + (s * deep + k) * PANEL_BYTES);
    }
}

/* Multiplies `deep` panels of a block of rows and a strip of columns. */
static void multiply_block(const job *j, int64_t i, int64_t strip, int64_t panel, int64_t deep, const char *b, float *C) {
    const matrices *m = j->m;
    int64_t row = j->first + i * SIDE, rows = least(SIDE, j->first + j->count - row);
    int64_t column = strip * SIDE, columns = least(SIDE, m->N - column);
    int begun = j->from + panel > 0, after = m->scale != 1, last = j->from + panel + deep == panels_of(m->K);
    int whole = (rows == SIDE || rows == LANES) && (columns == SIDE || columns == LANES);
    const float *bias = m->bias ? m->bias + column : NULL;
    float *c = C + row * m->N + column, aside[SIDE * SIDE] __attribute__((aligned(64))), start[SIDE] = {0};
    if (!whole && begun)
        for (int64_t r = 0; r < rows; r++) memcpy(aside + r * SIDE, c + r * m->N, columns * sizeof(float));
    if (!whole && bias) memcpy(start, bias, columns * sizeof(float));
    block(rows > LANES, columns > LANES, j->rows + (i * j->panels + panel) * PANEL_BYTES, b, deep,
          !bias || after ? NULL : whole ? bias : start, !begun ? NULL : whole ? c : aside, whole ? c : aside,
          whole ? m->N : SIDE);
    if (!whole)
        for (int64_t r = 0; r < rows; r++) memcpy(c + r * m->N, aside + r * SIDE, columns * sizeof(float));
    if (last && (m->relu || after)) finish(m, c, rows, columns, bias);
}

/* Returns how many strips are split at once. A block of rows is read again for each, from a cache if it was just read. */
static int64_t at_once(const job *j) { return j->blocks < MANY ? 1 : STRIPS; }

/* Multiplies some blocks of rows with some strips of columns; `split` is memory for these. */
static void multiply_strips(const job *j, int64_t first, int64_t last, int64_t strip0, int64_t strips, char *split) {
    for (int64_t s0 = strip0; s0 < strip0 + strips; s0 += at_once(j))
        for (int64_t panel = 0; panel < j->panels; panel += DEEP) {
            int64_t deep = least(DEEP, j->panels - panel), count = least(at_once(j), strip0 + strips - s0);
            split_strips(j, j->m->B, s0, count, panel, deep, split);
            for (int64_t i = first; i < last; i++)
                for (int64_t s = 0; s < count; s++)
                    multiply_block(j, i, s0 + s, panel, deep, split + s * deep * PANEL_BYTES, j->m->C);
        }
}

static void multiply_group(void *argument, size_t index) {
    const job *j = argument;
    int64_t part = index / j->groups, group = index % j->groups, first = group * j->strips / j->groups;
    char *split = borrow(DEEP * at_once(j) * PANEL_BYTES);
    if (!split) {
        __atomic_store_n(j->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    configure_tiles();
    multiply_strips(j, part * j->blocks / j->parts, (part + 1) * j->blocks / j->parts, first,
                    (group + 1) * j->strips / j->groups - first, split);
    _tile_release();
    give_back(split);
}

/* One product, on all threads. */
static int multiply_large(workers *team, const matrices *m) {
    int failed = 0;
    job j = {.m = m, .strips = parts(m->N, SIDE), .failed = &failed};
    int64_t all = panels_of(m->K), rows = parts(m->M, SIDE), most = AHEAD / PANEL_BYTES, deep = least(all, 4 * DEEP);
    int64_t ahead = least(rows, most / deep), more = most / ahead / DEEP * DEEP;
    int64_t tasks = m->threads > 1 ? 2 * m->threads : 1; /* more than threads: so that these end at about the same time */
    if (more > deep) deep = least(all, more);
    j.rows = borrow(ahead * deep * PANEL_BYTES);
    if (!j.rows) return 1;
    for (int64_t first = 0; first < rows && !failed; first += ahead)
        for (j.from = 0; j.from < all && !failed; j.from += deep) {
            j.first = first * SIDE, j.count = least(ahead * SIDE, m->M - j.first);
            j.blocks = parts(j.count, SIDE), j.panels = least(deep, all - j.from);
            j.groups = least(j.strips, tasks), j.parts = least(parts(tasks, j.groups), parts(j.blocks, FEWEST));
            share(team, split_rows, m->turned_A ? j.panels : j.blocks, &j);
            share(team, multiply_group, j.groups * j.parts, &j);
        }
    give_back(j.rows);
    return failed;
}

/* One of many small products, on one thread. */
static void multiply_small(void *argument, size_t index) {
    const job *all = argument;
    matrices m = *all->m;
    m.A += m.at_A[index], m.B += m.at_B[index], m.C += index * m.M * m.N;
    job j = {.m = &m, .count = m.M, .panels = panels_of(m.K), .blocks = parts(m.M, SIDE)};
    j.rows = borrow((j.blocks * j.panels + DEEP * at_once(&j)) * PANEL_BYTES);
    if (!j.rows) {
        __atomic_store_n(all->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t i = 0; i < (m.turned_A ? j.panels : j.blocks); i++) split_rows(&j, i);
    configure_tiles();
    multiply_strips(&j, 0, j.blocks, 0, parts(m.N, SIDE), j.rows + j.blocks * j.panels * PANEL_BYTES);
    _tile_release();
    give_back(j.rows);
}

int multiply_matrices(workers *team, const matrices *m) {
    int failed = 0;
    if (m->batch > 1 && m->batch >= m->threads && parts(m->M, SIDE) * panels_of(m->K) * PANEL_BYTES <= AHEAD) {
        share(team, multiply_small, m->batch, &(job){.m = m, .failed = &failed});
        return failed;
    }
    for (int64_t n = 0; n < m->batch && !failed; n++) {
        matrices one = *m;
        if (m->at_A) one.A += m->at_A[n], one.B += m->at_B[n], one.C += n * m->M * m->N;
        failed = multiply_large(team, &one);
    }
    return failed;
}

#else

int multiply_matrices(workers *team, const matrices *m) { return (void)team, (void)m, 1; }

#endif

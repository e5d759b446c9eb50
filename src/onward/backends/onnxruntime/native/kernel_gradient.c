/* The gradient of a convolution's kernel: for each tap the product of X, shifted, and dY, over images and pixels.

   A tile of the result has ROWS taps (c, y, x) and WIDE output channels. Its sums stay in registers while the pixels go
   by: the elements of X are read where they are, in the padded image, and dY is transposed to [pixels, WIDE], so that no
   columns (im2col) are written. */
#include "convolution.h"

enum {
    PIXELS = 512,       /* of a tile's inner loop: their columns of dY stay in the cache */
    AT_ONCE = 1 << 19,  /* elements of dY, and of padded images, that are prepared at once: they stay in the cache */
    MOST = 1 << 20,     /* the same where these would be less than PIXELS pixels, so that sums stay in registers */
    TASKS = 8,          /* at least, where the tiles are enough: so that the threads end at about the same time */
};

typedef struct {
    const conv *c;
    const float *X, *dY;
    float *copy;    /* [images, C, height, width]: X with zeros around it; NULL if there are none */
    float *columns; /* [images, blocks, pixels, columns of a tile]: dY transposed */
    float *result;  /* [groups, taps, wide] */
    float *dK;
    const int64_t *offsets; /* of each tap in the padded image of a group */
    int64_t height, width, plane, taps, channels, wide, lanes, rows, blocks, chunks;
    int64_t first, images, y0, y1; /* what is at hand: these images, these rows of dY */
} job;

/* Writes rows [channels, pixels] as columns [pixels, lanes], with zeros for the channels that are missing. */
static void turn(const float *rows, int64_t pitch, int64_t channels, int64_t pixels, float *columns, int64_t lanes) {
    for (int64_t first = 0; first < lanes; first += LANES)
        for (int64_t p = 0; p < pixels; p += LANES) {
            vec t[LANES];
            for (int64_t i = 0; i < LANES; i++) {
                t[i] = splat(0);
                if (first + i < channels) {
                    const float *row = rows + (first + i) * pitch + p;
                    if (p + LANES <= pixels)
                        t[i] = load(row);
                    else
                        for (int64_t j = 0; j < pixels - p; j++) t[i][j] = row[j];
                }
            }
            transpose(t);
            for (int64_t i = 0; i < least(LANES, pixels - p); i++) store(columns + (p + i) * lanes + first, t[i]);
        }
}

/* Prepares one block of channels of one image, or pads one image. */
static void prepare(void *argument, size_t index) {
    const job *j = argument;
    const conv *c = j->c;
    int64_t blocks = c->groups * j->blocks, turns = j->images * blocks;
    if ((int64_t)index >= turns) {
        int64_t n = index - turns;
        for (int64_t k = 0; k < c->C; k++) {
            float *to = j->copy + (n * c->C + k) * j->plane;
            const float *from = j->X + ((j->first + n) * c->C + k) * c->H * c->W;
            memset(to, 0, j->plane * sizeof(float));
            for (int64_t y = 0; y < c->H; y++)
                memcpy(to + (y + c->top) * j->width + c->left, from + y * c->W, c->W * sizeof(float));
        }
        return;
    }
    int64_t n = index / blocks, group = index % blocks / j->blocks, channel = index % j->blocks * j->lanes;
    int64_t image = c->OH * c->OW, pixels = (j->y1 - j->y0) * c->OW;
    const float *from = j->dY + ((j->first + n) * c->M + group * j->channels + channel) * image + j->y0 * c->OW;
    float *to = j->columns + index * pixels * j->lanes;
    turn(from, image, least(j->lanes, j->channels - channel), pixels, to, j->lanes);
}

/* Adds to the sums of a tile: X[offset + pixel] * dY[pixel], over n pixels. Two at a time, because there are more offsets
   than registers for them. */
#define ADD_ROW(name, rows, vecs)                                                                       \
    static inline void name(vec sums[rows][vecs], const float *X, const int64_t *offsets, int64_t step, \
                            const float *dY, int64_t n) {                                               \
        for (int64_t p = 0; p < n; p += 2, dY += 2 * (vecs) * LANES, X += 2 * step) {                   \
            vec y[2][vecs];                                                                             \
            int more = p + 1 < n;                                                                       \
            for (int k = 0; k < (vecs); k++) y[0][k] = load(dY + k * LANES);                            \
            for (int i = 0; !more && i < (rows); i++)                                                   \
                for (int k = 0; k < (vecs); k++) sums[i][k] += X[offsets[i]] * y[0][k];                 \
            if (!more) break;                                                                           \
            for (int k = 0; k < (vecs); k++) y[1][k] = load(dY + (k + (vecs)) * LANES);                 \
            for (int i = 0; i < (rows); i++) {                                                          \
                const float *x = X + offsets[i];                                                        \
                for (int k = 0; k < (vecs); k++) sums[i][k] += x[0] * y[0][k];                          \
                for (int k = 0; k < (vecs); k++) sums[i][k] += x[step] * y[1][k];                       \
            }                                                                                           \
        }                                                                                               \
    }

/* Adds a tile of `used` taps to the result: the images at hand, rows y0 to y1 of dY. */
#define TILE(name, rows, vecs)                                                                                      \
    ADD_ROW(add_row_##name, rows, vecs)                                                                             \
    static void tile_##name(const job *j, const float *X, const int64_t *offsets, int64_t y0, int64_t y1,           \
                            const float *dY, int64_t apart, float *result, int64_t used) {                          \
        const conv *c = j->c;                                                                                       \
        vec sums[rows][vecs];                                                                                       \
        int64_t near[rows];                                                                                         \
        for (int64_t i = 0; i < (rows); i++) {                                                                      \
            near[i] = offsets[least(i, used - 1)];                                                                  \
            for (int k = 0; k < (vecs); k++) sums[i][k] = splat(0);                                                 \
        }                                                                                                           \
        for (int64_t n = 0; n < j->images; n++)                                                                     \
            for (int64_t y = y0; y < y1; y++) {                                                                     \
                const float *from = X + n * c->C * j->plane + (j->y0 + y) * c->sh * j->width;                       \
                const float *by = dY + n * apart + y * c->OW * (vecs) * LANES;                                      \
                if (c->sw == 1)                                                                                     \
                    add_row_##name(sums, from, near, 1, by, c->OW);                                                 \
                else                                                                                                \
                    add_row_##name(sums, from, near, c->sw, by, c->OW);                                             \
            }                                                                                                       \
        for (int64_t i = 0; i < used; i++, result += j->wide)                                                       \
            for (int k = 0; k < (vecs); k++) store(result + k * LANES, load(result + k * LANES) + sums[i][k]);      \
    }

TILE(wide, ROWS, 2)
TILE(narrow, 2 * ROWS, 1)

/* Adds what is at hand to the tiles of one block of channels and some of the taps. */
static void work(void *argument, size_t index) {
    const job *j = argument;
    const conv *c = j->c;
    int64_t chunk = index % j->chunks, block = index / j->chunks % j->blocks, group = index / j->chunks / j->blocks;
    int64_t strips = parts(j->taps, j->rows), first = chunk * strips / j->chunks * j->rows;
    int64_t last = least((chunk + 1) * strips / j->chunks * j->rows, j->taps);
    int64_t high = j->y1 - j->y0, apart = c->groups * j->blocks * high * c->OW * j->lanes;
    int64_t strip = PIXELS / (j->images * c->OW) > 1 ? PIXELS / (j->images * c->OW) : 1;
    const float *dY = j->columns + (group * j->blocks + block) * high * c->OW * j->lanes;
    const float *X = j->copy ? j->copy : j->X + j->first * c->C * j->plane;
    X += group * (c->C / c->groups) * j->plane;
    float *result = j->result + group * j->taps * j->wide + block * j->lanes;
    for (int64_t y = 0; y < high; y += strip)
        for (int64_t r = first; r < last; r += j->rows)
            (j->lanes == WIDE ? tile_wide : tile_narrow)(j, X, j->offsets + r, y, least(y + strip, high), dY, apart,
                                                         result + r * j->wide, least(j->rows, last - r));
}

/* Writes LANES channels of the result: dK[group, channel, tap] = result[group, tap, channel]. */
static void turn_result(void *argument, size_t index) {
    const job *j = argument;
    int64_t slices = j->wide / LANES, group = index / slices, first = index % slices * LANES;
    for (int64_t t = 0; t < j->taps; t += LANES) {
        const float *from = j->result + (group * j->taps + t) * j->wide + first;
        int64_t taps = least(LANES, j->taps - t);
        vec block[LANES];
        for (int64_t i = 0; i < LANES; i++) block[i] = i < taps ? load(from + i * j->wide) : splat(0);
        transpose(block);
        for (int64_t i = 0; i < least(LANES, j->channels - first); i++) {
            float *to = j->dK + (group * j->channels + first + i) * j->taps + t;
            if (taps == LANES)
                store(to, block[i]);
            else
                for (int64_t k = 0; k < taps; k++) to[k] = block[i][k];
        }
    }
}

int kernel_gradient(workers *team, const conv *c, const float *X, const float *dY, float *dK) {
    job j = {.c = c, .X = X, .dY = dY, .dK = dK};
    int64_t inner = c->C / c->groups, size = c->kh * c->kw, pads = c->top || c->left || c->bottom || c->right;
    j.height = c->H + c->top + c->bottom, j.width = c->W + c->left + c->right, j.plane = j.height * j.width;
    j.taps = inner * size, j.channels = c->M / c->groups;
    j.lanes = j.channels > LANES ? WIDE : LANES, j.rows = j.lanes == WIDE ? ROWS : 2 * ROWS;
    j.blocks = parts(j.channels, j.lanes), j.wide = j.blocks * j.lanes;
    j.chunks = least(parts(TASKS, j.blocks * c->groups), parts(j.taps, j.rows));
    int64_t row = c->groups * j.wide * c->OW, most = row * c->OH > c->C * j.plane ? row * c->OH : c->C * j.plane;
    int64_t enough = least(parts(PIXELS, c->OH * c->OW), MOST / most), images = AT_ONCE / most;
    images = least(images < enough ? enough : images, c->N);
    if (images < 1) images = 1;
    int64_t high = images > 1 || row * c->OH <= AT_ONCE ? c->OH : row < AT_ONCE ? AT_ONCE / row : 1;
    int64_t *offsets = borrow(j.taps * sizeof(int64_t));
    j.result = borrow(c->groups * j.taps * j.wide * sizeof(float));
    j.columns = borrow(images * high * row * sizeof(float));
    j.copy = pads ? borrow(images * c->C * j.plane * sizeof(float)) : NULL;
    int failed = !offsets || !j.result || !j.columns || (pads && !j.copy);
    if (!failed) {
        memset(j.result, 0, c->groups * j.taps * j.wide * sizeof(float));
        for (int64_t t = 0; t < j.taps; t++)
            offsets[t] = t / size * j.plane + t % size / c->kw * c->dh * j.width + t % c->kw * c->dw;
        j.offsets = offsets;
        for (j.first = 0; j.first < c->N; j.first += images)
            for (j.y0 = 0; j.y0 < c->OH; j.y0 += high) {
                j.images = least(images, c->N - j.first), j.y1 = least(j.y0 + high, c->OH);
                share(team, prepare, j.images * (c->groups * j.blocks + (pads && j.y0 == 0)), &j);
                share(team, work, c->groups * j.blocks * j.chunks, &j);
            }
        share(team, turn_result, c->groups * j.wide / LANES, &j);
    }
    give_back(j.result), give_back(offsets), give_back(j.columns), give_back(j.copy);
    return failed;
}

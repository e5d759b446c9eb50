/* The transpose of a matrix. */
#include "products.h"

typedef struct {
    int64_t rows, columns;
    const float *X;
    float *Y;
} job;

/* LANES columns of X, which are rows of Y, in blocks of LANES x LANES. */
static void turn_columns(void *argument, size_t index) {
    const job *j = argument;
    int64_t first = index * LANES, wide = least(LANES, j->columns - first), row = 0;
    const float *X = j->X + first;
    float *Y = j->Y + first * j->rows;
    if (wide == LANES)
        for (; row + LANES <= j->rows; row += LANES) {
            vec block[LANES];
            for (int64_t i = 0; i < LANES; i++) block[i] = load(X + (row + i) * j->columns);
            transpose(block);
            for (int64_t i = 0; i < LANES; i++) store(Y + i * j->rows + row, block[i]);
        }
    for (; row < j->rows; row++)
        for (int64_t i = 0; i < wide; i++) Y[i * j->rows + row] = X[row * j->columns + i];
}

void turn(workers *team, int64_t rows, int64_t columns, const float *X, float *Y) {
    share(team, turn_columns, parts(columns, LANES), &(job){rows, columns, X, Y});
}

/* Memory for the time of a kernel, kept for the next one. */
#include <pthread.h>

#include "vectors.h"

enum { SLOTS = 32, HEADER = 64 };
static const size_t MOST_KEPT = 48 << 20; /* bytes */
static struct {
    pthread_mutex_t lock;
    void *kept[SLOTS];
    size_t bytes;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

void *borrow(size_t bytes) {
    int best = -1;
    void *block = NULL;
    bytes += HEADER + 4 * WIDE * sizeof(float); /* vectors may reach beyond the end */
    pthread_mutex_lock(&pool.lock);
    for (int i = 0; i < SLOTS; i++)
        if (pool.kept[i] && *(size_t *)pool.kept[i] >= bytes &&
            (best < 0 || *(size_t *)pool.kept[i] < *(size_t *)pool.kept[best]))
            best = i;
    if (best >= 0 && *(size_t *)pool.kept[best] / 2 <= bytes + 4096) {
        block = pool.kept[best];
        pool.kept[best] = NULL;
        pool.bytes -= *(size_t *)block;
    }
    pthread_mutex_unlock(&pool.lock);
    if (!block) {
        bytes = (bytes + HEADER - 1) / HEADER * HEADER;
        if (posix_memalign(&block, HEADER, bytes)) return NULL;
        *(size_t *)block = bytes;
    }
    return (char *)block + HEADER;
}

void give_back(void *memory) {
    if (!memory) return;
    void *block = (char *)memory - HEADER;
    pthread_mutex_lock(&pool.lock);
    for (int i = 0; i < SLOTS && block; i++)
        if (!pool.kept[i] && pool.bytes + *(size_t *)block <= MOST_KEPT) {
            pool.bytes += *(size_t *)block;
            pool.kept[i] = block;
            block = NULL;
        }
    pthread_mutex_unlock(&pool.lock);
    free(block);
}

/* Whether tiles may be used. */
#define _GNU_SOURCE
#include "tiles.h"

#ifdef TILES
#include <sys/syscall.h>
#include <unistd.h>

static int ask(void) {
    enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 }; /* asm/prctl.h; once for all threads of a process */
    return !syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA);
}
#else
static int ask(void) { return 0; }
#endif

int tiles_allowed(void) {
    static int answer; /* 0: not asked */
    int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
    if (!known) __atomic_store_n(&answer, known = ask() ? 1 : -1, __ATOMIC_RELAXED);
    return known > 0;
}

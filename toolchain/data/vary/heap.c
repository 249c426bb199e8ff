/* An allocator in front of glibc's allocator. It places blocks in a different order, so that a program whose output
   depends on addresses writes different bytes. `toolchain reproduce --vary` compiles this file in the base and preloads
   the library. */
#include <stddef.h>
#include <stdint.h>

#ifndef SEED
#define SEED 1
#endif
#define LARGEST 8192 /* bytes; the order of larger blocks is not changed */
#define HELD 2048    /* number of unused blocks that are held, so that the blocks in use are further apart */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void __libc_free(void *block);

static void *held[HELD];
static uint64_t state = 0x9e3779b97f4a7c15ull * (SEED + 1);

/* All threads share the counter. A race between threads only decides which of them gets which number. */
static uint64_t next(void) {
  uint64_t x = __atomic_add_fetch(&state, 0x9e3779b97f4a7c15ull, __ATOMIC_RELAXED);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

static void shift(size_t size) {
  uint64_t random = next();
  for (unsigned left = random & 3; left != 0; left--) {
    random >>= 12;
    void *block = __libc_malloc(size + (random & 0x70));
    __libc_free(__atomic_exchange_n(&held[(random >> 2) % HELD], block, __ATOMIC_ACQ_REL));
  }
}

void *malloc(size_t size) {
  if (size <= LARGEST) shift(size);
  return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  if (count <= LARGEST && size <= LARGEST && count * size <= LARGEST) shift(count * size);
  return __libc_calloc(count, size);
}

"""Kernels of atomics, and of programs that communicate."""

import triton
import triton.language as tl


@triton.jit
def atomic_integers(x, cells, old, N: tl.constexpr):
    """Run seven atomic operations on a cell for each lane, and store the old values."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(old + i, tl.atomic_add(cells + i, a))
    tl.store(old + N + i, tl.atomic_max(cells + N + i, a))
    tl.store(old + 2 * N + i, tl.atomic_min(cells + 2 * N + i, a))
    tl.store(old + 3 * N + i, tl.atomic_and(cells + 3 * N + i, a))
    tl.store(old + 4 * N + i, tl.atomic_or(cells + 4 * N + i, a))
    tl.store(old + 5 * N + i, tl.atomic_xor(cells + 5 * N + i, a))
    tl.store(old + 6 * N + i, tl.atomic_cas(cells + 6 * N + i, a & 1, a))


@triton.jit
def contended(x, cells, N: tl.constexpr, CELLS: tl.constexpr):
    """Run six atomic operations on few cells for all lanes and programs, without their results."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    a = tl.load(x + i)
    cell = i % CELLS
    tl.atomic_add(cells + cell, a)
    tl.atomic_max(cells + CELLS + cell, a)
    tl.atomic_min(cells + 2 * CELLS + cell, a)
    tl.atomic_and(cells + 3 * CELLS + cell, a)
    tl.atomic_or(cells + 4 * CELLS + cell, a)
    tl.atomic_xor(cells + 5 * CELLS + cell, a)


@triton.jit
def atomic_floats(x, cells, old, n, N: tl.constexpr):
    """Add floats to a cell for each lane, and to one cell for all lanes, with a mask."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(old + i, tl.atomic_add(cells + i, a, mask=i < n), mask=i < n)
    tl.atomic_add(cells + N + i // N, a, mask=i < n)


@triton.jit
def atomic_extremes(x, cells, old, N: tl.constexpr):
    """Compute atomic maxima and minima of floats."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(old + i, tl.atomic_max(cells + i, a))
    tl.store(old + N + i, tl.atomic_min(cells + N + i, a))


@triton.jit
def exchanged(x, index, cells, old, N: tl.constexpr):
    """Exchange values at indices that are read from memory, and add to them."""
    i = tl.arange(0, N)
    a, where = tl.load(x + i), tl.load(index + i)
    tl.store(old + i, tl.atomic_xchg(cells + where, a))
    tl.store(old + N + i, tl.atomic_add(cells + where, a))


@triton.jit
def scopes(x, cells, N: tl.constexpr):
    """Add atomically with each scope and memory order."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.atomic_add(cells + i, a, sem="relaxed", scope="cta")
    tl.atomic_add(cells + i, a, sem="acquire", scope="cta")
    tl.atomic_add(cells + i, a, sem="release", scope="cta")
    tl.atomic_add(cells + i, a, sem="acq_rel", scope="cta")
    tl.atomic_add(cells + i, a, sem="relaxed", scope="gpu")
    tl.atomic_add(cells + i, a, sem="acquire", scope="gpu")
    tl.atomic_add(cells + i, a, sem="release", scope="gpu")
    tl.atomic_add(cells + i, a, sem="acq_rel", scope="gpu")
    tl.atomic_add(cells + i, a, sem="relaxed", scope="sys")
    tl.atomic_add(cells + i, a, sem="acquire", scope="sys")
    tl.atomic_add(cells + i, a, sem="release", scope="sys")
    tl.atomic_add(cells + i, a, sem="acq_rel", scope="sys")


@triton.jit
def scalar_atomics(x, cells, old):
    """Run atomics of a scalar; the result of the first one decides a branch."""
    p = tl.program_id(0)
    a = tl.load(x + p)
    before = tl.atomic_add(cells, a, sem="acq_rel")
    if before % 2 == 0:
        tl.atomic_max(cells + 1, a)
    else:
        tl.atomic_xor(cells + 2, a)
    tl.store(old + p, before)


@triton.jit
def last_one_sums(x, parts, counter, out, N: tl.constexpr):
    """Store the sum of each program; the program that counts last adds all sums."""
    p, count = tl.program_id(0), tl.num_programs(0)
    tl.store(parts + p, tl.sum(tl.load(x + p * N + tl.arange(0, N)), 0))
    tl.debug_barrier()
    if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == count - 1:
        i = tl.arange(0, 16)
        tl.store(out, tl.sum(tl.load(parts + i, mask=i < count, other=0, cache_modifier=".cg"), 0))


@triton.jit
def locked(x, lock, out, N: tl.constexpr):
    """Add under a lock that is made of compare-and-swap."""
    i = tl.arange(0, N)
    a = tl.load(x + tl.program_id(0) * N + i)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out + i, tl.load(out + i) + a)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def through_memory(x, scratch, out, N: tl.constexpr):
    """Read, after a barrier, values that other lanes have written."""
    i = tl.arange(0, N)
    value = tl.load(x + i)
    for step in tl.static_range(3):
        tl.store(scratch + step * N + i, value * 2 + i)
        tl.debug_barrier()
        value = tl.load(scratch + step * N + (i * 5 + step) % N)
    tl.store(out + i, value)


@triton.jit
def cached(x, out, N: tl.constexpr):
    """Load and store with each cache modifier and eviction policy."""
    i = tl.arange(0, N)
    a = tl.load(x + i, cache_modifier=".ca") + tl.load(x + N + i, cache_modifier=".cg")
    a += tl.load(x + 2 * N + i, cache_modifier=".cv") + tl.load(x + 3 * N + i, volatile=True)
    a += tl.load(x + 4 * N + i, eviction_policy="evict_first") + tl.load(x + 5 * N + i, eviction_policy="evict_last")
    tl.store(out + i, a, cache_modifier=".wb")
    tl.store(out + N + i, a, cache_modifier=".cg")
    tl.store(out + 2 * N + i, a, cache_modifier=".cs")
    tl.store(out + 3 * N + i, a, cache_modifier=".wt")
    tl.store(out + 4 * N + i, a, eviction_policy="evict_first")


@triton.jit
def grid(out, A: tl.constexpr, B: tl.constexpr):
    """Store the position of each program in a three-dimensional grid."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    first, second = tl.swizzle2d(y, x, ny, nx, B)
    place = (z * ny + y) * nx + x
    i = tl.arange(0, A)
    tl.store(out + place * A + i, ((x * 16 + y) * 16 + z) * 4096 + nx * 256 + ny * 16 + nz + i * (first + 7 * second))

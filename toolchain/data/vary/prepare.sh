#!/bin/sh
# This script runs in a container of the base, in a copy of this folder. The copy also contains clock.so, the
# libfaketime of the build machine, if it is installed there. The script builds heap.so. It prints `heap` and `clock` if
# these libraries can be preloaded, and `static FILE` for each program into which no library can be preloaded. Without
# python3 in the base it prints `unknown`, because then it cannot find these programs.
#   SEED  the seed for the order of blocks in the heap
#   DAYS  the number of days by which the clock is ahead
here=$PWD
for compiler in clang gcc cc; do
  if command -v $compiler >/dev/null && $compiler -O1 -shared -fPIC -DSEED="${SEED}u" -o heap.so heap.c; then
    if LD_PRELOAD=$here/heap.so /bin/sh -c :; then echo heap; fi
    break
  fi
done
if [ -e clock.so ]; then
  now=$(date +%Y%j)
  then=$(LD_PRELOAD=$here/clock.so FAKETIME=+${DAYS}d date +%Y%j)
  if [ -n "$then" ] && [ "$then" != "$now" ]; then echo clock; fi
fi
if command -v python3 >/dev/null; then python3 -I static.py; else echo unknown; fi

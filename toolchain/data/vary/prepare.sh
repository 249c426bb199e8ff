#!/bin/sh
# Runs in the base, in a folder with the files of this one and perhaps clock.so, this machine's libfaketime.
# Prints `heap` and `clock` for each library that can be preloaded, `static PATH` for each program that none reaches.
#   SEED  of the heap
#   DAYS  that the clock is ahead
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

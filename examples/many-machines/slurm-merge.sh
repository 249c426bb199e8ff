#!/bin/sh
#SBATCH --cpus-per-task=4
set -eu
export TOOLCHAIN_CACHE="${TMPDIR:-/tmp}/toolchain-$SLURM_JOB_ID"
lock=$TOOLCHAIN_CACHE.lock
toolchain bundle import registry.example/ns/kernels-bundle:latest --lock-file "$lock"
toolchain kernels merge kernels "$HOME/kernel-store" \
  --lock-file "$lock" --reuse-from registry.example/ns --public-key release-key.pub \
  --gpu gfx942 --drop-binary libdevice

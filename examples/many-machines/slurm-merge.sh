#!/bin/sh
#SBATCH --cpus-per-task=4
set -eu
export TOOLCHAIN_CACHE="${TMPDIR:-/tmp}/toolchain-$SLURM_JOB_ID"
toolchain kernels merge kernels "$HOME/kernel-store" --gpu gfx942 --drop-binary libdevice

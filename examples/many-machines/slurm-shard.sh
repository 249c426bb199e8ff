#!/bin/sh
#SBATCH --array=1-16
#SBATCH --cpus-per-task=32
# 16 stands in two places, so that a single part can be run again by --array=3: the store is a folder that all nodes see.
set -eu
export TOOLCHAIN_CACHE="${TMPDIR:-/tmp}/toolchain-$SLURM_JOB_ID"
toolchain build kernels --gpu gfx942 --drop-binary libdevice \
  --kernel-store "$HOME/kernel-store" --shard "$SLURM_ARRAY_TASK_ID/16"

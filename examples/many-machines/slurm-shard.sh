#!/bin/sh
#SBATCH --array=1-16
#SBATCH --cpus-per-task=32
# The number of shards, 16, is written twice, so that a single shard can be run again: sbatch --array=3 slurm-shard.sh
# The store is a folder that all nodes share. release-key.pub is next to this script.
set -eu
export TOOLCHAIN_CACHE="${TMPDIR:-/tmp}/toolchain-$SLURM_JOB_ID"
export TOOLCHAIN_LOCK_FILE="$TOOLCHAIN_CACHE.lock"
toolchain bundle import registry.example/ns/kernels-bundle:latest
toolchain build triton --aotriton 0.13b --gpu MI300X --drop-binary libdevice \
  --reuse-from registry.example/ns --public-key release-key.pub --reuse-only
toolchain kernels run aotriton --aotriton 0.13b --gpu MI300X --drop-binary libdevice \
  --kernel-store "$HOME/kernel-store" --shard "$SLURM_ARRAY_TASK_ID/16" \
  --keep-going || [ "$?" -eq 12 ]

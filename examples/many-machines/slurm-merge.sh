#!/bin/sh
#SBATCH --cpus-per-task=4
set -eu
export TOOLCHAIN_CACHE="${TMPDIR:-/tmp}/toolchain-$SLURM_JOB_ID"
lock=$TOOLCHAIN_CACHE.lock
toolchain bundle import registry.example/ns/kernels-bundle:latest --lock-file "$lock"
toolchain build triton --aotriton 0.11b --gpu MI300X --drop-binary libdevice \
  --lock-file "$lock" --reuse-from registry.example/ns --public-key release-key.pub --reuse-only
toolchain kernels merge aotriton "$HOME/kernel-store" --aotriton 0.11b --gpu MI300X --drop-binary libdevice \
  --lock-file "$lock"
toolchain publish "oci:$HOME/aotriton" --stage aotriton --aotriton 0.11b --gpu MI300X --drop-binary libdevice \
  --lock-file "$lock"

#!/bin/sh
#SBATCH --cpus-per-task=4
# release-key and release-key.pub are next to this script. release-key is the private key, so no other user may read it.
set -eu
export TOOLCHAIN_CACHE="${TMPDIR:-/tmp}/toolchain-$SLURM_JOB_ID"
export TOOLCHAIN_LOCK_FILE="$TOOLCHAIN_CACHE.lock"
toolchain bundle import registry.example/ns/kernels-bundle:latest
toolchain build triton --aotriton 0.13b --gpu MI300X --drop-binary libdevice \
  --reuse-from registry.example/ns --public-key release-key.pub --reuse-only
toolchain kernels merge aotriton "$HOME/kernel-store" --aotriton 0.13b --gpu MI300X --drop-binary libdevice \
  --keep-going || [ "$?" -eq 12 ]
toolchain publish "oci:$HOME/aotriton" aotriton --key release-key

#!/bin/sh
# Submits the shards, and the merge for when all of them have succeeded.
set -eu
cd "$(dirname "$0")"
shards=$(sbatch --parsable slurm-shard.sh)
# On a federation the answer is JOB;CLUSTER.
sbatch --dependency="afterok:${shards%%;*}" slurm-merge.sh

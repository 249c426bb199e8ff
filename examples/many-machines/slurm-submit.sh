#!/bin/sh
# Submit the shards, and the merge, which starts after all shards have succeeded.
set -eu
cd "$(dirname "$0")"
shards=$(sbatch --parsable slurm-shard.sh)
# In a federation of clusters, sbatch prints JOB;CLUSTER.
sbatch --dependency="afterok:${shards%%;*}" slurm-merge.sh

#!/usr/bin/env bash
# Trains one configuration with several seeds, one after the other:
#     launch/seeds.sh configs/ppo_push_cube.yaml "0 1 2" [key=value ...]
set -euo pipefail
config=$1 seeds=$2
shift 2
rlpipe=$(dirname "$0")/../.venv/bin/rlpipe
[ -x "$rlpipe" ] || rlpipe=rlpipe
for seed in $seeds; do
    "$rlpipe" train "$config" "runner.seed=$seed" "$@"
done

#!/usr/bin/env bash
# Trains on the nodes of a Slurm job:  sbatch --nodes 8 launch/slurm.sh CONFIG [key=value ...]
#
# Submit it from a folder that all nodes share. It uses the Python of .venv there, else that of the environment.
#
# Five minutes before the time limit, the run saves a checkpoint and ends; to resume it, put --resume RUN in place
# of CONFIG. To end it in the same way at any time:
#   scancel --batch --signal=USR1 JOB
#
# The exit code is that of rlpipe train. It comes from a file that rlpipe train's own shell writes, because
# ray symmetric-run also ends with 0 if Ray did not start.
#SBATCH --job-name=rlpipe
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --no-requeue
#SBATCH --output=slurm-%j.out
set -euo pipefail

if (($# == 0)); then
    echo "usage: sbatch launch/slurm.sh CONFIG [key=value ...]" >&2
    exit 2
fi
if [[ -f .venv/bin/activate ]]; then
    # shellcheck disable=SC1091
    source .venv/bin/activate
fi

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$head:$((20000 + SLURM_JOB_ID % 10000))
result=$PWD/slurm-$SLURM_JOB_ID.result
rm -f "$result" "$result.pid" "$result.ending"

# This job has its own port, token and folder. The folder is short, because socket paths may have only 107 characters.
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
export RAY_AUTH_TOKEN
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
# The other nodes may be ready long before the head. Without these, each gives up after 40 seconds without an answer.
export RAY_py_gcs_connect_timeout_s=300 RAY_gcs_rpc_server_connect_timeout_s=300
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=15 # below Slurm's KillWait of 30

srun --ntasks-per-node=1 mkdir -p "$RAY_TMPDIR"

# The signal may arrive before rlpipe train has started. Its shell then finds this file.
# shellcheck disable=SC2329  # the trap calls it
save_and_end() {
    touch "$result.ending"
    if [[ -f $result.pid ]]; then
        kill -TERM "$(<"$result.pid")" 2>/dev/null || true  # it may have ended
    fi
}
trap save_and_end USR1

# rlpipe train runs on the first node, which is also where this script runs.
# shellcheck disable=SC2016  # the inner shell expands it
srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus "$SLURM_CPUS_PER_TASK" -- \
    bash -c '
        result=$1 address=$2
        shift 2
        python -m rlpipe train "$@" --ray-address "$address" &
        echo $! >"$result.pid"
        if [[ -f $result.ending ]]; then
            kill -TERM $!
        fi
        code=0
        wait $! || code=$?
        echo "$code" >"$result"
        exit "$code"
    ' rlpipe "$result" "$address" "$@" &
srun=$!

# A signal interrupts wait but not srun, so wait again.
while kill -0 "$srun" 2>/dev/null; do
    wait "$srun" || true
done

if [[ ! -f $result ]]; then
    echo "rlpipe train did not end by itself: Ray did not start on all nodes, or the job was killed." >&2
    exit 1
fi
exit "$(<"$result")"

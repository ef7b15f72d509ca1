#!/usr/bin/env bash
# Trains on the nodes of a Slurm job:  sbatch --nodes 8 launch/slurm.sh CONFIG [key=value ...]
#
# Works in the folder it is submitted from, which all nodes must share, with the Python of .venv or of the environment.
# The exit code is that of rlpipe train: it comes from a file that rlpipe train's own shell writes, because
# ray symmetric-run also ends with 0 when Ray did not start. Five minutes before the time limit the run saves a
# checkpoint and ends; go on with --resume RUN in the place of CONFIG. To end it so at any time:
#   scancel --batch --signal=USR1 JOB
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

# Everything of this job is its own: folder (short, because socket paths may have 107 characters), token and port.
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
export RAY_AUTH_TOKEN
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=15 # below Slurm's KillWait of 30

srun --ntasks-per-node=1 mkdir -p "$RAY_TMPDIR"

# The signal may come before there is anything to end: then the shell of rlpipe train finds this file.
# shellcheck disable=SC2329  # the trap calls it
save_and_end() {
    touch "$result.ending"
    if [[ -f $result.pid ]]; then
        kill -TERM "$(<"$result.pid")" || true
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

# A signal ends the waiting, and not what is waited for.
while kill -0 "$srun" 2>/dev/null; do
    wait "$srun" || true
done

if [[ ! -f $result ]]; then
    echo "rlpipe train has not ended by itself: Ray did not start on all nodes, or the job was killed." >&2
    exit 1
fi
exit "$(<"$result")"

#!/usr/bin/env bash
# Trains on a cluster with Ray's own command:  launch/ray_job_submit.sh http://HOST:8265 CONFIG [key=value ...]
# The exit code is also 0 when the job was stopped or the log broke off; rlpipe submit tells these apart.
set -euo pipefail
cd "$(dirname "$0")/.."
if (($# < 2)); then
    echo "usage: $0 http://HOST:8265 CONFIG [key=value ...]" >&2
    exit 2
fi
address=$1
config=$2
shift 2

# Ray sends its token to an explicit address only if RAY_AUTH_MODE is set.
if [[ -n ${RAY_AUTH_TOKEN:-} || -n ${RAY_AUTH_TOKEN_PATH:-} || -f ~/.ray/auth_token ]]; then
    export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
fi
# Runs go to the home folder of the user that runs Ray, because a job's working directory is deleted with the job.
# shellcheck disable=SC2016  # $HOME is that of the cluster
exec ray job submit --address "$address" --working-dir . --runtime-env launch/runtime_env.yaml -- \
    sh -c 'config=$1; shift; exec python -m rlpipe train "$config" runner.logger.log_path="$HOME/runs" "$@"' \
    rlpipe "$config" "$@"

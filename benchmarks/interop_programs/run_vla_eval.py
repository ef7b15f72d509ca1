"""Runs an evaluation of vla-eval against a server: ``python run_vla_eval.py URL CONFIG FOLDER [PATH ...]``, with a
configuration in JSON, a folder for what it writes, and further folders of packages; prints all episodes as JSON."""

import json
import sys

sys.path += sys.argv[4:]  # behind everything that is installed here

from vla_eval import api


def main() -> None:
    """Evaluates, and prints."""
    url, config, folder = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    (result,) = api.run(config, server_url=url, output_dir=folder, docker=False)
    episodes = [{"task": task["task"], **episode} for task in result["tasks"] for episode in task["episodes"]]
    print(json.dumps({"success": result.get("mean_success"), "errors": result["num_errors"], "episodes": episodes}))


main()

"""Serves vla-eval's trivial model until standard input ends; prints its address."""

import sys

from vla_eval import api
from vla_eval_toys import ToyServer

with api.serve_background(ToyServer()) as handle:
    print(handle.url, flush=True)
    sys.stdin.read()

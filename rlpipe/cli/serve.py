"""``rlpipe serve RUN``: a trained policy behind a socket, for harnesses of others."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from rlpipe.cli import arguments
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.errors import ConfigError, UserInterrupt
from rlpipe.plugins import nearest, require


def serve(
    path: Annotated[
        Path,
        typer.Argument(
            parser=arguments.path,
            help="Run directory (its newest checkpoint), checkpoint file or folder of an export.",
            metavar="PATH",
        ),
    ],
    protocol: Annotated[
        str, typer.Option(help="openpi, whose clients ask for chunks of actions, or vla-eval, which asks for each.")
    ] = "openpi",
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 lets in every machine that reaches this one.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(parser=arguments.integer, help="Port to listen at; 0 for any that is free.")
    ] = 8000,
    best: arguments.Best = False,
    renamed: Annotated[
        list[str] | None,
        typer.Option("--map", help="Key of a request that holds a leaf of the observation.", metavar="KEY=LEAF"),
    ] = None,
) -> None:
    """Serve a trained policy over a socket, to clients of openpi or vla-eval, until Ctrl-C.

    Each connection has a memory and noise of its own. Nothing that a client sends is executed; anyone who reaches the
    port is answered.
    """
    for package in ("msgpack", "websockets"):
        require(package, "serve", "rlpipe serve")
    from rlpipe.serving.server import PolicyServer, metadata_of, recorded_policy, request_keys
    from rlpipe.serving.wire import LOOPBACK, PROTOCOLS

    if protocol not in PROTOCOLS:
        raise ConfigError(f"--protocol is {protocol!r}; legal are {', '.join(PROTOCOLS)}{nearest(protocol, PROTOCOLS)}")
    policy, record = recorded_policy(path, best=best)
    metadata = metadata_of(policy, record, request_keys(policy.card, renamed or []))
    server = PolicyServer(policy, metadata, protocol=protocol, host=host, port=port)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell ignores the first, as in the background
        signal.signal(number, _interrupt)
    console = Console(highlight=False, soft_wrap=True)
    for line in description(metadata):
        console.print(escape(line))
    if host not in LOOPBACK:
        console.print("[yellow]Anyone who reaches this port can use the policy: there is no authentication.[/]")
    console.print(f"[bold]serving at {server.url}[/] [dim]({protocol}; Ctrl-C ends)[/]")
    try:
        server.serve_forever()
    except KeyboardInterrupt:  # typer would end without a word
        Console(stderr=True, highlight=False).print("[yellow]interrupted[/]")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def description(metadata: Mapping[str, Any]) -> list[str]:
    """Returns what is served, what it takes and what it gives, a line each."""
    kind = "most likely actions" if metadata["deterministic"] else "sampled actions"
    lines = [f"{metadata['run_id']}, iteration {metadata['iteration']} ({metadata['policy']}, {kind})"]
    for leaf, described in metadata["leaves"].items():
        key = metadata["request_keys"][leaf][0]
        lines.append(f"takes {key}: {described['dtype']} {described['shape']}")
    number = "int64" if metadata["bounds"] is None else "float32"
    of_chunk = f", of which {metadata['execute']} are meant to be taken" if metadata["chunk_size"] > 1 else ""
    return [*lines, f"gives actions: {number} [{metadata['chunk_size']}, {metadata['action_dim']}]{of_chunk}"]


def _interrupt(*_: object) -> None:
    raise UserInterrupt

"""Serve many fake engines from one process, each on a unix socket of its own.

    python -m tests.benchmarks.fleet --folder=DIR --engines=1000 --seconds=2

Prints `ready` when all sockets listen; ends at SIGTERM, and writes what it counted to `DIR/counts.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
from collections import Counter
from pathlib import Path

from aiohttp import web

from tests.benchmarks.fleet.engine import StandInEngine


def socket_path(folder: Path, number: int) -> Path:
    """Return where engine `number` listens; a socket's path may be 107 bytes long at most."""
    return folder / f"{number:04d}.sock"


async def serve(folder: Path, engines: int, seconds: float) -> None:
    """Serve until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    counts: Counter[str] = Counter()
    fleet = [StandInEngine(f"node-{number:04d}", seconds, counts) for number in range(engines)]
    for number, engine in enumerate(fleet):
        runner = web.AppRunner(engine.application(), access_log=None)
        await runner.setup()
        await web.UnixSite(runner, socket_path(folder, number)).start()
    gc.freeze()
    print("ready", flush=True)
    await ended.wait()
    left = [name for engine in fleet for name in engine.names]
    (folder / "counts.json").write_text(json.dumps({"left": left, "counts": counts}))


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--engines", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.folder, arguments.engines, arguments.seconds))


if __name__ == "__main__":
    main()

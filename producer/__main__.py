"""`python -m producer`: make runs, follow them, look at them, change their state."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import msgspec

from common.cli import Body, Command, dispatch

PROG = "python -m producer"

_DATA_HELP = """\

data: a file, a pattern, a folder (also of save_to_disk), s3://bucket/key, - for standard input, or a
dataset of the hub (org/name). JSON lines, JSON arrays (also inside one object), Parquet or Arrow, plain
or packed. Rows have one of these, told row by row and said aloud:
  messages       [{"role": "user", "content": "…"}, …]; tools beside it are passed to the template
  conversations  [{"from": "human", "value": "…"}, …]
  input_ids      [1, 2, …] with loss_mask [0, 1, …] or labels (-100 where nothing is predicted)
  prompt         "…" with response "…"; also instruction/input/output, question/answer
  text           "…", with --loss-mask all
and, if you like, id, sample_id or conversation_id. Other names: --columns messages=chat,id=uuid.
Each row that is left out is listed with its reason in skipped.parquet. More in docs/data.md.

"""
_RUN_HELP = f"""\
Reads the data, tokenises it, plans batches, stores the plan, queues what the store lacks, and waits
for the end, which is the proof that every row is stored, skipped or quarantined. The same command again
goes on where the store is; of a finished run it says that it is finished. GPU workers and uploaders do
the work: python -m gpu_worker, python -m uploader, or python -m standalone run for all on one machine.
{_DATA_HELP}\
example:
  python -m producer run --model Qwen/Qwen3-8B --data chats.jsonl --taps dflash --store s3://bucket/runs
"""
_SUBMIT_HELP = f"""\
As `run`, but queues the first --queue-window batches, prints the run's id and returns. `wait` with that
id, at any time and on any machine, queues the others as workers take from them and sees to the end,
which is when the proof is written. A run of no more batches than the window is worked through without
it; what only `wait` does then is the proof, and queueing again what was lost (a Redis that forgot, a
host whose spool is gone).
{_DATA_HELP}\
example:
  {PROG} submit --model Qwen/Qwen3-8B --data chats.jsonl --taps dflash --store s3://bucket/runs
"""
_PLAN_HELP = f"""\
Reads and tokenises as `run` does, and stores nothing: what becomes of the rows, how much padding, how many
files and bytes, how many hours, how much bandwidth and spool. Needs neither Redis nor a store. Before
there is data, two numbers do: how many samples, how long they are, or how many bytes it may be.
{_DATA_HELP}\
examples:
  python -m producer plan --dry-run --model Qwen/Qwen3-8B --data chats.jsonl --gpus 8 --tokens-per-second 20000
  python -m producer plan --dry-run --samples 913786 --total-bytes 950GB
  python -m producer plan --dry-run --samples 913786 --mean-tokens 500 --taps dflash --hidden-size 5120
"""
_WAIT_HELP = f"""\
Takes a run that was prepared before, here or on another machine: what the store lacks is queued, and
the proof is written at the end. Queues again what a wiped Redis or a lost host took along. Interrupt it
at any time; workers and uploaders go on with what is queued.

example:
  {PROG} wait my-run-0123456789ab --store s3://bucket/runs
"""
_STATUS_HELP = f"""\
Says what the store has of the run, and, where Redis answers, what is queued, running and failed, and how
fast each worker is.

example:
  {PROG} status my-run-0123456789ab --store s3://bucket/runs
"""
_RETRY_HELP = f"""\
Prints why they failed, and puts them back on the queue. `status` shows them before.

example:
  {PROG} retry-failed my-run-0123456789ab --store s3://bucket/runs
"""
_RUNS_HELP = f"""\
Each with its state, how many of its batches are stored, their size and the model.

example:
  {PROG} runs --store s3://bucket/runs
"""
_PAUSE_HELP = f"""\
Workers finish the batches that they have, uploads go on. `resume` takes it back.

example:
  {PROG} pause my-run-0123456789ab
"""
_RESUME_HELP = f"""\
A run that was cancelled is taken up again with `wait`.

example:
  {PROG} resume my-run-0123456789ab
"""
_CANCEL_HELP = f"""\
Workers finish the batches that they have. `wait`, or the same `run` again, takes it up where it was.

example:
  {PROG} cancel my-run-0123456789ab
"""
_PRIORITY_HELP = f"""\
Workers that look for a run take the one of the highest priority, of several the oldest.

examples:
  {PROG} priority my-run-0123456789ab 10
  {PROG} priority my-run-0123456789ab -5
"""
_RUN_ID_HELP = f"id of the run, as `{PROG} runs` lists them"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    _import_little()
    return dispatch(
        PROG,
        "Make runs of hidden states, follow them and look at them.",
        commands(),
        sys.argv[1:] if arguments is None else arguments,
    )


def commands() -> list[Command]:
    """All commands, in the order of their use."""
    return [*_making(), *_looking(), *_steering()]


def _making() -> list[Command]:
    """Those that make a run, and the one that says what it would be."""
    from producer import dry_run, make
    from producer.bootstrap import MAKE_GROUPS, PLAN_GROUPS, RUN_GROUPS

    run = Command(
        f"{PROG} run",
        "Prepare a run, submit it and wait until it is complete.",
        MAKE_GROUPS,
        make.run,
        _RUN_HELP,
    )
    submit = Command(
        f"{PROG} submit",
        "Prepare a run and queue the first batches, without waiting.",
        MAKE_GROUPS,
        make.submit,
        _SUBMIT_HELP,
    )
    plan = Command(
        f"{PROG} plan",
        "What a run would be: files, bytes, hours, bandwidth; stores nothing.",
        PLAN_GROUPS,
        dry_run.plan,
        _PLAN_HELP,
        complete=dry_run.needs_data,
    )
    dry_run.add_numbers(plan.parser)
    summary = "Queue what a run in the store lacks, and wait until it is complete."
    return [run, submit, plan, _on_run("wait", summary, RUN_GROUPS, make.wait, _WAIT_HELP)]


def _looking() -> list[Command]:
    """Those that say how runs are, and the one that tries again what they show to have failed."""
    from producer import look
    from producer.bootstrap import LOOK_GROUPS, RETRY_GROUPS

    return [
        _on_run("status", "How far a run is.", LOOK_GROUPS, look.status, _STATUS_HELP),
        _on_run(
            "retry-failed", "Try the failed batches of a run again.", RETRY_GROUPS, look.retry, _RETRY_HELP
        ),
        Command(f"{PROG} runs", "List the runs of a store.", LOOK_GROUPS, look.runs, _RUNS_HELP),
    ]


def _steering() -> list[Command]:
    """Those that change what a running fleet does."""
    from producer import fleet, look
    from producer.bootstrap import STATE_GROUPS

    pause = _on_run(
        "pause", "Let workers take no more batches of a run.", STATE_GROUPS, look.pause, _PAUSE_HELP
    )
    resume = _on_run(
        "resume", "Let workers take batches of a paused run again.", STATE_GROUPS, look.resume, _RESUME_HELP
    )
    cancel = _on_run(
        "cancel", "Take a run off its queue; what is stored stays.", STATE_GROUPS, look.cancel, _CANCEL_HELP
    )
    priority = _on_run(
        "priority", "Let a run go before others, or after.", STATE_GROUPS, fleet.priority, _PRIORITY_HELP
    )
    priority.parser.add_argument(
        "priority",
        metavar="N",
        help="a whole number, also below 0; runs start with 0, and the highest goes first",
    )
    change = Command(
        f"{PROG} set",
        "Change settings of the running fleet.",
        STATE_GROUPS,
        fleet.set_settings,
        fleet.SET_HELP,
    )
    change.parser.add_argument(
        "assignments", metavar="NAME=VALUE", nargs="*", help="a live setting and its value"
    )
    return [pause, resume, cancel, priority, change]


def _on_run(
    name: str, summary: str, groups: Sequence[type[msgspec.Struct]], body: Body, epilog: str
) -> Command:
    command = Command(f"{PROG} {name}", summary, groups, body, epilog)
    command.parser.add_argument("target", metavar="RUN", help=_RUN_ID_HELP)
    return command


def _import_little() -> None:
    """Keep transformers from importing torch where it is installed: seconds and 300 MB that nothing here uses.

    None in sys.modules is Python's own way to say that a module is not to be had; transformers would
    then advise to install it. Where transformers is loaded already it counts on torch, and is left alone.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    if sys.modules.keys().isdisjoint(("torch", "transformers")):
        sys.modules["torch"] = None  # type: ignore[assignment]


if __name__ == "__main__":
    code = main()
    # The answer is given: a signal that comes while the interpreter ends changes nothing about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)

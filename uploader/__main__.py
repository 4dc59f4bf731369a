"""`python -m uploader`: serve one spool until told to stop; `python -m uploader doctor`: look at a store."""

from __future__ import annotations

import sys

from common.cli import Command
from common.worker import leave
from uploader.bootstrap import GROUPS, serve

_EPILOG = """\
The uploader takes finished files from the spool of its host to the store. A file is deleted from
the spool only when the store has confirmed its size and checksum. Start as many as the network
needs, on every host that has a spool: --upload-parallelism is the number of requests in flight over
all of them, which share it. SIGTERM lets running uploads finish.

examples:
  python -m uploader --store s3://bucket/runs --s3-endpoint http://127.0.0.1:8333
  python -m uploader --store /data/runs --spool-dir /scratch/spool --upload-parallelism 8
  python -m uploader doctor --store s3://bucket/runs    # what this store can do, and the settings for it

S3 credentials come from where AWS's own tools look: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,
a profile, or the machine's role. Exit codes: 0 stopped as told, 2 a setting is wrong, 75 Redis or
the store is away.
"""


def main() -> int:
    """Run the command line; returns the exit code."""
    if sys.argv[1:2] == ["doctor"]:
        from uploader.doctor import doctor_command  # boto3, which a store in a folder does without

        return doctor_command().run(sys.argv[2:])
    command = Command(
        "python -m uploader",
        "Bring finished files from the spool to the store.",
        GROUPS,
        lambda settings, arguments: serve(settings),
        epilog=_EPILOG,
    )
    return command.run(sys.argv[1:])


if __name__ == "__main__":
    leave(main())

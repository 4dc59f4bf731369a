"""Commands that a person may copy out of a face of the monitor, for names as we give them and for no others. Pure."""

from __future__ import annotations

from hiddenfeed.errors import DataError
from hiddenfeed.layout import check_run_id


def run_of(job_id: str) -> str:
    """`demo` of `upload-demo-000007`."""
    return job_id.partition("-")[2].rpartition("-")[0]


def retry_command(job_id: str) -> str:
    """What tries the job's run again; empty if its name could not be a run's, and might do something else in a shell."""
    try:
        return f"python -m producer retry-failed {check_run_id(run_of(job_id))}"
    except DataError:
        return ""

"""All faults, by name."""

from __future__ import annotations

from tests.faults import host_faults, job_faults, process_faults, redis_faults, store_faults
from tests.faults.trial import Fault

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for module in (process_faults, redis_faults, store_faults, host_faults, job_faults)
    for fault in module.FAULTS
}

"""Counters of a run in Redis: each batch counts once, however often it is delivered.

For display only; the proof of completeness never looks here. Imported through `common.run_state`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import redis
from msgspec import UNSET
from redis.client import Pipeline

from common.batch_cost import CostSums, cost_terms, device_class
from common.checks import check_entries, parse_checks
from common.messages import BatchReport, UploadFile, UploadReceipt
from common.progress_records import RECENT_WEIGHT, FoundBatch, Progress, UploaderProgress, WorkerProgress
from common.redis_client import text, translated

#: A run nobody touches for this long is forgotten by Redis, never by the store.
RUN_TTL_SECONDS = 30 * 24 * 3600
#: Keeps the bitmap below 12 MB, whatever a message claims.
MAX_BATCH_ID = 100_000_000
#: Outcomes of an upload after which the store holds the batch.
_IN_STORE = ("stored", "already-there", "other-wins")
#: A pause between two batches of one worker counts as its working time up to this many times what a batch takes, and
#: up to this long in any case; what is over is a run that was paused or a worker that had other work.
_LONGEST_PAUSE_BATCHES, _LONGEST_PAUSE_SECONDS = 4.0, 60.0
#: Reasons of samples set aside are cut to this many characters.
_LONGEST_REASON = 500
#: Kinds of devices of a run that are told apart, first batches by themselves, and how much of a name is kept; there are
#: never many, whoever says so.
_MOST_KINDS, _LONGEST_KIND = 32, 80
#: What is kept of workers' first batches is named after their kind with this before it.
_FIRST = "first "


#: KEYS: bitmap, totals, workers, uploaders, costs, checks. ARGV: batch id, ttl, most fields of costs, a field of the
#: workers that is there from a worker's first batch on, seconds since the epoch (Redis's own clock where it is empty),
#: when the batch was computed (the same where it is empty), then `key index, field, amount` triples.
#: Amounts of key 4 (uploaders) always count; the others only when the batch's bit was not set yet.
#: An amount that starts with `=` is set; `@=` sets the time it is now, `@?` does if nothing is there; `@<` and `@>` keep
#: the earliest and latest time of computing; `~most,since` adds the time from what the field `since` holds until the
#: batch was computed, at most so much; `^most,since,weight,numbers` are sums that fade, of batches, of the time from
#: what the field holds until now, and of the numbers, and begin with a worker's second batch; `<` and `>` keep of two
#: lists the smaller or larger value at each place, a value being a number and what it is of, after a space; any other is
#: added. What a worker's first batch cost is kept by itself, and a kind of device that is one too many is not learnt.
_NOTE = """
local function number(value) return tonumber(string.match(value or '', '^%S+')) end
local function extremes(how, before, now)
  local old, kept = {}, {}
  for value in string.gmatch(before or '', '[^,]+') do old[#old + 1] = value end
  for value in string.gmatch(now, '[^,]+') do
    local was = old[#kept + 1]
    local a, b = number(was), number(value)
    if a and not (how == '<' and b < a) and not (how == '>' and b > a) then value = was end
    kept[#kept + 1] = value
  end
  return table.concat(kept, ',')
end
local first = redis.call('SETBIT', KEYS[1], ARGV[1], 1) == 0
local kinds = redis.call('HLEN', KEYS[5])
local begins = redis.call('HEXISTS', KEYS[3], ARGV[4]) == 0
local clock, now = redis.call('TIME'), ARGV[5]
if now == '' then now = string.format('%d.%06d', clock[1], clock[2]) end
local computed = ARGV[6]
if computed == '' or tonumber(computed) > tonumber(now) then computed = now end
local function passed(at, most, since)
  local before = tonumber(redis.call('HGET', KEYS[3], since) or at) or tonumber(at)
  return math.max(0, math.min(tonumber(at) - before, tonumber(most)))
end
for i = 7, #ARGV, 3 do
  local key, field, amount = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
  if key == 5 and begins then field = string.gsub(field, ' ', ' first ', 1) end
  local known = key ~= 5 or kinds < tonumber(ARGV[3]) or redis.call('HEXISTS', KEYS[5], field) == 1
  if (first or key == 4) and known then
    local how = string.sub(amount, 1, 1)
    if how == '=' then redis.call('HSET', KEYS[key], field, string.sub(amount, 2))
    elseif amount == '@=' then redis.call('HSET', KEYS[key], field, now)
    elseif amount == '@?' then redis.call('HSETNX', KEYS[key], field, now)
    elseif amount == '@<' or amount == '@>' then
      local before, at = tonumber(redis.call('HGET', KEYS[key], field) or ''), tonumber(computed)
      if not before or amount == '@<' and at < before or amount == '@>' and at > before then
        redis.call('HSET', KEYS[key], field, computed)
      end
    elseif how == '~' then
      local most, since = string.match(amount, '^~([^,]+),(.*)$')
      redis.call('HINCRBYFLOAT', KEYS[key], field, string.format('%.6f', passed(computed, most, since)))
    elseif how == '^' then
      local most, since, weight, numbers = string.match(amount, '^%^([^,]+),(.*),([^,]+),([^,]+)$')
      if not begins then
        local sums = {}
        for old in string.gmatch(redis.call('HGET', KEYS[key], field) or '', '%S+') do sums[#sums + 1] = tonumber(old) end
        local news = '1 ' .. string.format('%.6f', passed(now, most, since)) .. ' ' .. numbers
        local place, told = 0, {}
        for new in string.gmatch(news, '%S+') do
          place = place + 1
          told[place] = string.format('%.8g', (sums[place] or 0) * tonumber(weight) + tonumber(new))
        end
        redis.call('HSET', KEYS[key], field, table.concat(told, ' '))
      end
    elseif how == '<' or how == '>' then
      local before = redis.call('HGET', KEYS[key], field)
      redis.call('HSET', KEYS[key], field, extremes(how, before, string.sub(amount, 2)))
    else redis.call('HINCRBYFLOAT', KEYS[key], field, amount) end
  end
end
for i = 1, #KEYS do redis.call('EXPIRE', KEYS[i], ARGV[2]) end
return first and 1 or 0
"""


def note_stored(
    pipeline: Pipeline,
    message: UploadFile,
    receipt: UploadReceipt,
    now: float | None = None,
    *,
    computed_at: float | None = None,
    uploader: str = "",
) -> None:
    """Add to `pipeline` what counts a stored batch once.

    `now`, in seconds since the epoch, is Redis's own clock when not given: the clocks of hosts differ. `computed_at`,
    by the same clock, is when its file was finished; now if that is not known. A receipt that says `sent-back` counts nothing.
    """
    if receipt.outcome not in _IN_STORE or receipt.batch_id > MAX_BATCH_ID:
        return
    batch = message.batch
    entries = _totals(batch.samples, batch.tokens_total, batch.squares or 0, message.size_bytes)
    entries += [
        2,
        "first_at",
        "@?",
        2,
        "last_at",
        "@=",
        2,
        "first_computed_at",
        "@<",
        2,
        "last_computed_at",
        "@>",
    ]
    entries += _of_worker(message) + _of_batch(message)
    for field, amount in check_entries(message):
        entries += [6, field, amount]
    if uploader:
        stored = receipt.outcome == "stored"
        amounts = {
            "files": 1,
            "duplicates": int(not stored),
            "bytes": message.size_bytes if stored else 0,
            "upload_seconds": receipt.upload_seconds,
        }
        entries += _named(4, uploader, amounts)
    keys, times = progress_keys(receipt.run_id), (now, computed_at)
    known = _field("last_at", message.report.worker)
    pipeline.eval(_NOTE, len(keys), *keys, *_arguments(receipt.batch_id, known, times, entries))


def note_found(client: redis.Redis, run_id: str, found: Iterable[FoundBatch]) -> int:
    """Count batches that the store holds already, each once; returns how many were news.

    A producer that takes up a run calls this, so that the totals are true in a Redis that was wiped.
    """
    keys, news = progress_keys(run_id), 0
    with translated(client), client.pipeline(transaction=False) as pipe:
        for batch in found:
            entries = _totals(batch.samples, batch.tokens, batch.squares, batch.bytes)
            pipe.eval(_NOTE, len(keys), *keys, *_arguments(batch.batch_id, "", (None, None), entries))
            if len(pipe) >= 500:
                news += sum(pipe.execute())
        return int(news + sum(pipe.execute()))


def read_progress(client: redis.Redis, run_id: str, states: Sequence[str] = ()) -> Progress:
    """The run's counters; zeros for a run of which nothing is known. `states` as for `parse_progress`."""
    with translated(client), client.pipeline(transaction=True) as pipe:
        ask_progress(pipe, run_id)
        return parse_progress(run_id, pipe.execute(), states)


def ask_progress(pipeline: Pipeline, run_id: str) -> int:
    """Add to `pipeline` what `parse_progress` reads; returns how many replies that will be."""
    keys = progress_keys(run_id)[1:]
    for key in keys:
        pipeline.hgetall(key)
    return len(keys)


def parse_progress(run_id: str, replies: Sequence[Mapping[Any, Any]], states: Sequence[str] = ()) -> Progress:
    """The run's counters from the replies to `ask_progress`; `states` are the names of what is kept of a token."""
    raw = [{text(name): text(value) for name, value in reply.items()} for reply in replies]
    costs = [CostSums(**_numbers(CostSums, row), device=name) for name, row in _rows(raw[3])]
    return Progress(
        **_numbers(Progress, raw[0]),
        run_id=run_id,
        workers=tuple(
            WorkerProgress(**_numbers(WorkerProgress, row), worker=name) for name, row in _rows(raw[1])
        ),
        uploaders=tuple(
            UploaderProgress(**_numbers(UploaderProgress, row), uploader=name) for name, row in _rows(raw[2])
        ),
        costs=tuple(sums for sums in costs if not sums.device.startswith(_FIRST)),
        first_costs=tuple(
            msgspec.structs.replace(sums, device=sums.device.removeprefix(_FIRST))
            for sums in costs
            if sums.device.startswith(_FIRST)
        ),
        checks=parse_checks(raw[4], states),
    )


def progress_keys(run_id: str) -> tuple[str, str, str, str, str, str]:
    """Bitmap of stored batches, totals, per worker, per uploader, costs per kind of device, checks."""
    root = f"hiddenfeed:progress:{run_id}"
    return f"{root}:batches", root, f"{root}:workers", f"{root}:uploaders", f"{root}:costs", f"{root}:checks"


def _arguments(batch_id: int, known: str, times: Sequence[float | None], entries: Sequence[Any]) -> list[str]:
    fields = _MOST_KINDS * len(cost_terms(0, 0, 0.0))
    told = ["" if time is None else str(time) for time in times]
    return [str(batch_id), str(RUN_TTL_SECONDS), str(fields), known, *told, *map(str, entries)]


def _totals(samples: int, tokens: int, squares: int, size_bytes: int) -> list[Any]:
    entries: list[Any] = [2, "batches", 1, 2, "samples", samples, 2, "tokens", tokens, 2, "bytes", size_bytes]
    return [*entries, 2, "squares", squares]


def _of_worker(message: UploadFile) -> list[Any]:
    """What its GPU worker is credited with."""
    batch, report = message.batch, message.report
    tokens, squares = _computed(message)
    most = max(_LONGEST_PAUSE_SECONDS, _LONGEST_PAUSE_BATCHES * report.total_seconds)
    since, computed_since = (_field(metric, report.worker) for metric in ("last_at", "last_computed_at"))
    # Before these two are set anew.
    entries = [3, _field("active_seconds", report.worker), f"~{most},{computed_since}"]
    device_seconds = report.forward_seconds + report.stall_seconds
    work = f"{tokens} {squares} {device_seconds}"
    entries += [3, _field("recent", report.worker), f"^{most},{since},{RECENT_WEIGHT},{work}"]
    amounts = {
        "batches": 1,
        "samples": max(0, batch.samples - (report.set_aside or 0)),
        "tokens": tokens,
        "squares": squares,
        "padded_tokens": report.padded_tokens,
        "halvings": report.halvings or 0,
        "quarantined": int(message.key.endswith(".json")),
        "bytes": message.size_bytes,
        "read_seconds": report.read_seconds,
        "forward_seconds": report.forward_seconds,
        "stall_seconds": report.stall_seconds,
        "write_seconds": report.write_seconds,
        "total_seconds": report.total_seconds,
    }
    entries += _named(3, report.worker, amounts)
    entries += [3, _field("first_computed_at", report.worker), "@<", 3, computed_since, "@>"]
    entries += [3, _field("device", report.worker), f"={report.device}"]
    return [*entries, 3, _field("kind", report.worker), f"={_kind(report)}"]


def _of_batch(message: UploadFile) -> list[Any]:
    """Samples set aside, and what the batch cost on its kind of device."""
    report = message.report
    entries: list[Any] = []
    if report.set_aside:
        entries += [2, "set_aside", report.set_aside]
        entries += [2, "set_aside_reason", f"={(report.set_aside_reason or '')[:_LONGEST_REASON]}"]
    device_seconds = report.forward_seconds + report.stall_seconds
    if device_seconds > 0:
        terms = cost_terms(*_computed(message), device_seconds)
        for metric, amount in terms.items():
            entries += [5, _field(metric, device_class(report.device, _kind(report))), amount]
    return entries


def _computed(message: UploadFile) -> tuple[int, int]:
    """Tokens and sum of squared lengths that the report's seconds were spent on: without samples that were set aside."""
    batch, report = message.batch, message.report
    if report.computed_tokens is UNSET:
        return batch.tokens_total, batch.squares or 0
    return report.computed_tokens, report.computed_squares or 0


def _kind(report: BatchReport) -> str:
    return (report.kind or "")[:_LONGEST_KIND]


def _named(key: int, name: str, amounts: Mapping[str, float]) -> list[Any]:
    entries: list[Any] = [key, _field("first_at", name), "@?", key, _field("last_at", name), "@="]
    for metric, amount in amounts.items():
        entries += [key, _field(metric, name), amount]
    return entries


def _field(metric: str, name: str) -> str:
    """`metric name`: a metric has no space, a name may hold anything."""
    return f"{metric} {name}"


def _rows(raw: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """(name, {metric: value}) of a hash of named metrics, in the order of names."""
    rows: dict[str, dict[str, str]] = defaultdict(dict)
    for field, value in raw.items():
        metric, _, name = field.partition(" ")
        rows[name][metric] = value
    return sorted(rows.items())


def _numbers(kind: type[msgspec.Struct], raw: Mapping[str, str]) -> dict[str, Any]:
    """The fields of `kind` that `raw` has, converted; what is not a number of its kind is left out."""
    converted: dict[str, Any] = {}
    for name, convert in _converters(kind).items():
        if name in raw:
            try:
                converted[name] = convert(raw[name])
            except (ValueError, OverflowError):
                continue
    return converted


def _finite(value: str) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{value} is no amount")
    return number


@cache
def _converters(kind: type[msgspec.Struct]) -> dict[str, Callable[[str], Any]]:
    """Of the fields that hold a text or a number; looked up once, because a fleet has thousands of rows."""
    by_type: dict[Any, Callable[[str], Any]] = {
        int: lambda value: int(float(value)),
        float: _finite,
        str: str,
    }
    return {
        field.name: by_type[field.type] for field in msgspec.structs.fields(kind) if field.type in by_type
    }

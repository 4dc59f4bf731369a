"""`run`, `submit` and `wait`: from data to a run in the store, and on to its end."""

from __future__ import annotations

import argparse
import signal
import threading

from common.settings.catalogue import DataSettings, PlanSettings, SubmitSettings
from common.settings.combinations import check_lengths, check_names
from common.settings.resolve import Resolved
from hiddenfeed.errors import ConfigError
from hiddenfeed.inventory import load_document
from hiddenfeed.options import StoreOptions
from hiddenfeed.run import RunDocument
from producer.attend import attend, waited_out
from producer.bootstrap import Surroundings, open_surroundings
from producer.identity import identify, refuse_differences, run_id_of
from producer.prepare import prepare
from producer.publish import find_run, publish
from producer.recipe import make_recipe
from producer.report import tally_lines
from producer.workplace import workplace


def run(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Prepare, submit and wait for the end; with --detach return once a window is queued."""
    return _make(settings, detach=settings.group(SubmitSettings).detach)


def submit(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Prepare and submit."""
    return _make(settings, detach=True)


def wait(settings: Resolved, arguments: argparse.Namespace) -> int:
    """Take up a run from the store alone: queue what is missing and wait for the end."""
    end_like_interrupt()
    around = open_surroundings(settings, create=False)
    return attend(settings, around, load_document(around.store, arguments.target), detach=False)


def _make(settings: Resolved, *, detach: bool) -> int:
    end_like_interrupt()
    check_names(settings.group(DataSettings))
    check_lengths(settings.group(DataSettings))
    around = open_surroundings(settings, create=True)
    return attend(settings, around, _find_or_prepare(settings, around), detach=detach)


def _find_or_prepare(settings: Resolved, around: Surroundings) -> RunDocument:
    """The run that the settings describe: the one in the store, else prepared and stored now."""
    data, console, store = settings.group(DataSettings), around.console, around.store
    recipe = make_recipe(data, settings.group(PlanSettings), console.say, settings.group(StoreOptions))
    console.progress(lambda: "hashing data and weights")
    identity = identify(recipe)
    run_id = data.run_id or run_id_of(recipe, identity)
    document = find_run(store, run_id)
    if document is not None:
        refuse_differences(document, identity)
        console.say("the run is prepared already", run=run_id)
        return document
    if data.run_id is not None:
        raise ConfigError(
            f"there is no run {run_id} in {store.url} to resume; leave out --run-id to start a new one"
        )
    with workplace() as folder:
        prepared = prepare(recipe, folder, console)
        for line in tally_lines(prepared.tally):
            console.say(line)
        document = waited_out(console, lambda: publish(store, run_id, recipe, identity, prepared))
    console.say("the run is in the store", run=run_id, batches=document.plan.batches)
    return document


def end_like_interrupt() -> None:
    """SIGTERM ends a command the way Ctrl-C does: temporary files are removed, and what to do next is said."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)

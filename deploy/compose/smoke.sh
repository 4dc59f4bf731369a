#!/usr/bin/env bash
# Build, bring up, scale the uploaders, wait for the demo's run to complete, prove it from the store,
# submit again (nothing left to do), take down with the volumes. Needs a Docker engine.
set -euo pipefail
cd "$(dirname "$0")/../.."
COMPOSE=${COMPOSE:-docker compose}
export COMPOSE_PROJECT_NAME=hiddenfeed-smoke

down() { $COMPOSE down --volumes --timeout 20; }
trap down EXIT

$COMPOSE build
$COMPOSE up --detach --scale uploader=2
$COMPOSE up --detach --no-recreate --scale uploader=4
test "$($COMPOSE ps --quiet uploader | wc -l)" -eq 4

# The producer ends when the run is complete, and not before.
$COMPOSE logs --follow producer &
code=$(docker wait "$($COMPOSE ps --all --quiet producer)")
test "$code" -eq 0

$COMPOSE exec -T monitor python -m monitor --once
# Run again: everything is in the store, so this says that nothing is left to do.
$COMPOSE run --rm producer python -m producer run | tee /dev/stderr | grep -qi "nothing is left to do"
$COMPOSE exec -T monitor sh -c 'python -m hiddenfeed show "$HIDDENFEED_STORE"'
echo "compose-smoke: passed"

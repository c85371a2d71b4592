#!/bin/sh
# Installs what the benches compare ignis with: Debian or Ubuntu packages (as root, where apt-get is) and Python
# packages into the virtual environment (.venv, or the one whose python is the first argument).
# What cannot be installed is said at the end, and the exit status is 0 even then: the benches report it as missing and
# measure the others.
set -u
here=$(cd "$(dirname "$0")" && pwd)
python=${1:-$here/../.venv/bin/python}
failed=""

needed=""
command -v redis-server >/dev/null 2>&1 || needed="$needed redis-server"
command -v nats-server >/dev/null 2>&1 || needed="$needed nats-server"
command -v rabbitmq-server >/dev/null 2>&1 || needed="$needed rabbitmq-server"
command -v beanstalkd >/dev/null 2>&1 || needed="$needed beanstalkd"
if ! command -v initdb >/dev/null 2>&1 && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
    needed="$needed postgresql"
fi
if [ -n "$needed" ]; then
    if [ "$(id -u)" != 0 ]; then
        failed="$failed
  not root: sudo apt-get install --no-install-recommends$needed"
    elif ! command -v apt-get >/dev/null 2>&1; then
        failed="$failed
  no apt-get: install by hand:$needed"
    else
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086
        { apt-get update -q && apt-get install -q -y --no-install-recommends $needed; } || failed="$failed
  apt-get install --no-install-recommends$needed"
    fi
fi

if [ ! -x "$python" ]; then
    failed="$failed
  no virtual environment at $python: make build, or name a python as the first argument"
elif ! "$python" -m pip install -q -r "$here/requirements.txt"; then
    # One package that does not build (faster-fifo has wheels for few platforms) must not keep the others out.
    grep -v '^#' "$here/requirements.txt" | while read -r package; do
        [ -z "$package" ] || "$python" -m pip install -q "$package" || echo "bench: could not install $package" >&2
    done
fi

if [ -n "$failed" ]; then
    echo "bench: NOT everything could be installed; by hand:$failed" >&2
fi
exit 0

#!/bin/bash
# Exits 0 if the service in this container can do its work; else says why it cannot, and exits 1. Run every few seconds in every container:
# bash alone, as an interpreter of Python takes ten times as long to start. TLS, which bash does not speak, is left to one.
set -u
if [ -n "${TIDEMARK_TLS_CERTIFICATE:-}" ]; then
  exec python3 -IS "${BASH_SOURCE%/*}/healthy.py"
fi
: "${TIDEMARK_HEALTH_PORT:?is not set}"
exec 3<> "/dev/tcp/127.0.0.1/$TIDEMARK_HEALTH_PORT" || exit 1
printf 'GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
IFS= read -r -d '' -t 4 -n 4096 -u 3 answer  # to the end of the answer
body=${answer#*$'\r\n\r\n'}
printf '%s\n' "${body%$'\n'}"
[[ $answer == HTTP/1.[01]\ 200\ * ]]

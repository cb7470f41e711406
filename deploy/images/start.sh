#!/bin/sh
# Starts the image's service, or, with arguments, that command: `tidemark processors`.
# A worker's place is its service and the container's host name, which a restart keeps and which no replica shares.
set -eu
: "${TIDEMARK_SERVICE:?is not set: the image was built without the build argument SERVICE}"
export TIDEMARK_PLACE="${TIDEMARK_PLACE:-$TIDEMARK_SERVICE-$(hostname)}"
if [ "$#" -gt 0 ]; then
  exec "$@"
fi
exec python3 -m "services.$TIDEMARK_SERVICE"

#!/bin/sh
# Starts the image's service, or, with arguments, that command: `tidemark processors`.
# A worker's place is its service and the container's host name, which a restart keeps and which no replica shares.
set -eu
: "${TIDEMARK_SERVICE:?is not set: the image was built without the build argument SERVICE}"
export TIDEMARK_PLACE="${TIDEMARK_PLACE:-$TIDEMARK_SERVICE-$(hostname)}"
if [ "$#" -gt 0 ]; then
  exec "$@"
fi
# A worker that is too busy to speak is not dead, and one that has ended cannot say so: who starts it tells (services/local/watched.py).
case "$TIDEMARK_SERVICE" in
  source|operator|spark|sink) exec python3 -m tidemark.services.local.watched python3 -m "tidemark.services.$TIDEMARK_SERVICE" ;;
  *) exec python3 -m "tidemark.services.$TIDEMARK_SERVICE" ;;
esac

#!/bin/bash
# Runs the broker on the volume at /var/lib/kafka; gives a new volume its identity first.
#
# KAFKA_ADVERTISED      listeners as clients are told them: INTERNAL is port 9092, EXTERNAL port 9094
# KAFKA_HEAP_MIB        the JVM's heap
# KAFKA_MESSAGE_BYTES   of one record batch, at most
set -euo pipefail
data=/var/lib/kafka
properties=/opt/kafka/container.properties
common=(-Djava.awt.headless=true -Dlog4j2.configurationFile=/opt/kafka/console.properties -cp '/opt/kafka/jars/*')

# The mark is written last: a format that was cut off left no record either, and is done again.
if [ ! -e "$data/formatted" ]; then
  rm -rf "$data/log"
  id=$(java -XX:TieredStopAtLevel=1 "${common[@]}" kafka.tools.StorageTool random-uuid | tail -n 1)
  java -XX:TieredStopAtLevel=1 "${common[@]}" kafka.tools.StorageTool format --cluster-id="$id" --config "$properties"
  printf '%s\n' "$id" > "$data/formatted.part"
  sync "$data/formatted.part"
  mv "$data/formatted.part" "$data/formatted"
fi

exec java -Xms128m "-Xmx${KAFKA_HEAP_MIB:-512}m" -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:+ExitOnOutOfMemoryError \
  "${common[@]}" kafka.Kafka "$properties" \
  --override "advertised.listeners=${KAFKA_ADVERTISED:-INTERNAL://localhost:9092,EXTERNAL://localhost:9094}" \
  --override "message.max.bytes=${KAFKA_MESSAGE_BYTES:-8388608}" \
  --override "replica.fetch.max.bytes=${KAFKA_MESSAGE_BYTES:-8388608}"

#!/bin/bash
# Exits 0 if the broker answers its own protocol: an ApiVersions request (key 18, version 0), and the answer's first bytes with the
# request's number in them. No JVM is started for it.
set -euo pipefail
exec 3<> /dev/tcp/127.0.0.1/9092
printf '\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff' >&3
answer=$(timeout 4 head -c 10 <&3 | od -An -tx1 | tr -d ' \n')
# Length, number 7, no error.
[ "${answer:8}" = 000000070000 ]

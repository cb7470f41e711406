#!/bin/bash
# render.sh: writes deploy/kubernetes/tidemark.yaml from the chart; needs helm 3.
set -euo pipefail
cd "$(dirname "$0")"
digest=$(cat Chart.yaml values.yaml example.yaml templates/*.yaml | sha256sum | cut -d' ' -f1)
{
  echo "# Rendered from deploy/helm by its render.sh: change the chart. SHA-256 of the chart's files:"
  echo "# $digest"
  "${HELM:-helm}" template tidemark . --namespace tidemark --kube-version 1.30 --values example.yaml
} > ../kubernetes/tidemark.yaml.new
mv ../kubernetes/tidemark.yaml.new ../kubernetes/tidemark.yaml

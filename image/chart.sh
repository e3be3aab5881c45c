#!/usr/bin/env bash
# Packages the chart with the image of a release as its default: image/chart.sh IMAGE VERSION DIRECTORY
# The committed chart is not changed.
set -euo pipefail
image=${1:?usage: image/chart.sh IMAGE VERSION DIRECTORY} version=${2:?the version is missing} out=${3:?the directory is missing}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# -L: the chart's dashboards are symbolic links to files outside the chart.
cp -rL "$(dirname "${BASH_SOURCE[0]}")/../charts/tokometer" "$work/"
grep -qx "version: $version" "$work/tokometer/Chart.yaml" || { echo "Chart.yaml has another version than $version" >&2; exit 1; }
sed -i "s|^  repository: tokometer\$|  repository: $image|" "$work/tokometer/values.yaml"
helm lint --strict "$work/tokometer"
helm package "$work/tokometer" --destination "$out"
helm template tokometer "$out/tokometer-$version.tgz" --kube-version 1.36.0 | grep -q "$image:$version" ||
    { echo "the packaged chart does not use $image:$version" >&2; exit 1; }

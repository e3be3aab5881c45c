"""The chart, the image and the resulting pods, on a real Kubernetes node: `make test-cluster`."""

import os

# In this order: creating pods, measuring without a proxy, traffic, shutdown, faults, what must not change, following the documentation,
# releases.
PARTS = ("attach", "platforms", "ephemeral", "traffic", "endings", "faults", "intent", "readers", "runbooks", "chaos", "releases")
# The first test starts the node.
MAX_SECONDS = 900 + int(float(os.environ.get("CHAOS_SECONDS", "0")))
# Kubernetes works asynchronously on a shared machine: a failure is reported, and the test is tried once more.
ATTEMPTS = 2

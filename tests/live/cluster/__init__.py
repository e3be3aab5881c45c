"""The chart, the image and the resulting pods, on a real Kubernetes node: `make test-cluster`."""

import os

# In this order: creating pods, traffic, shutdown, faults, releases.
PARTS = ("attach", "platforms", "traffic", "endings", "faults", "chaos", "releases")
# The first test starts the node.
MOST_SECONDS = 900 + int(float(os.environ.get("CHAOS_SECONDS", "0")))

"""The chart, the image and the resulting pods, on a real Kubernetes node: `make test-cluster`."""

# In this order: creating pods, traffic, shutdown, faults, releases.
PARTS = ("attach", "traffic", "endings", "faults", "releases")
# The first test starts the node.
MOST_SECONDS = 900

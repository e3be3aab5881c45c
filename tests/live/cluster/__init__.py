"""The chart, the image and what they make of pods, on a real node of Kubernetes: `make test-cluster`."""

# In the order in which they are run: what is made, what passes through it, how it ends, what breaks, and what is left.
PARTS = ("attach", "traffic", "endings", "faults", "releases")
# The first test starts the node.
MOST_SECONDS = 900

"""Connects two network namespaces by a link that loses, repeats, delays and swaps packets: what `tc netem` does, also on kernels
without it, and with a fixed seed.

    python lossy_link.py NAMESPACE NAMESPACE MTU SEED

Each namespace gets the interface `link0`; packets pass through this program until it is killed.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000

LOSS_SHARE, REPEATED_SHARE, SWAPPED_SHARE = 0.02, 0.02, 0.05
# Delay of every packet in seconds, and the additional delay of a swapped packet, which others then overtake.
DELAY, SWAPPED_DELAY = 0.001, 0.004


def interface(namespace, mtu):
    """A TUN device in the namespace; it stays there when this process enters the next namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as namespace_file:
        if libc.setns(namespace_file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"link0", IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", "link0", "mtu", mtu, "up"], check=True)
    return device


def forward(devices, rng):
    queue, number = [], 0
    while True:
        timeout = max(0.0, queue[0][0] - time.monotonic()) if queue else None
        for device in select.select(devices, [], [], timeout)[0]:
            packet = os.read(device, 65536)
            [target] = [candidate for candidate in devices if candidate != device]
            copies = 0 if rng.random() < LOSS_SHARE else 2 if rng.random() < REPEATED_SHARE else 1
            due = time.monotonic() + DELAY + (SWAPPED_DELAY if rng.random() < SWAPPED_SHARE else 0.0)
            for _ in range(copies):
                number += 1
                heapq.heappush(queue, (due, number, target, packet))
        while queue and queue[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(queue)
            os.write(target, packet)


if __name__ == "__main__":
    first, second, mtu, seed = sys.argv[1:]
    forward([interface(first, mtu), interface(second, mtu)], random.Random(int(seed)))

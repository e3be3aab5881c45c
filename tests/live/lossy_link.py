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

LOST, REPEATED, SWAPPED = 0.02, 0.02, 0.05
# Seconds: of every packet, and more for a swapped one, which others overtake.
DELAY, LATE = 0.001, 0.004


def interface(namespace, mtu):
    """A TUN device in the namespace, which belongs to it although this process leaves it again."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as place:
        if libc.setns(place.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"link0", IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", "link0", "mtu", mtu, "up"], check=True)
    return device


def forward(devices, chance):
    waiting, number = [], 0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select(devices, [], [], timeout)[0]:
            packet = os.read(device, 65536)
            [to] = [other for other in devices if other != device]
            copies = 0 if chance.random() < LOST else 2 if chance.random() < REPEATED else 1
            due = time.monotonic() + DELAY + (LATE if chance.random() < SWAPPED else 0.0)
            for _ in range(copies):
                number += 1
                heapq.heappush(waiting, (due, number, to, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(waiting)
            os.write(to, packet)


if __name__ == "__main__":
    one, other, mtu, seed = sys.argv[1:]
    forward([interface(one, mtu), interface(other, mtu)], random.Random(int(seed)))

"""Simulated users, concurrent and in phases: how many at a time, request sizes, faults and aborts."""

import asyncio
import random
import time
from dataclasses import dataclass
from dataclasses import field

from stream import Stream

# Timeout of a request.
TIMEOUT_SECONDS = 20.0
# Tenants, with their relative request rates.
TENANTS, TENANT_WEIGHTS = ("search", "support", "reports"), (6, 3, 1)


@dataclass
class Phase:
    """A phase until the share `until` of the run: concurrent users, share of requests per fault, share of requests that users abort."""

    until: float
    users: int
    faults: dict = field(default_factory=dict)
    abort_share: float = 0.0


@dataclass
class UserGroup:
    """Users of one server: each request asks for a number of tokens between two bounds; a user pauses between two requests."""

    port: int
    model: str
    phases: list
    tokens: tuple = (20, 160)
    pause: float = 0.3

    def phase_at(self, share):
        return next(phase for phase in self.phases if share <= phase.until)


async def _send_request(group, phase, rng):
    """One request until its end, or until the user aborts it."""
    fault = next((name for name, share in phase.faults.items() if rng.random() < share), None)
    words = int(2 ** rng.uniform(2, 9))
    streamed = rng.random() > 0.1
    try:
        stream = await Stream.open(
            group.port,
            model=group.model,
            prompt=f"{rng.random()} " + "fox " * words,
            tokens=rng.randint(*group.tokens),
            fault=fault,
            stream=streamed,
            continuous_usage=True,
            headers={
                "traceparent": f"00-{rng.getrandbits(128) | 1:032x}-{rng.getrandbits(64) | 1:016x}-01",
                "x-tenant": rng.choices(TENANTS, TENANT_WEIGHTS)[0],
            },
        )
    except OSError:
        return
    try:
        if rng.random() < phase.abort_share:
            await stream.read_events(rng.randint(1, 6))
        else:
            await stream.read_rest()
    finally:
        # After a complete response, this only closes the connection; otherwise, the user disconnects.
        stream.abort()


async def _run_user(group, number, started, seconds):
    """Sends requests whenever the phase has more than `number` users."""
    rng = random.Random(f"{group.model} {group.port} {number}")
    while (share := (time.monotonic() - started) / seconds) < 1:
        phase = group.phase_at(share)
        if number < phase.users:
            try:
                await asyncio.wait_for(_send_request(group, phase, rng), TIMEOUT_SECONDS)
            except (TimeoutError, ConnectionError):
                pass  # The server hangs or is down: both must be visible on the dashboards.
        await asyncio.sleep(group.pause * rng.uniform(0.5, 1.5))


async def _run_groups(groups, seconds, events):
    started = time.monotonic()
    tasks = [
        asyncio.create_task(_run_user(group, number, started, seconds))
        for group in groups
        for number in range(max(phase.users for phase in group.phases))
    ]
    for share, event in sorted(events, key=lambda item: item[0]):
        await asyncio.sleep(max(0.0, started + share * seconds - time.monotonic()))
        event()
    await asyncio.sleep(max(0.0, started + seconds - time.monotonic()))
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


def run_users(groups, seconds, events=()):
    """Runs all users for this many seconds; calls each event at its share of the time."""
    asyncio.run(_run_groups(groups, seconds, events))

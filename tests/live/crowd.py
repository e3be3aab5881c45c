"""Simulated users, concurrent and in phases: how many at a time, request sizes, faults and aborts."""

import asyncio
import random
import time
from dataclasses import dataclass
from dataclasses import field

from stream import Stream

# Timeout of a request in seconds.
PATIENCE = 20.0
# Users, with their relative request rates.
TENANTS, TENANT_WEIGHTS = ("search", "support", "reports"), (6, 3, 1)


@dataclass
class Phase:
    """A phase until this share of the run: concurrent users, share of requests with a fault, share of requests that users abort."""

    until: float
    askers: int
    faults: dict = field(default_factory=dict)
    leave: float = 0.0


@dataclass
class Crowd:
    """Users of one server: they request a number of tokens between two bounds, with a pause between two requests of a user."""

    port: int
    model: str
    phases: list
    tokens: tuple = (20, 160)
    pause: float = 0.3

    def now(self, share):
        return next(phase for phase in self.phases if share <= phase.until)


async def _ask(crowd, phase, chance):
    """One request until its end, or until the user aborts it."""
    fault = next((name for name, share in phase.faults.items() if chance.random() < share), None)
    words = int(2 ** chance.uniform(2, 9))
    streamed = chance.random() > 0.1
    try:
        stream = await Stream.open(
            crowd.port,
            model=crowd.model,
            prompt=f"{chance.random()} " + "fox " * words,
            tokens=chance.randint(*crowd.tokens),
            fault=fault,
            stream=streamed,
            each_usage=True,
            headers={
                "traceparent": f"00-{chance.getrandbits(128) | 1:032x}-{chance.getrandbits(64) | 1:016x}-01",
                "x-tenant": chance.choices(TENANTS, TENANT_WEIGHTS)[0],
            },
        )
    except OSError:
        return
    try:
        if chance.random() < phase.leave:
            await stream.events(chance.randint(1, 6))
        else:
            await stream.rest()
    finally:
        # Reading to the end closes the response; anything else is a user who disconnects.
        stream.leave()


async def _person(crowd, number, began, seconds):
    """Sends requests as long as there are this many users."""
    chance = random.Random(f"{crowd.model} {crowd.port} {number}")
    while (share := (time.monotonic() - began) / seconds) < 1:
        phase = crowd.now(share)
        if number < phase.askers:
            try:
                await asyncio.wait_for(_ask(crowd, phase, chance), PATIENCE)
            except (TimeoutError, ConnectionError):
                pass  # The server hangs or is down: both must be visible on the dashboards.
        await asyncio.sleep(crowd.pause * chance.uniform(0.5, 1.5))


async def _all(crowds, seconds, events):
    began = time.monotonic()
    people = [
        asyncio.create_task(_person(crowd, number, began, seconds))
        for crowd in crowds
        for number in range(max(phase.askers for phase in crowd.phases))
    ]
    for share, event in sorted(events, key=lambda one: one[0]):
        await asyncio.sleep(max(0.0, began + share * seconds - time.monotonic()))
        event()
    await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
    for person in people:
        person.cancel()
    for ended in await asyncio.gather(*people, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


def ask(crowds, seconds, events=()):
    """Runs all users for this many seconds; each event is called at its share of the time."""
    asyncio.run(_all(crowds, seconds, events))

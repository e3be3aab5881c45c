"""People who ask, all at once and in phases: how many at a time, how much, and what befalls them."""

import asyncio
import random
import time
from dataclasses import dataclass
from dataclasses import field

from stream import Stream

# Seconds after which a request is given up whatever happens.
PATIENCE = 20.0
# Who asks, and how often compared to the others.
TENANTS, TENANT_WEIGHTS = ("search", "support", "reports"), (6, 3, 1)


@dataclass
class Phase:
    """Until this share of the run: so many at a time; how often a request has a fault, and how often its asker leaves."""

    until: float
    askers: int
    faults: dict = field(default_factory=dict)
    leave: float = 0.0


@dataclass
class Crowd:
    """Those who ask one server: for tokens between two bounds, with a pause between two requests of the same person."""

    port: int
    model: str
    phases: list
    tokens: tuple = (20, 160)
    pause: float = 0.3

    def now(self, share):
        return next(phase for phase in self.phases if share <= phase.until)


async def _ask(crowd, phase, chance):
    """One request to its end, or to where its asker leaves."""
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
        # What was read to its end is closed by it; anything else is somebody who goes away.
        stream.leave()


async def _person(crowd, number, began, seconds):
    """Asks again and again while there are so many askers."""
    chance = random.Random(f"{crowd.model} {crowd.port} {number}")
    while (share := (time.monotonic() - began) / seconds) < 1:
        phase = crowd.now(share)
        if number < phase.askers:
            try:
                await asyncio.wait_for(_ask(crowd, phase, chance), PATIENCE)
            except (TimeoutError, ConnectionError):
                pass  # The server hangs, or is gone: both are to be seen on the boards.
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
    """Lets all of them ask for so long; each event is called at its share of the time."""
    asyncio.run(_all(crowds, seconds, events))

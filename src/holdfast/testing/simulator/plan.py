"""The plan of a seed: the batch, the workers and the faults, drawn before anything happens.

Every world has only some of the faults, in some strength: an interaction of two faults is found sooner without the
others.
"""

from collections.abc import Callable
from random import Random

import msgspec
from msgspec.structs import replace

from holdfast.core.model import DeadLimit
from holdfast.core.retry import Policy, Rule

LEASE = 30.0


class WorldPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One world, before it begins."""

    seed: int
    policies: list[Policy]
    groups: list[list[tuple[object, bytes]]]
    """The items of the source, in the groups in which they are admitted: (key, payload), with duplicates and bad
    keys."""
    ingesters: int
    workers: int
    limit: int
    page: int
    slice: int
    chunks: int
    """How many chunks a worker may claim in one write."""
    same_host: bool
    """True if a dead process is known to be dead."""
    faults_until: float
    """Seconds from the start after which faults stop."""
    crash: float
    pause: float
    unheard: float
    """How often a commit lands and its reply is lost."""
    unsent: float
    """How often a commit is lost in transit, or comes late."""
    lingers: float
    """How often a worker that has finished a chunk keeps it for a while."""
    doubled: float
    """How often a commit arrives twice."""
    slow_reply: float
    missed_beat: float
    skew: float
    acts: float
    """How often an operator acts: seconds between two acts, 0 for never."""
    transient: float
    permanent: float
    skip: float
    defer: float
    lost: float
    """How often a stage finds that its input is gone."""
    slow: float
    """How often a handler takes longer than a lease."""
    killer: tuple[str, int] | None
    """The key and stage that always kill the process."""
    spend: int
    """The most that an attempt costs, in units; 0 for nothing."""
    cap: int | None
    checks: float
    """How often outputs break and are checked: seconds between two checks, 0 for never."""
    adopts: bool
    """True if a worker finds an output that another made but could not record."""
    halts: float
    """How often the batch is paused, 0 for never."""
    cancel: float
    """When the batch is cancelled, 0 for never."""
    stuck: float
    """How often items are taken for stuck and requeued, 0 for never."""
    seals: float
    """How often an operator tries to seal the batch, 0 for never."""
    hears: float
    """How often a receiver asks for events."""
    deaf: float
    """How often an acknowledgement of the receiver is lost."""
    tolerance: DeadLimit | None
    watched: bool
    """True if items are counted one by one after every change."""
    every: int = 0
    """If items are partitions: the number of rows between two checkpoints; else 0."""
    lengths: tuple[int, ...] = ()
    """The number of rows of the partitions, in turn."""
    races: float = 0.0
    """On a bucket: how often other actors run between two requests."""
    drift: float = 0.0
    """On a bucket: how much faster or slower the clock of a process may run, as a share."""
    rule: Rule | None = None
    """When a stage pauses; None for never."""
    outages: tuple[tuple[int, float, float], ...] = ()
    """When the service of a stage is unavailable: the stage, and the seconds from the start at which that begins and
    ends."""
    asks: float = 0.0
    """How often the service sets a wait during an outage."""
    processes: bool = False
    """True if handlers run in separate processes, which die."""
    fatal: tuple[str, int] | None = None
    """The key and stage that always kill such a process."""
    litter: float = 0.0
    """How often an item leaves something behind that kills its process under the next one."""
    crowding: float = 0.0
    """How often a process dies because of parallel ones."""
    quick: float = 0.0
    """The duration of a handler that takes almost no time; 0 if handlers take seconds."""
    stalls: float = 0.0
    """How often a quick handler is slow nevertheless."""
    time: float = 0.0
    """The approximate deadline of each run in seconds while faults happen; 0 for none."""
    paces: tuple[float, ...] = ()
    """The duration of the handler of each stage, if runs have a deadline."""
    messages: int = 0
    """How many processes get messages."""
    message_gap: float = 0.0
    """The approximate number of seconds between two messages."""
    openers: int = 0
    """On a bucket: how many actors open another batch of the same name at about the same time."""


def draw(seed: int) -> WorldPlan:
    """Return the plan of a seed."""
    rng = Random(seed)  # noqa: S311 - a schedule, not a secret
    plan = _drawn(seed, rng)
    return _with_more(_of_ranges(plan, rng) if rng.random() < 0.2 else plan)


def draw_on_a_bucket(seed: int) -> WorldPlan:
    """Return the plan of a seed for a world on a bucket: smaller, because every verb is many requests; without features
    that a bucket lacks; and with faults between any two requests."""
    rng = Random(seed)  # noqa: S311 - a schedule, not a secret
    some, plan = _some(rng), _drawn(seed, rng)
    plan = replace(
        plan,
        policies=plan.policies[:2],
        groups=[group[:3] for group in plan.groups[:2]],
        workers=2 + some(0.3),
        killer=None if plan.killer is None else (plan.killer[0], 0),
        cap=None,
        tolerance=None,
        checks=0.0,
        adopts=False,
        watched=False,
        lingers=plan.lingers or some(0.2) * rng.random(),
        seals=plan.seals or some(0.15) * (5 + rng.random() * 30),
        skew=some(0.3) * 3600.0,
        races=some(0.85) * rng.random() * 0.25,
        drift=some(0.5) * rng.random() * 0.1,
        openers=some(0.15) * 3,
        unheard=plan.unheard / 2,
        unsent=plan.unsent / 2,
        doubled=plan.doubled / 2,
        slow_reply=plan.slow_reply / 3,
        faults_until=LEASE + rng.random() * 2 * LEASE,
    )
    return _with_more(_of_ranges(plan, rng, longest=6) if some(0.5) else plan)


def _of_ranges(plan: WorldPlan, rng: Random, longest: int = 12) -> WorldPlan:
    """Return the same plan, with partitions as items."""
    return replace(
        plan,
        policies=plan.policies[:1],
        killer=None if plan.killer is None else (plan.killer[0], 0),
        checks=0.0,
        adopts=False,
        every=1 + int(rng.random() * longest / 3),
        lengths=tuple(int(rng.random() * longest) for _ in range(5)),
    )


def _drawn(seed: int, rng: Random) -> WorldPlan:
    some = _some(rng)
    stages = 1 + int(rng.random() * 3)
    groups = _groups(rng)
    spend = int(rng.random() * 2) * 5
    policies = [_policy(rng) for _ in range(stages)]
    return WorldPlan(
        seed=seed,
        policies=policies,
        groups=groups,
        ingesters=1 + some(0.2),
        workers=2 + int(rng.random() * 3),
        limit=1 + int(rng.random() * 6),
        page=1 + int(rng.random() * 4),
        slice=1 + int(rng.random() * 3),
        chunks=1 + 4 * some(0.4),
        same_host=bool(some(0.5)),
        faults_until=LEASE + rng.random() * 4 * LEASE,
        crash=some(0.5) * rng.random() * 0.045,
        pause=some(0.5) * rng.random() * 0.04,
        unheard=some(0.4) * rng.random() * 0.3,
        unsent=some(0.4) * rng.random() * 0.3,
        lingers=some(0.3) * rng.random() * 0.5,
        doubled=some(0.3) * rng.random() * 0.3,
        slow_reply=some(0.3) * rng.random() * 0.3,
        missed_beat=some(0.3) * rng.random() * 0.6,
        skew=some(0.3) * rng.random() * 8,
        acts=some(0.4) * (5 + rng.random() * 30),
        transient=some(0.6) * rng.random() * 0.5,
        permanent=some(0.3) * rng.random() * 0.2,
        skip=some(0.3) * rng.random() * 0.2,
        defer=some(0.3) * rng.random() * 0.3,
        lost=some(0.2) * rng.random() * 0.2,
        slow=some(0.3) * rng.random() * 0.15,
        killer=(f"k{int(rng.random() * 6)}", int(rng.random() * stages)) if some(0.1) else None,
        spend=spend,
        cap=_cap(rng, policies, groups, spend) if spend and some(0.4) else None,
        checks=some(0.1) * (8 + rng.random() * 20),
        adopts=bool(some(0.3)),
        halts=some(0.12) * (10 + rng.random() * 40),
        cancel=some(0.06) * (5 + rng.random() * 60),
        stuck=some(0.08) * (5 + rng.random() * 25),
        seals=some(0.13) * (10 + rng.random() * 40),
        hears=30 + rng.random() * 90,
        deaf=some(0.3) * rng.random() * 0.6,
        tolerance=_tolerance(rng) if some(0.15) else None,
        watched=bool(some(0.03)),
    )


MORE = 1 << 60
"""Later draws use another seed, so that they do not change the earlier ones."""


def _with_more(plan: WorldPlan) -> WorldPlan:
    """Return the same plan, in some worlds with faults of a whole run."""
    rng = Random(plan.seed + MORE)  # noqa: S311 - a schedule, not a secret
    some = _some(rng)
    plan = _with_outages(plan, rng) if some(0.12) else plan
    plan = _with_processes(plan, rng) if some(0.1) and not plan.every else plan
    is_small = plan.races > 0 or plan.drift > 0 or plan.openers > 0  # on a bucket every item is many requests
    if some(0.3 if plan.processes else 0.05) and not plan.every and not is_small:
        plan = _with_quick_handlers(plan, rng)
    plan = _with_deadlines(plan, rng) if some(0.1) else plan
    return _with_messages(plan, rng) if some(0.1) and not plan.every else plan


def _with_outages(plan: WorldPlan, rng: Random) -> WorldPlan:
    """Return the same plan, in which the services of some stages are unavailable for a while."""
    pause = 2 + rng.random() * 25
    rule = Rule(failures=1 + int(rng.random() * 4), pause=pause, longest=pause * (1 + 3 * rng.random()),
                in_all=pause * (1 + 8 * rng.random()))  # fmt: skip
    return replace(plan, rule=rule, outages=tuple(_outage(rng, plan) for _ in range(1 + int(rng.random() * 3))),
                   asks=rng.random() * 0.3)  # fmt: skip


def _outage(rng: Random, plan: WorldPlan) -> tuple[int, float, float]:
    begin = rng.random() * 40
    return int(rng.random() * len(plan.policies)), begin, begin + 5 + rng.random() * 60


def _with_processes(plan: WorldPlan, rng: Random) -> WorldPlan:
    """Return the same plan, with handlers in processes."""
    some = _some(rng)
    return replace(
        plan,
        processes=True,
        fatal=(f"k{int(rng.random() * 6)}", int(rng.random() * len(plan.policies))) if some(0.6) else None,
        litter=some(0.5) * rng.random() * 0.4,
        crowding=some(0.5) * rng.random() * 0.5,
    )


def _with_quick_handlers(plan: WorldPlan, rng: Random) -> WorldPlan:
    """Return the same plan, with more items, which are handed over together or run on the thread of the run."""
    count = 16 + int(rng.random() * 8)
    rows: list[tuple[object, bytes]] = [(f"k{n}", b"%d" % n) for n in range(count)]
    size = 4 + int(rng.random() * count)
    return replace(
        plan,
        groups=[rows[at : at + size] for at in range(0, count, size)],
        policies=plan.policies[: 1 + _some(rng)(0.3)],
        killer=None if plan.killer is None else (plan.killer[0], 0),
        fatal=None if plan.fatal is None else (plan.fatal[0], 0),
        outages=tuple((0, begin, end) for _, begin, end in plan.outages),
        cap=None,
        workers=1 + _some(rng)(0.5),
        limit=12 + int(rng.random() * 8),
        page=4 + int(rng.random() * 10),
        quick=0.001 * (0.5 + rng.random()) if plan.processes else 2e-5 * (0.5 + rng.random()),
        stalls=_some(rng)(0.7) * rng.random() * 0.3,
    )


def _with_deadlines(plan: WorldPlan, rng: Random) -> WorldPlan:
    """Return the same plan, with deadlines for runs, and handlers of constant duration."""
    paces = tuple(0.3 + rng.random() ** 2 * 12 for _ in plan.policies)
    return replace(plan, time=3 + rng.random() * 25, paces=() if plan.quick else paces, slow=0.0)


def _with_messages(plan: WorldPlan, rng: Random) -> WorldPlan:
    """Return the same plan, with processes that get single items, without budget and tolerance."""
    killer = (f"k{int(rng.random() * 4)}", 0) if rng.random() < 0.25 else plan.killer
    return replace(plan, cap=None, tolerance=None, killer=killer, messages=1 + _some(rng)(0.5),
                   message_gap=1 + rng.random() * 8)  # fmt: skip


def most_per_item(plan: WorldPlan) -> int:
    """Return the most that one item can cost from its admission to its end, in one epoch."""
    return plan.spend * sum(policy.attempts for policy in plan.policies)


def _some(rng: Random) -> Callable[[float], int]:
    def some(chance: float) -> int:
        return int(rng.random() < chance)

    return some


def _policy(rng: Random) -> Policy:
    wait_min = 1.0 + rng.random() * 4
    return Policy(
        attempts=1 + int(rng.random() * 4),
        within=20 + rng.random() * 600,
        wait_min=wait_min,
        wait_max=wait_min + rng.random() * 60,
        money=None if rng.random() < 0.8 else 1 + int(rng.random() * 12),
    )


def _groups(rng: Random) -> list[list[tuple[object, bytes]]]:
    rows: list[tuple[object, bytes]] = []
    for n in range(3 + int(rng.random() ** 2 * 10)):
        luck = rng.random()
        if luck < 0.9 or not rows:
            rows.append((f"k{n}", b"%d" % n))
        elif luck < 0.96:
            key, payload = rows[int(rng.random() * len(rows))]
            rows.append((key, payload if luck < 0.94 else payload + b"?"))
        else:
            rows.append((None, b"%d" % n))
    size = 1 + int(rng.random() * len(rows))
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def _cap(rng: Random, policies: list[Policy], groups: list[list[tuple[object, bytes]]], spend: int) -> int:
    most = spend * sum(policy.attempts for policy in policies)
    return int(most * sum(map(len, groups)) * (0.2 + 0.8 * rng.random()))


def _tolerance(rng: Random) -> DeadLimit:
    if rng.random() < 0.6:
        return DeadLimit(count=int(rng.random() * 3))
    return DeadLimit(share=rng.random() * 0.4)

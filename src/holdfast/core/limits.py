"""Every limit, in one place, with the effect of exceeding it."""

from typing import Final

KEY_BYTES: Final = 512
"""An item with a longer key becomes a dead letter `invalid`: use a shorter field or a function."""

PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""An item with a larger payload becomes a dead letter `too_large`: put the data in a file and pass its path."""

ACC_BYTES: Final = 1024 * 1024
"""A larger accumulator fails its partition: keep totals in it, not rows."""

RESULT_BYTES: Final = 16 * 1024 * 1024
"""A larger result of `converge` is refused: write it to a file and return its name."""

OUTPUT_BYTES: Final = 64 * 1024 * 1024
"""A larger output fails its stage: write it to a file and return the path, or use a file sink."""

REPLY_BYTES: Final = 64 * 1024 * 1024
"""A larger reply of a paginated API, unpacked, fails its partition, unless `hf.Pages` sets another limit: ask for
smaller pages."""

PREVIEW_BYTES: Final = 1024
"""How much of a payload that cannot be stored is kept in its dead letter."""

MESSAGE_CHARS: Final = 2000
"""Longer error messages are cut and marked as cut."""

STAGES: Final = 64
"""A pipeline with more stages is refused."""

ITEMS: Final = 1 << 34
"""Items in one batch; the next one is refused."""

BUCKET_ITEMS: Final = 1_000_000
"""Items in one batch on a bucket, whose keys are kept in memory; the next one is refused."""

BUCKET_CHUNK_ITEMS: Final = 2_000
"""Items in one chunk on a bucket, to keep its document small; more are admitted as several chunks."""

BATCHES: Final = 1 << 22
"""Batches in one store; the next one is refused."""

BATCH_NAME_CHARS: Final = 200
"""A longer batch or pipeline name is refused."""

INGEST_GROUP: Final = 20_000
"""Items admitted in one transaction."""

INGEST_FIRST_GROUP: Final = 256
"""The first group is small, so that work starts at once."""

READ_AHEAD: Final = 5_000
"""Items of a source at hand that are compared with the stored ones before work on a resumed batch begins."""

INGEST_BYTES: Final = 32 * 1024 * 1024
"""A group of items is written when its payloads reach this size."""

CLAIM_ITEMS: Final = 20_000
"""Items in one claim."""

CLAIM_CHUNKS: Final = 200
"""Chunks in one claim, if they are so small that it takes many to keep the workers busy."""

LOAD_ITEMS: Final = 4_000
"""Items a worker reads into memory at a time."""

LOAD_BYTES: Final = 32 * 1024 * 1024
"""Bytes of input a worker reads into memory at a time."""

SLICE_ITEMS: Final = 2_000
"""Items handed to an executor at once."""

SLOW_SECONDS: Final = 0.2
"""A handler that keeps other items waiting for longer than this continues alone: they are handed to other threads."""

WATCH_SECONDS: Final = 0.05
"""How often the thread that would take over checks for such a handler."""

SUSPECT: Final = 2
"""Grants of a chunk that ended in a dead process with nothing committed, after which it is handed out in halves, each
to a process that runs nothing else."""

CHAIN_ENTRIES: Final = 10_000
"""Entries after which the chain of a partition ends, at its next grant; a successor continues it."""

CHAIN_ITEMS: Final = 100
"""A chunk of more items keeps its chain: what its successor would take over is part of one entry."""

BLAME: Final = 3
"""Starts of a single item, run alone, that ended in a dead process, after which it is buried."""

DEADLY_ROWS: Final = 3
"""Consecutive rows that killed their worker process and are buried one by one; with more, the partition is buried."""

REWINDS: Final = 3
"""Rewinds of one item, after which it is buried."""

CHECK_SECONDS: Final = 60.0
"""How long a verifier or an adopter may take, unless it or its stage sets another limit; after that it counts as
undecided."""

CLOSE_SECONDS: Final = 10.0
"""How long a resource may take to close at the end of a run; after that it is abandoned with a warning."""

HUNG_CHECKS: Final = 100
"""Verifiers and adopters that may hang at the same time; at this number, no more are called."""

UNDO_SHARE: Final = "10%"
"""A run or a repair that would undo more than this share is refused, unless it is explicitly allowed."""

UNDO_ITEMS: Final = 100
"""Fewer items than this are undone without that check."""

FINDINGS_LISTED: Final = 20
"""Findings that a report lists; of the others it gives the number."""

REQUEUES: Final = 3
"""How often an orphan may be requeued without progress before it is buried."""

MONEY_DIGITS: Final = 12
"""Money is stored in whole multiples of 10**-12 dollars; finer amounts are rounded."""

MONEY_USD: Final = 9_000_000
"""A larger amount is refused: a store could not hold it."""

REQUEST_HINT_CHARS: Final = 200
"""Characters kept of text from outside (a model name, an error code)."""

LISTED_NAMES: Final = 10
"""Names that an error lists at most."""

SEARCHED_NAMES: Final = 10_000
"""Keys among which a similar one is searched for."""

HELD_NUMBERS: Final = 500_000
"""Numbers that statistics keep in memory; with more, exact quantiles take further passes over the journal."""

DISTINCT_NAMES: Final = 200
"""Models, error codes or metrics that statistics distinguish; the rest are counted as `other`."""

ACT_ITEMS: Final = 1_000
"""Items that an operator changes in one transaction."""

ORPHAN_GRACE: Final = 7200.0
"""Seconds without progress after which an unfinished item is an orphan, unless its pipeline sets another time."""

DEAD_AGE: Final = 604_800.0
"""Seconds after which an open dead letter is listed with the orphans, unless its pipeline sets another time."""

FOUND_GROUPS: Final = 1_000
"""Groups of orphans that one check announces; the next check announces the rest."""

FOUND_EACH: Final = 10
"""Orphans of a group that get an event of their own; the others share one."""

EVENTS_PAGE: Final = 100
"""Events that are read at a time, and in a file also written at a time."""

EVENT_SECONDS: Final = 10.0
"""How long a webhook may take to answer; after that, the event is delivered again."""

EVENT_FLUSH_SECONDS: Final = 2.0
"""How long a run that has ended waits for receivers that answer; the other events are delivered next time."""

DEAD_SEEN: Final = 2_000
"""Dead letters whose codes a status counts; beyond that, it only notes that there are more."""

FINDINGS: Final = 1_000
"""Findings of a reconciliation that are kept in full; the others are counted."""

FINDINGS_SEALED: Final = 100
"""Findings that the journal lists; the others are counted."""

END_LOOKS: Final = 10
"""How often a batch is checked for its end while other processes keep changing it; after that, they check it."""

DOCUMENT_LOOKS: Final = 3
"""How often a document of a bucket that seems older than before is read; after that it counts as damaged."""

NAMES_HELD: Final = 1_000_000
"""File names held in memory, 8 bytes each, to find files that nothing refers to; with more, the folder is read
again."""

DEFERRED_SECONDS: Final = 86_400.0
"""Total seconds for which an item may be deferred at one stage, unless its policy sets another limit; after that it is
buried with the code `deferred_too_long`."""

DEFERRED_LEAST: Final = 1.0
"""Seconds that a shorter deferral counts as."""

SOURCE_PATIENCE: Final = 300.0
"""Seconds to wait for an unavailable source, unless a run sets another time; after that the run ends with exit code
75."""

SOURCE_FIRST_WAIT: Final = 0.5
"""Seconds before such a source is tried again; each further wait is twice as long."""

SOURCE_LONGEST_WAIT: Final = 15.0
"""Seconds of the longest such wait."""

SENDS: Final = 3
"""How often a commit without a reply is sent; after that, its work is left to the next process that claims it."""

BREAKER_FAILURES: Final = 20
"""Transient failures of different items in a row, with no answer in between, that make a stage pause."""

BREAKER_PAUSE: Final = 30.0
"""Seconds of the first pause; each further one is twice as long until there is an answer."""

BREAKER_LONGEST: Final = 600.0
"""Seconds of the longest pause."""

BREAKER_SECONDS: Final = 3600.0
"""Total seconds for which the breaker of a stage may be open in one run; after that the run ends, to be run again
later."""

FLIGHT_SECONDS: Final = 3600.0
"""Seconds for items in flight to reach their checkpoint when their batch ends or is cancelled; after that the run ends
without them."""

SIGNAL_SECONDS: Final = 0.2
"""Seconds that a failure is held back for a stop signal to reach the run, if a subprocess of the handler died of
SIGINT, SIGTERM or SIGHUP; after that it counts like any other."""

ALIKE_ITEMS: Final = 20
"""Items (or as many as there are workers) that must die of the same error before any has succeeded, for the run to
stop; then nothing is buried."""

WITHHELD_TIMES: Final = 2
"""Deaths that are withheld while nothing has succeeded, as a multiple of that number; with more, all are buried."""

BLAME_ENTRIES: Final = 1_024
"""Journal entries that are read to count the consecutive deaths of one chunk; with more, only those are counted."""

WITHHELD_SECONDS: Final = 10.0
"""How long deaths are withheld if the source gives no more items; after that they are buried."""

RATE_PAUSE: Final = 600.0
"""Seconds between two commits of a run beyond which it counts as idle: its machine slept, or it had nothing to do."""

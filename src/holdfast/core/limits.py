"""Every limit, in one place, with what happens at it."""

from typing import Final

KEY_BYTES: Final = 512
"""A longer key makes its item a dead letter `invalid`: use a shorter field or a function."""

PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""A larger payload makes its item a dead letter `too_large`: put the data in a file and pass its path."""

ACC_BYTES: Final = 1024 * 1024
"""A larger accumulator fails its range: keep totals in it, not rows."""

RESULT_BYTES: Final = 16 * 1024 * 1024
"""A larger result of `converge` is refused: write it to a file and return its name."""

OUTPUT_BYTES: Final = 64 * 1024 * 1024
"""A larger output fails its stage: write it to a file and return the path, or use a file sink."""

REPLY_BYTES: Final = 64 * 1024 * 1024
"""A larger reply of a paginated API, unpacked, fails its range, unless `hf.Pages` says otherwise: ask for smaller
pages."""

PREVIEW_BYTES: Final = 1024
"""How much of a payload that cannot be kept stays with its dead letter."""

MESSAGE_CHARS: Final = 2000
"""Longer error messages are cut, with a mark."""

STAGES: Final = 64
"""A pipeline with more stages is refused."""

ITEMS: Final = 1 << 34
"""Items in one batch; the next one is refused."""

BUCKET_ITEMS: Final = 1_000_000
"""Items in one batch on a bucket, whose keys are held in memory; the next one is refused."""

BUCKET_CHUNK_ITEMS: Final = 2_000
"""Items in one chunk on a bucket, so that its document stays small; more are admitted as several chunks."""

BATCHES: Final = 1 << 22
"""Batches in one store; the next one is refused."""

BATCH_NAME_CHARS: Final = 200
"""A longer batch or pipeline name is refused."""

INGEST_GROUP: Final = 20_000
"""Items admitted in one transaction."""

INGEST_FIRST_GROUP: Final = 256
"""The first group is small, so that work starts at once."""

READ_AHEAD: Final = 5_000
"""Items of a source at hand that are compared with what is stored before a resumed batch is worked on."""

INGEST_BYTES: Final = 32 * 1024 * 1024
"""A group of items is written when its payloads reach this size."""

CLAIM_ITEMS: Final = 20_000
"""Items in one claim."""

CLAIM_CHUNKS: Final = 200
"""Chunks in one claim, where they are so small that it takes many to keep the workers busy."""

LOAD_ITEMS: Final = 4_000
"""Items a worker reads into memory at a time."""

LOAD_BYTES: Final = 32 * 1024 * 1024
"""Bytes of input a worker reads into memory at a time."""

SLICE_ITEMS: Final = 2_000
"""Items handed to an executor at once."""

SLOW_SECONDS: Final = 0.2
"""A handler that keeps other items waiting for longer continues without them: they are handed to others."""

WATCH_SECONDS: Final = 0.05
"""How often the thread that would take over looks whether one does."""

SUSPECT: Final = 2
"""Grants of a chunk that ended in a dead process, with nothing committed, before it is handed out in halves, each with
a process to itself."""

BLAME: Final = 3
"""Starts of one lone item, run alone, that ended in a dead process before it is buried."""

DEADLY_ROWS: Final = 3
"""Rows in a row that killed their worker process and are buried one by one; of more, the range is."""

REWINDS: Final = 3
"""Rewinds of one item before it is buried."""

CHECK_SECONDS: Final = 60.0
"""How long a verifier or an adopter may take, unless it or its stage says otherwise; then it has said nothing."""

CLOSE_SECONDS: Final = 10.0
"""How long a resource may take to close at the end of a run; then it is left alone, with a warning."""

HUNG_CHECKS: Final = 100
"""Verifiers and adopters that hang at the same time, before no further one is asked."""

UNDO_SHARE: Final = "10%"
"""A run or a repair that would undo more than this share is refused, unless it is told that this is meant."""

UNDO_ITEMS: Final = 100
"""Fewer items than this are undone without that question."""

FINDINGS_LISTED: Final = 20
"""Findings that a report lists; of more, it says how many there are."""

REQUEUES: Final = 3
"""How often an orphan is sent on its way again without any progress before it is buried."""

MONEY_DIGITS: Final = 12
"""Money is kept in whole 10**-12 of a dollar; what is finer is rounded."""

MONEY_USD: Final = 9_000_000
"""A larger amount is refused: a store could not hold it."""

REQUEST_HINT_CHARS: Final = 200
"""Of an outside text (a model name, an error code) this much is kept."""

LISTED_NAMES: Final = 10
"""An error that lists what there is names this many."""

SEARCHED_NAMES: Final = 10_000
"""Among this many keys a similar one is looked for."""

HELD_NUMBERS: Final = 500_000
"""Numbers that statistics keep in memory; beyond that, exact quantiles take more passes over the journal."""

DISTINCT_NAMES: Final = 200
"""Models, error codes, metrics told apart in statistics; the rest is counted as `other`."""

ACT_ITEMS: Final = 1_000
"""Items an operator changes in one transaction."""

ORPHAN_GRACE: Final = 7200.0
"""Seconds without progress after which an unfinished item is an orphan, unless its pipeline says otherwise."""

DEAD_AGE: Final = 604_800.0
"""Seconds after which an open dead letter is shown with the orphans, unless its pipeline says otherwise."""

FOUND_GROUPS: Final = 1_000
"""Groups of orphans that one look announces; the next look announces the rest."""

FOUND_EACH: Final = 10
"""Orphans of a group that get an event of their own; the others share one."""

EVENTS_PAGE: Final = 100
"""Events that are read, and in a file written, at a time."""

EVENT_SECONDS: Final = 10.0
"""How long a webhook may take to answer; after that the event is delivered again."""

EVENT_FLUSH_SECONDS: Final = 2.0
"""How long a run that has ended waits for receivers that answer; what is left is delivered next time."""

DEAD_SEEN: Final = 2_000
"""Dead letters whose codes a status counts; of more, it says that there are more."""

FINDINGS: Final = 1_000
"""Findings of a reconciliation that are kept with all that is known about them; the others are counted."""

FINDINGS_SEALED: Final = 100
"""Findings that the journal lists; the others are counted."""

END_LOOKS: Final = 10
"""How often a batch is looked at for its end while others keep changing it; then it is left to them."""

DOCUMENT_LOOKS: Final = 3
"""How often a document of a bucket is read that seems to be older than before; then it is damaged."""

NAMES_HELD: Final = 1_000_000
"""Names of files held in memory, 8 bytes each, to find those that nothing names; of more, the folder is read again."""

DEFERRED_SECONDS: Final = 86_400.0
"""Seconds that an item may be deferred at one stage in all, unless its policy says otherwise; then it is buried with
the code `deferred_too_long`."""

DEFERRED_LEAST: Final = 1.0
"""What a shorter deferral counts as."""

SOURCE_PATIENCE: Final = 300.0
"""Seconds that a source which is away is waited for, unless a run says otherwise; then the run ends with 75."""

SOURCE_FIRST_WAIT: Final = 0.5
"""Seconds before such a source is asked again; each further wait is twice as long."""

SOURCE_LONGEST_WAIT: Final = 15.0
"""Seconds of the longest of these waits."""

SENDS: Final = 3
"""How often a commit of which nothing is heard is sent, before its work is left to whoever claims it next."""

BREAKER_FAILURES: Final = 20
"""Transient failures of different items in a row, with no answer between, that make a stage pause."""

BREAKER_PAUSE: Final = 30.0
"""Seconds of the first pause; each further one without an answer between is twice as long."""

BREAKER_LONGEST: Final = 600.0
"""Seconds of the longest pause."""

BREAKER_SECONDS: Final = 3600.0
"""Seconds that the breaker of a stage may be open in one run in all; then the run ends, to be run again later."""

FLIGHT_SECONDS: Final = 3600.0
"""Seconds that what is in flight may take to its checkpoint when its batch ends or is cancelled; then the run ends
without it."""

SIGNAL_SECONDS: Final = 0.2
"""Seconds that a failure waits, where a program of the handler's died of SIGINT, SIGTERM or SIGHUP, for the run to be
told to stop; then it counts as any other."""

ALIKE_ITEMS: Final = 20
"""Items, or as many as there are workers, that have to die alike before any has succeeded; then the run stops, and
nothing is buried."""

WITHHELD_TIMES: Final = 2
"""Deaths that are withheld while nothing has succeeded, in times of that number; of more, all are buried."""

BLAME_ENTRIES: Final = 1_024
"""Entries of the journal that are read to count the deaths in a row of one part; with more, those are told."""

WITHHELD_SECONDS: Final = 10.0
"""How long they are withheld where the source gives nothing more; then they are buried."""

RATE_PAUSE: Final = 600.0
"""Seconds between two commits of a run beyond which it was not at work: its machine slept, or it had nothing to do."""

-- The inbox. One row per job in `jobs`, narrow; what is large or long lies in tables of its own and names the job by
-- its small number `seq`, so that a submit appends to each of them and a claim or settle touches few pages.

-- The columns of postroom.model.JOB_FIELDS in their order, between `seq` and `lane`.
CREATE TABLE jobs (
    seq                   INTEGER PRIMARY KEY,
    job_id                TEXT NOT NULL,
    owner                 TEXT NOT NULL,
    kind                  TEXT NOT NULL,
    sender                TEXT NOT NULL,
    topic                 TEXT NOT NULL,
    priority              TEXT NOT NULL,
    queue                 TEXT NOT NULL,
    state                 TEXT NOT NULL,
    version               INTEGER NOT NULL,
    epoch                 INTEGER NOT NULL,
    life                  INTEGER NOT NULL,
    lines                 INTEGER NOT NULL,
    attempts              INTEGER NOT NULL,
    max_attempts          INTEGER,
    crashes               INTEGER NOT NULL,
    crashes_in_row        INTEGER NOT NULL,
    interruptions         INTEGER NOT NULL,
    holds                 INTEGER NOT NULL,
    done                  INTEGER NOT NULL,
    total                 INTEGER NOT NULL,
    failed_items          INTEGER NOT NULL,
    has_items             INTEGER NOT NULL,
    worker                TEXT,
    lease_expires_at      REAL,
    lease_seconds         REAL,
    beat_seq              INTEGER NOT NULL,
    settled               TEXT,
    cancel_requested      INTEGER NOT NULL,
    reason                TEXT,
    created_at            REAL NOT NULL,
    updated_at            REAL NOT NULL,
    run_at                REAL NOT NULL,
    started_at            REAL,
    progress_at           REAL,
    finished_at           REAL,
    expires_at            REAL,
    start_by              REAL,
    timeout_seconds       REAL,
    stall_timeout_seconds REAL,
    allow_failed_items    REAL,
    error                 TEXT,
    result_bytes          INTEGER,
    params                TEXT NOT NULL,
    metadata              TEXT NOT NULL,
    usage                 TEXT,
    kept                  TEXT,
    -- The place in line. `place` is kept while the job runs, for a worker that gives it back; NULL: delayed, or new.
    lane                  INTEGER NOT NULL,
    rank                  INTEGER NOT NULL,
    place                 REAL,
    wake_at               REAL,  -- when it becomes due, or (waiting below the highest rank) moves up one
    -- What a repeated submission is recognised by.
    idempotency_key       TEXT,
    body_digest           TEXT,
    -- What a failed job has in common with others that failed alike.
    error_code            TEXT,
    error_group           TEXT,
    -- Why this row was set aside: it could not be read. To bring a mended one back: broken = NULL, wake_at = 0.
    broken                TEXT
) STRICT;

CREATE UNIQUE INDEX jobs_by_id ON jobs (job_id);
CREATE UNIQUE INDEX jobs_by_key ON jobs (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_by_age ON jobs (created_at, job_id);

-- Each of these holds only the jobs that it is about, so that none of them grows with history, and the first not
-- with delayed jobs either. A claim reads the heads of its lanes and so never sees kinds that its worker does not know.
CREATE INDEX jobs_in_line ON jobs (lane, rank, place, job_id) WHERE state = 'queued' AND place IS NOT NULL;
CREATE INDEX jobs_to_wake ON jobs (wake_at, job_id) WHERE wake_at IS NOT NULL;
CREATE INDEX jobs_queued ON jobs (lane, run_at) WHERE state = 'queued';
CREATE INDEX jobs_to_start ON jobs (start_by, job_id) WHERE start_by IS NOT NULL;
CREATE INDEX jobs_running ON jobs (lease_expires_at, job_id) WHERE state = 'running';
CREATE INDEX jobs_failed ON jobs (finished_at, job_id) WHERE state = 'failed';
CREATE INDEX jobs_broken ON jobs (job_id) WHERE broken IS NOT NULL;

CREATE TABLE lanes (
    lane  INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    kind  TEXT NOT NULL,
    UNIQUE (queue, kind)
) STRICT;

-- Start-time fair queueing: the place that a rank of a queue has reached, and the last place given to each share.
CREATE TABLE clocks (
    queue TEXT NOT NULL,
    rank  INTEGER NOT NULL,
    place REAL NOT NULL,
    PRIMARY KEY (queue, rank)
) STRICT, WITHOUT ROWID;

CREATE TABLE turns (
    queue TEXT NOT NULL,
    rank  INTEGER NOT NULL,
    share TEXT NOT NULL,
    place REAL NOT NULL,
    PRIMARY KEY (queue, rank, share)
) STRICT, WITHOUT ROWID;

-- What a job was submitted with, and the first line of its journal, which is written with it: a submit touches two
-- pages less than with that line among the others. What is small stands first, so that it is read without the body.
CREATE TABLE payloads (
    seq  INTEGER PRIMARY KEY,
    line TEXT NOT NULL,
    keys TEXT,
    body TEXT NOT NULL
) STRICT;

CREATE TABLE results (
    seq  INTEGER PRIMARY KEY,
    body TEXT NOT NULL
) STRICT;

CREATE TABLE checkpoints (
    seq          INTEGER NOT NULL,
    kind         TEXT NOT NULL,
    key          TEXT NOT NULL,
    is_final     INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    input_digest TEXT,
    usage        TEXT,
    error        TEXT,
    value        TEXT,
    PRIMARY KEY (seq, kind, key)
) STRICT, WITHOUT ROWID;

-- All lines but the first of each job. Append only: a table by (seq, n) would put each line in the middle of a full page.
CREATE TABLE journal (
    line       INTEGER PRIMARY KEY,
    seq        INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    at         REAL NOT NULL,
    event      TEXT NOT NULL,
    from_state TEXT,
    to_state   TEXT NOT NULL,
    epoch      INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    life       INTEGER NOT NULL,
    actor      TEXT NOT NULL,
    reason     TEXT,
    data       TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX journal_by_job ON journal (seq, n);

-- Every end of a run of states, by time: the picture of the last hour, and what retention looks through.
CREATE TABLE ends (
    at      REAL NOT NULL,
    seq     INTEGER NOT NULL,
    version INTEGER NOT NULL,
    owner   TEXT NOT NULL,
    state   TEXT NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (at, seq, version)
) STRICT, WITHOUT ROWID;

-- Jobs by state, counted as they change.
CREATE TABLE owners (
    owner      TEXT PRIMARY KEY,
    queued     INTEGER NOT NULL,
    running    INTEGER NOT NULL,
    succeeded  INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    cancelled  INTEGER NOT NULL,
    claimed_at REAL
) STRICT, WITHOUT ROWID;

-- `lock` says which lock proves the worker's presence: machine, device and inode of its file. NULL: none is held here.
CREATE TABLE workers (
    worker      TEXT PRIMARY KEY,
    kinds       TEXT NOT NULL,
    queues      TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    started_at  REAL NOT NULL,
    seen_at     REAL NOT NULL,
    is_local    INTEGER NOT NULL,
    version     TEXT NOT NULL,
    lock        TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE kept (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The last numbers given to a job and to a line of the journal when jobs were last removed: none is given twice.
CREATE TABLE numbers (
    id   INTEGER PRIMARY KEY CHECK (id = 0),
    seq  INTEGER NOT NULL,
    line INTEGER NOT NULL
) STRICT;

CREATE TABLE purged (
    job_id TEXT PRIMARY KEY,
    at     REAL NOT NULL
) STRICT, WITHOUT ROWID;

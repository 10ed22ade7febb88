-- The outbox of duewheel: messages are enqueued in the application's own transaction (docs/outbox.md).
-- `duewheel pg install` runs this file in one transaction, and it may be run again. PostgreSQL 14 or later.

DO $$
DECLARE installed integer;
BEGIN
  IF to_regclass('duewheel.outbox_state') IS NOT NULL THEN
    EXECUTE 'SELECT version FROM duewheel.outbox_state' INTO installed;
    IF installed > {version} THEN
      RAISE EXCEPTION 'the outbox has version %, and this program knows {version}', installed
        USING ERRCODE = '55000', HINT = 'Run the newer duewheel.';
    END IF;
  END IF;
  -- Roles belong to all databases of the server. Whether a role may enqueue is decided by one GRANT; PUBLIC would let
  -- every role of the database in.
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'duewheel_app') THEN
    CREATE ROLE duewheel_app NOLOGIN;
  END IF;
EXCEPTION
  WHEN insufficient_privilege THEN
    RAISE EXCEPTION 'the role duewheel_app is missing, and this user may not create it'
      USING ERRCODE = '42501', HINT = 'A user that may create roles runs: CREATE ROLE duewheel_app NOLOGIN';
  WHEN duplicate_object OR unique_violation THEN NULL; -- made by another session at the same moment
END $$;

CREATE SCHEMA IF NOT EXISTS duewheel;

-- One row: the version of what is installed, and the server that drains.
CREATE TABLE IF NOT EXISTS duewheel.outbox_state (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  version integer NOT NULL,
  drainer text,
  since   timestamptz,
  seen    timestamptz -- when it has said last that it drains; others wait until that is long ago
);
INSERT INTO duewheel.outbox_state (version) VALUES ({version})
  ON CONFLICT (one) DO UPDATE SET version = excluded.version;

-- Calls whose transactions have committed, until they are durable in duewheel. `seq` is drawn in the call.
CREATE TABLE IF NOT EXISTS duewheel.outbox (
  seq       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id        uuid        NOT NULL,
  called_at timestamptz NOT NULL,
  op        text        NOT NULL,
  queue     text        NOT NULL,
  key       text,
  body      bytea,
  due_at    timestamptz,
  delay_s   numeric, -- the delay of which due_at was made
  if_exists text,
  headers   jsonb,
  dedupe_id text
);
-- Rows live for milliseconds: the table is cleaned after a number of them, and not after a part of it.
ALTER TABLE duewheel.outbox SET (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000
);

-- Calls that duewheel has refused for good, the newest {rejected}.
CREATE TABLE IF NOT EXISTS duewheel.rejected (
  seq         bigint      PRIMARY KEY,
  id          uuid        NOT NULL,
  called_at   timestamptz NOT NULL,
  op          text        NOT NULL,
  queue       text        NOT NULL,
  key         text,
  body        bytea,
  due_at      timestamptz,
  delay_s     numeric,
  if_exists   text,
  headers     jsonb,
  dedupe_id   text,
  code        text        NOT NULL,
  reason      text        NOT NULL,
  rejected_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Refuses an argument.
CREATE OR REPLACE FUNCTION duewheel.refuse(argument text, what text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION '%: %', argument, what USING ERRCODE = '22023', HINT = hint;
END $$;

-- Checks what all calls have, and gives the due time.
CREATE OR REPLACE FUNCTION duewheel.check_call(queue text, key text, delay interval, due_at timestamptz)
RETURNS timestamptz LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF queue IS NULL OR queue = '' THEN
    PERFORM duewheel.refuse('queue', 'must not be empty', 'Name a queue.');
  ELSIF octet_length(queue) > 200 THEN
    PERFORM duewheel.refuse('queue', 'must have at most 200 bytes', 'Take a shorter name.');
  ELSIF queue LIKE '-%' THEN
    PERFORM duewheel.refuse('queue', 'must not start with ''-''', 'Take another name.');
  ELSIF translate(queue, E' !"#%&''*,<=>?@[\\]^`{|}~\t\n\r', '') <> queue OR queue ~ '[[:cntrl:]]' THEN
    PERFORM duewheel.refuse('queue', 'may hold only letters, marks, digits and - + / : ; . $ _ ( )', 'Take another name.');
  END IF;
  IF key = '' OR octet_length(key) > 512 THEN
    PERFORM duewheel.refuse('key', 'must have 1 to 512 bytes', 'Take another key, or none.');
  END IF;
  IF delay IS NOT NULL AND due_at IS NOT NULL THEN
    PERFORM duewheel.refuse('due_at', 'must not be given together with delay', 'Give one of the two.');
  ELSIF delay < interval '0' THEN
    PERFORM duewheel.refuse('delay', 'must not be negative', 'Leave it out for a message that is due at once.');
  ELSIF extract(epoch FROM delay) > 4294967295 THEN
    PERFORM duewheel.refuse('delay', 'must be at most 4294967295 seconds', 'Give a shorter one.');
  ELSIF NOT isfinite(due_at) OR due_at < timestamptz '1970-01-01 00:00:00+00' THEN
    PERFORM duewheel.refuse('due_at', 'must be an instant after 1970', 'Leave it out for a message that is due at once.');
  END IF;
  -- The transaction may have begun long before the call. A day of a delay has 24 hours, whatever the time zone's clocks do.
  RETURN CASE WHEN delay IS NULL THEN due_at
    ELSE clock_timestamp() + extract(epoch FROM delay)::double precision * interval '1 second' END;
END $$;

-- Enqueues a message when the transaction commits. Returns its row's id: the message has it in the header duewheel-row,
-- and as its dedupe_id, unless one is given.
CREATE OR REPLACE FUNCTION duewheel.enqueue(
  queue text, body bytea, delay interval DEFAULT NULL, due_at timestamptz DEFAULT NULL, key text DEFAULT NULL,
  if_exists text DEFAULT 'reject', headers jsonb DEFAULT NULL, dedupe_id text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  due timestamptz := duewheel.check_call(queue, key, delay, due_at);
  made uuid := gen_random_uuid();
BEGIN
  IF body IS NULL THEN
    PERFORM duewheel.refuse('body', 'must not be null', 'Give '''' for an empty one.');
  ELSIF octet_length(body) > {max_body} THEN
    PERFORM duewheel.refuse('body', 'must have at most {max_body} bytes',
      'Keep the content elsewhere; or raise --max-body of the server, and run duewheel pg install with it.');
  END IF;
  IF if_exists IS NULL OR if_exists NOT IN ('reject', 'keep', 'replace', 'supersede') THEN
    PERFORM duewheel.refuse('if_exists', 'must be reject, keep, replace or supersede', 'Leave it out for reject.');
  END IF;
  IF dedupe_id = '' OR octet_length(dedupe_id) > 256 THEN
    PERFORM duewheel.refuse('dedupe_id', 'must have 1 to 256 bytes', 'Leave it out for one of its own.');
  ELSIF dedupe_id LIKE E'\x01%' THEN
    PERFORM duewheel.refuse('dedupe_id', 'must not begin with U+0001', 'Such ids are duewheel''s own.');
  END IF;
  IF jsonb_typeof(headers) = 'object' THEN
    IF EXISTS (SELECT FROM jsonb_each(headers) h WHERE h.key = '' OR jsonb_typeof(h.value) <> 'string') THEN
      PERFORM duewheel.refuse('headers', 'must be an object of strings', 'Write numbers as strings.');
    ELSIF EXISTS (SELECT FROM jsonb_object_keys(headers) name
      WHERE name LIKE '#%' OR lower(name) IN ('duewheel-row', 'duewheel-target-url')) THEN
      PERFORM duewheel.refuse('headers', 'must have no names of duewheel''s own',
        'They begin with #, or are duewheel-row and duewheel-target-url.');
    ELSIF octet_length(headers::text) > 16000 THEN
      PERFORM duewheel.refuse('headers', 'must have at most 16000 bytes', 'Put them into the body.');
    END IF;
  ELSIF headers IS NOT NULL THEN
    PERFORM duewheel.refuse('headers', 'must be an object of strings', 'Give {"name": "value"}, or leave them out.');
  END IF;
  INSERT INTO duewheel.outbox (id, called_at, op, queue, key, body, due_at, delay_s, if_exists, headers, dedupe_id)
  VALUES (made, clock_timestamp(), 'enqueue', queue, key, body, due, extract(epoch FROM delay), if_exists, headers, dedupe_id);
  RETURN made;
END $$;

-- The same with a text, which becomes UTF-8.
CREATE OR REPLACE FUNCTION duewheel.enqueue(
  queue text, body text, delay interval DEFAULT NULL, due_at timestamptz DEFAULT NULL, key text DEFAULT NULL,
  if_exists text DEFAULT 'reject', headers jsonb DEFAULT NULL, dedupe_id text DEFAULT NULL
) RETURNS uuid LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT duewheel.enqueue(queue, convert_to(body, 'UTF8'), delay, due_at, key, if_exists, headers, dedupe_id)
$$;

-- Cancels the message with this key when the transaction commits. Nothing found is no error.
CREATE OR REPLACE FUNCTION duewheel.cancel(queue text, key text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM duewheel.check_call(queue, coalesce(key, ''), NULL, NULL);
  INSERT INTO duewheel.outbox (id, called_at, op, queue, key)
  VALUES (gen_random_uuid(), clock_timestamp(), 'cancel', queue, key);
END $$;

-- Gives the message with this key another due time when the transaction commits. Nothing found is no error.
CREATE OR REPLACE FUNCTION duewheel.postpone(
  queue text, key text, delay interval DEFAULT NULL, due_at timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  due timestamptz := duewheel.check_call(queue, coalesce(key, ''), delay, due_at);
BEGIN
  IF due IS NULL THEN
    PERFORM duewheel.refuse('delay', 'must be given, or due_at', 'Give one of the two.');
  END IF;
  INSERT INTO duewheel.outbox (id, called_at, op, queue, key, due_at, delay_s)
  VALUES (gen_random_uuid(), clock_timestamp(), 'postpone', queue, key, due, extract(epoch FROM delay));
END $$;

-- The application's role may call these functions, and nothing else here.
REVOKE ALL ON ALL TABLES IN SCHEMA duewheel FROM duewheel_app;
REVOKE ALL ON FUNCTION
  duewheel.refuse(text, text, text),
  duewheel.check_call(text, text, interval, timestamptz),
  duewheel.enqueue(text, bytea, interval, timestamptz, text, text, jsonb, text),
  duewheel.enqueue(text, text, interval, timestamptz, text, text, jsonb, text),
  duewheel.cancel(text, text),
  duewheel.postpone(text, text, interval, timestamptz)
FROM PUBLIC;
GRANT USAGE ON SCHEMA duewheel TO duewheel_app;
GRANT EXECUTE ON FUNCTION
  duewheel.enqueue(text, bytea, interval, timestamptz, text, text, jsonb, text),
  duewheel.enqueue(text, text, interval, timestamptz, text, text, jsonb, text),
  duewheel.cancel(text, text),
  duewheel.postpone(text, text, interval, timestamptz)
TO duewheel_app;

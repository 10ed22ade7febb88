-- The tables of duewheel on PostgreSQL. Every statement may be repeated; `duewheel store init` runs them.
-- {schema} is the schema of --postgres-schema.
CREATE SCHEMA IF NOT EXISTS {schema};

-- One row: the cluster that the nodes share.
CREATE TABLE IF NOT EXISTS {schema}.cluster (
  one           boolean PRIMARY KEY DEFAULT true CHECK (one),
  format        integer NOT NULL,
  id            text    NOT NULL,
  shards        integer NOT NULL,
  placement     integer NOT NULL,
  secret        bytea   NOT NULL,
  former_secret bytea,
  last_number   bigint  NOT NULL
);

-- The nodes that take part, each until its time runs out.
CREATE TABLE IF NOT EXISTS {schema}.node (
  name      text        PRIMARY KEY,
  number    bigint      NOT NULL,
  advertise text        NOT NULL,
  until     timestamptz NOT NULL,
  lease_ms  bigint      NOT NULL,
  settle_ms bigint      NOT NULL
) WITH (fillfactor = 50);

-- A shard's fence: only the owner with this mark may change its files.
CREATE TABLE IF NOT EXISTS {schema}.shard (
  shard    integer PRIMARY KEY,
  cluster  text    NOT NULL,
  epoch    bigint  NOT NULL,
  mark     bigint  NOT NULL,
  -- Why nobody may open the shard, until an operator has given up what it has lost; and the last epoch for which one has.
  refused  text,
  given_up bigint  NOT NULL DEFAULT 0,
  -- Whether the shard has had files. Without them it is opened by nobody.
  used     boolean NOT NULL DEFAULT false
);

-- The number of the owner's last name or removal: each requires the one before.
CREATE TABLE IF NOT EXISTS {schema}.turn (
  shard integer PRIMARY KEY,
  mark  bigint  NOT NULL,
  n     bigint  NOT NULL
) WITH (fillfactor = 50);

-- How long a shard's owner has it. It is apart from the fence, because it is changed every second.
CREATE TABLE IF NOT EXISTS {schema}.lease (
  shard     integer     PRIMARY KEY,
  mark      bigint      NOT NULL,
  node      text        NOT NULL,
  number    bigint      NOT NULL,
  advertise text        NOT NULL,
  until     timestamptz NOT NULL,
  lease_ms  bigint      NOT NULL
) WITH (fillfactor = 50);

-- The files of a shard: MANIFEST, journal/…, runs/… and state/…, as docs/format.md describes them.
CREATE TABLE IF NOT EXISTS {schema}.file (
  shard integer NOT NULL,
  name  text    NOT NULL,
  id    bigint  NOT NULL,
  bytes bigint  NOT NULL,
  PRIMARY KEY (shard, name)
) WITH (fillfactor = 50);

-- Their bytes, in pieces of at most 1 MiB. What no piece covers is zero; of two pieces the one with the higher number counts.
CREATE TABLE IF NOT EXISTS {schema}.piece (
  shard integer     NOT NULL,
  file  bigint      NOT NULL,
  at    bigint      NOT NULL,
  seq   bigint      NOT NULL,
  noted timestamptz NOT NULL DEFAULT clock_timestamp(),
  body  bytea       NOT NULL,
  PRIMARY KEY (shard, file, at)
);
-- Uncompressed and outside of the row: a part of it can be read alone.
ALTER TABLE {schema}.piece ALTER COLUMN body SET STORAGE EXTERNAL;

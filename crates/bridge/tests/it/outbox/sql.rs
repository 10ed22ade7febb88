//! The functions in the database.

use std::time::Duration;

use duewheel_bridge::outbox::{OutboxError, install, status};

use super::place::{MAX_BODY, Place, options};

#[tokio::test(flavor = "multi_thread")]
async fn bad_arguments_are_refused_by_name() {
    let place = Place::new().await;
    let app = place.connect().await;
    for (call, argument) in [
        ("enqueue('', 'x')", "queue"),
        ("enqueue(NULL, 'x')", "queue"),
        ("enqueue('-a', 'x')", "queue"),
        ("enqueue('a b', 'x')", "queue"),
        (r"enqueue('a\b', 'x')", "queue"),
        (r"enqueue(E'a\x7f', 'x')", "queue"),
        ("enqueue(repeat('a', 201), 'x')", "queue"),
        ("enqueue('a', NULL::text)", "body"),
        ("enqueue('a', repeat('x', 262145))", "body"),
        ("enqueue('a', 'x', delay => '-1 s')", "delay"),
        ("enqueue('a', 'x', delay => '200 years')", "delay"),
        ("enqueue('a', 'x', delay => '1 s', due_at => now())", "due_at"),
        ("enqueue('a', 'x', due_at => 'infinity')", "due_at"),
        ("enqueue('a', 'x', due_at => '1969-01-01')", "due_at"),
        ("enqueue('a', 'x', key => '')", "key"),
        ("enqueue('a', 'x', key => repeat('ä', 257))", "key"),
        ("enqueue('a', 'x', if_exists => 'overwrite')", "if_exists"),
        ("enqueue('a', 'x', headers => '[]')", "headers"),
        ("enqueue('a', 'x', headers => '{\"n\": 1}')", "headers"),
        ("enqueue('a', 'x', headers => '{\"#result\": \"1\"}')", "headers"),
        ("enqueue('a', 'x', headers => '{\"Duewheel-Target-URL\": \"https://a.example\"}')", "headers"),
        ("enqueue('a', 'x', dedupe_id => '')", "dedupe_id"),
        (r"enqueue('a', 'x', dedupe_id => E'\x01a')", "dedupe_id"),
        ("cancel('a', NULL)", "key"),
        ("cancel('#a', 'k')", "queue"),
        ("postpone('a', 'k')", "delay"),
        ("postpone('a', 'k', '-1 s')", "delay"),
    ] {
        let error = app.client.batch_execute(&format!("SELECT duewheel.{call}")).await.expect_err(call);
        let refusal = error.as_db_error().expect("a refusal");
        assert!(refusal.message().starts_with(&format!("{argument}: ")), "{call}: {}", refusal.message());
        assert_eq!((refusal.code().code(), refusal.hint().is_some()), ("22023", true), "{call}");
    }
    for call in ["enqueue('größe/+:;.$_()-9', 'x')", "enqueue('a', '')", "enqueue('a', repeat('x', 262144))"]
    {
        app.client.batch_execute(&format!("SELECT duewheel.{call}")).await.expect(call);
    }
    assert_eq!(place.psql("SELECT count(*) FROM duewheel.outbox"), "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn application_role_calls_functions_only() {
    let place = Place::new().await;
    place.psql("CREATE ROLE app LOGIN");
    let as_app = |sql: &str| place.try_psql(&format!("SET ROLE app; {sql}"));
    let denied = as_app("SELECT duewheel.enqueue('q', 'x')");
    assert!(denied.contains("permission denied for schema duewheel"), "{denied}");
    place.psql("GRANT duewheel_app TO app");
    as_app("SELECT duewheel.enqueue('q', 'x')");
    as_app(r"SELECT duewheel.enqueue('q', '\x00'::bytea, key => 'k')");
    as_app("SELECT duewheel.cancel('q', 'k')");
    as_app("SELECT duewheel.postpone('q', 'k', '1 h')");
    assert_eq!(place.psql("SELECT count(*) FROM duewheel.outbox"), "4");
    for sql in [
        "SELECT * FROM duewheel.outbox",
        "DELETE FROM duewheel.outbox",
        "INSERT INTO duewheel.rejected SELECT",
        "SELECT * FROM duewheel.rejected",
        "SELECT * FROM duewheel.outbox_state",
        "SELECT duewheel.refuse('a', 'b', 'c')",
        "SELECT duewheel.check_call('a', NULL, NULL, NULL)",
        "CREATE TABLE duewheel.x ()",
    ] {
        let said = as_app(sql);
        assert!(said.contains("permission denied"), "{sql}: {said}");
    }
    // Names that the application's own search_path has do not count in the functions.
    place.psql("CREATE SCHEMA own AUTHORIZATION app");
    as_app("CREATE FUNCTION own.gen_random_uuid() RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid'");
    let id = as_app("SET search_path = own, pg_catalog; SELECT duewheel.enqueue('q', 'x')");
    assert_eq!(id.len(), 36, "{id}");
}

#[tokio::test(flavor = "multi_thread")]
async fn install_repeats_and_refuses_newer_schema() {
    let place = Place::new().await;
    place.psql("SELECT duewheel.enqueue('q', 'x', delay => '1 h')");
    let options = options(&place.postgres.url());
    let before = place.psql("SELECT * FROM duewheel.outbox");
    install(&options, 10).await.expect("again");
    assert_eq!(place.psql("SELECT * FROM duewheel.outbox"), before);
    let refused = place.try_psql("SELECT duewheel.enqueue('q', 'more than ten')");
    assert!(refused.contains("body: must have at most 10 bytes"), "{refused}");
    let shown = status(&options).await.expect("a status");
    assert_eq!((shown.version, shown.waiting, shown.rejected), (1, 1, 0));
    assert!(shown.oldest_seconds.is_some() && shown.bytes > 0 && shown.drainer.is_none(), "{shown:?}");
    place.psql("UPDATE duewheel.outbox_state SET version = 2");
    let refused = install(&options, MAX_BODY).await.expect_err("newer").to_string();
    assert!(refused.contains("has version 2, and this program knows 1"), "{refused}");
    assert!(matches!(status(&options).await, Err(OutboxError::OtherVersion(2))));
    place.psql("DROP SCHEMA duewheel CASCADE");
    assert!(matches!(status(&options).await, Err(OutboxError::NotInstalled)));
}

/// Clocks in Berlin are set twice a year, so that a day has 23 or 25 hours: one of these delays passes over that.
#[tokio::test(flavor = "multi_thread")]
async fn days_of_a_delay_have_24_hours() {
    let place = Place::new().await;
    let days = [60, 120, 180, 240, 300];
    let calls: Vec<_> =
        days.iter().map(|days| format!("SELECT duewheel.enqueue('q', 'x', '{days} days')")).collect();
    place.psql(&format!("SET TimeZone = 'Europe/Berlin'; {}", calls.join("; ")));
    let wrong = "SELECT count(*) FROM duewheel.outbox WHERE extract(epoch FROM called_at - due_at) + delay_s NOT BETWEEN 0 AND 1";
    assert_eq!(place.psql(wrong), "0");
}

/// The clock of the transaction stands still; that of the call does not.
#[tokio::test(flavor = "multi_thread")]
async fn delay_counts_from_the_call() {
    let place = Place::new().await;
    let app = place.connect().await;
    app.client.batch_execute("BEGIN; CREATE TABLE begun AS SELECT now() AS at").await.expect("begun");
    tokio::time::sleep(Duration::from_millis(50)).await;
    app.client.batch_execute("SELECT duewheel.enqueue('q', 'x', '1 h'); COMMIT").await.expect("committed");
    let counts = "due_at BETWEEN at + interval '1 h 50 ms' AND called_at + interval '1 h'";
    let after = place.psql(&format!("SELECT {counts} FROM duewheel.outbox, begun"));
    assert_eq!(after, "t");
}

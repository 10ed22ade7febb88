//! The protocol over several shards: which of the jobs that are ready comes first differs, and nothing else.

use std::collections::BTreeSet;

use super::Both;
use crate::fixture::Server;

async fn start() -> Both {
    Both::over(Server::start_shards(4).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_connection_returns_jobs_over_shards() {
    let server = start().await;
    let mut client = server.client("q");
    let ids: BTreeSet<String> = (0..12).map(|n| client.put("put 0 0 60", &n.to_string())).collect();
    let mut other = server.client("q");
    let id_of = |reply: &str| reply.split(' ').nth(1).expect("an id").to_owned();
    let got: BTreeSet<String> = (0..12).map(|_| id_of(&other.ask("reserve"))).collect();
    assert_eq!(got, ids, "each of them once");
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
    let mut waiting = server.client("q");
    waiting.send("reserve\r\n");
    client.until("stats-tube q", "current-waiting", "1");
    drop(other);
    assert!(ids.contains(&id_of(&waiting.reply())));
    let grants = server.http.reserve("q", r#"{"max": 20, "wait_ms": 20000}"#).await;
    assert!(!grants.is_empty() && grants.iter().all(|grant| grant["attempt"] == 2), "{grants:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn expiring_job_yields_deadline_soon() {
    let server = start().await;
    let mut client = server.client("q");
    let id = client.put("put 0 0 10", "a");
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 1\r\na"));
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
    server.http.advance(9_500);
    assert_eq!(client.ask("reserve-with-timeout 0"), "DEADLINE_SOON");
    assert_eq!(client.ask("reserve"), "DEADLINE_SOON");
    assert_eq!(client.ask(&format!("touch {id}")), "TOUCHED");
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
    client.send("reserve\r\n");
    let mut other = server.client("q");
    other.until("stats-tube q", "current-waiting", "1");
    server.http.advance(9_000);
    assert_eq!(client.reply(), "DEADLINE_SOON", "while it waits");
    assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_find_their_jobs() {
    let server = start().await;
    let mut client = server.client("q");
    let ids: Vec<String> = (0..8).map(|n| client.put("put 5 100 60", &n.to_string())).collect();
    assert_eq!(client.field("stats-tube q", "current-jobs-delayed").as_deref(), Some("8"));
    assert_eq!(client.ask("kick 3"), "KICKED 3");
    assert_eq!(client.field("stats-tube q", "current-jobs-ready").as_deref(), Some("3"));
    assert_eq!(client.ask(&format!("kick-job {}", ids[7])).len(), 6);
    for id in &ids {
        assert!(client.ask(&format!("reserve-job {id}")).starts_with(&format!("RESERVED {id} 1")));
        assert_eq!(client.ask(&format!("bury {id} 7")), "BURIED");
    }
    assert_eq!(client.ask("peek-buried").split(' ').next(), Some("FOUND"));
    assert_eq!(client.ask("kick 100"), "KICKED 8");
    assert_eq!(client.field("stats", "current-jobs-ready").as_deref(), Some("8"));
    assert!(client.ask("list-tubes").contains("- q"));
    assert_eq!(client.ask("pause-tube q 100"), "PAUSED");
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
    server.http.advance(100_001);
    for _ in &ids {
        let reply = client.ask("reserve");
        let id = reply.split(' ').nth(1).expect("an id").to_owned();
        assert_eq!(client.ask(&format!("release {id} 3 0")), "RELEASED");
        assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    }
    assert_eq!(client.field("stats-tube q", "current-jobs-ready").as_deref(), Some("0"));
}

//! `put-key`, `replace-key`, `supersede-key`, `delete-key`, `peek-key`: commands that beanstalkd has not.

use serde_json::json;

use super::Both;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_put_once() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put-key k 0 10 60", "one");
    assert_eq!(client.ask_put("put-key k 0 0 60", "two"), format!("KEY_EXISTS {id}"));
    server.http.advance(10_000);
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 3\r\none"));
    assert_eq!(client.ask_put("put-key k 0 0 60", "two"), format!("KEY_EXISTS {id}"), "reserved");
    assert_eq!(client.field("stats-tube q", "total-jobs").as_deref(), Some("1"));
    assert_ne!(server.client("other").put("put-key k 0 0 60", "two"), id, "of another tube");
}

#[tokio::test(flavor = "multi_thread")]
async fn replace_key_replaces_job() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let first = client.put("replace-key k 0 100 60", "one");
    let second = client.put("replace-key k 5 0 70", "two");
    assert_eq!(client.ask(&format!("peek {first}")), "NOT_FOUND");
    assert_eq!(client.ask("reserve"), format!("RESERVED {second} 3\r\ntwo"));
    let job = format!("stats-job {second}");
    assert_eq!(
        (client.field(&job, "pri").as_deref(), client.field(&job, "ttr").as_deref()),
        (Some("5"), Some("70"))
    );
    assert_eq!(client.ask_put("replace-key k 0 0 60", "three"), format!("KEY_RESERVED {second}"));
    assert_eq!(client.ask(&format!("release {second} 0 100")), "RELEASED");
    let third = client.put("replace-key k 0 0 60", "three");
    assert_eq!(client.ask("reserve"), format!("RESERVED {third} 5\r\nthree"));
    assert_eq!(client.field("stats-tube q", "current-jobs-delayed").as_deref(), Some("0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn superseded_job_ends_with_its_reservation() {
    let server = Both::start().await;
    for (settle, answer) in
        [("release {} 0 0", "RELEASED"), ("bury {} 0", "BURIED"), ("delete {}", "DELETED")]
    {
        let mut client = server.client("q");
        let old = client.put("supersede-key k 0 0 60", "one");
        assert_eq!(client.ask("reserve"), format!("RESERVED {old} 3\r\none"));
        let new = client.put("supersede-key k 0 100 60", "two");
        assert_eq!(client.ask("peek-key k"), format!("FOUND {new} 3\r\ntwo"));
        assert_eq!(client.ask(&settle.replace("{}", &old.to_string())), answer);
        for line in [format!("peek {old}"), format!("kick-job {old}")] {
            assert_eq!(client.ask(&line), "NOT_FOUND", "{line} after {settle}");
        }
        assert_eq!(client.ask("delete-key k"), "DELETED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_commands_peek_and_delete() {
    let server = Both::start().await;
    let mut client = server.client("q");
    for line in ["delete-key k", "peek-key k"] {
        assert_eq!(client.ask(line), "NOT_FOUND", "{line}");
    }
    let id = client.put("put-key k 0 100 60", "one");
    assert_eq!(client.ask("peek-key k"), format!("FOUND {id} 3\r\none"));
    let mut elsewhere = server.client("other");
    for line in ["delete-key k", "peek-key k"] {
        assert_eq!(elsewhere.ask(line), "NOT_FOUND", "{line} of another tube");
    }
    assert_eq!(client.ask("delete-key k"), "DELETED");
    assert_eq!(client.ask(&format!("peek {id}")), "NOT_FOUND");
    assert_eq!(client.ask("delete-key k"), "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_key_refuses_reserved_job() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put-key k 0 0 60", "one");
    assert!(client.ask("reserve").starts_with("RESERVED"));
    assert_eq!(client.ask("peek-key k"), format!("FOUND {id} 3\r\none"));
    assert_eq!(client.ask("delete-key k"), "KEY_RESERVED", "by the one that has it");
    assert_eq!(server.client("q").ask("delete-key k"), "KEY_RESERVED");
    assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    assert_eq!(client.ask("peek-key k"), "NOT_FOUND");
    client.put("put-key k 0 0 60", "two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buried_job_has_no_key() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let old = client.put("put-key k 0 0 60", "one");
    assert!(client.ask("reserve").starts_with("RESERVED"));
    assert_eq!(client.ask(&format!("bury {old} 0")), "BURIED");
    let new = client.put("put-key k 0 100 60", "two");
    assert_eq!(client.ask("peek-key k"), format!("FOUND {new} 3\r\ntwo"));
    assert_eq!(client.ask(&format!("kick-job {old}")), "NOT_FOUND", "its key is taken");
    assert_eq!(client.ask("delete-key k"), "DELETED");
    assert_eq!(client.ask(&format!("kick-job {old}")), "KICKED");
    assert_eq!(client.ask("peek-key k"), format!("FOUND {old} 3\r\none"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_key_is_bad_format() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let long = "x".repeat(513);
    let long_encoded = "%20".repeat(513);
    for key in ["", "%FF", "%C3", "\u{e4}".repeat(257).as_str(), &long, &long_encoded] {
        assert_eq!(client.ask(&format!("delete-key {key}")), "BAD_FORMAT", "{key:?}");
        assert_eq!(client.ask(&format!("peek-key {key}")), "BAD_FORMAT", "{key:?}");
        // No body follows a line that is refused.
        assert_eq!(client.ask(&format!("put-key {key} 0 0 60 1")), "BAD_FORMAT", "{key:?}");
        assert_eq!(client.ask(&format!("replace-key {key} 0 0 60 1")), "BAD_FORMAT", "{key:?}");
    }
    for line in [
        "delete-key a b",
        "peek-key a ",
        "put-key a 0 0 60",
        "put-key a 0 0 60 1 1",
        "replace-key a 0 -1 60 1",
    ] {
        assert_eq!(client.ask(line), "BAD_FORMAT", "{line:?}");
    }
    assert_eq!(client.field("stats", "total-jobs").as_deref(), Some("0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn key_may_be_any_512_bytes() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let (spaces, letters) = ("%20".repeat(512), "\u{e4}".repeat(256));
    for key in [
        "x".repeat(512).as_str(),
        &spaces,
        &letters,
        "k%C3%A4se%20am%20St%C3%BCck",
        "100%",
        "%zz",
        "%41%0D%0A%00",
    ] {
        let id = client.put(&format!("put-key {key} 0 100 60"), "one");
        assert_eq!(client.ask(&format!("peek-key {key}")), format!("FOUND {id} 3\r\none"), "{key}");
        assert_eq!(client.ask(&format!("delete-key {key}")), "DELETED", "{key}");
    }
    let id = client.put("put-key a%2Fb 0 100 60", "one");
    assert_eq!(client.ask("peek-key %61/b"), format!("FOUND {id} 3\r\none"), "it is the text that counts");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_and_beanstalk_share_keys() {
    let server = Both::start().await;
    let mut client = server.client("q");
    for (ours, path, text) in [("k", "k", "k"), ("k%C3%A4se%20%25", "k%C3%A4se%20%25", "käse %")] {
        let path = format!("/v1/queues/q/keys/{path}");
        let id = client.put(&format!("put-key {ours} 0 100 60"), "one");
        let seen = server.http.ok("GET", &path, "").await;
        assert_eq!((&seen["id"], &seen["key"]), (&json!(id), &json!(text)));
        assert_eq!(server.http.ok("DELETE", &path, "").await["result"], "cancelled");
        assert_eq!(client.ask(&format!("peek-key {ours}")), "NOT_FOUND");

        let body = json!({"body": "two", "delay": "1h", "key": text}).to_string();
        let id = server.http.enqueue("q", &body).await;
        assert_eq!(client.ask_put(&format!("put-key {ours} 0 0 60"), "three"), format!("KEY_EXISTS {id}"));
        assert_eq!(client.ask(&format!("peek-key {ours}")), format!("FOUND {id} 3\r\ntwo"));
        assert_eq!(client.ask(&format!("delete-key {ours}")), "DELETED");
        assert_eq!(server.http.call("GET", &path, "").await.status, 404);
    }
}

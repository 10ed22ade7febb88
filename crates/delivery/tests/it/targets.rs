//! Which settings describe a target.

use duewheel_delivery::{PushTarget, TargetSettings};
use serde_json::{Value, json};

fn target(settings: Value) -> Result<PushTarget, String> {
    let settings: TargetSettings = serde_json::from_value(settings).map_err(|e| e.to_string())?;
    PushTarget::new(&settings).map_err(|e| e.to_string())
}

/// A public target with these fields besides.
fn with(fields: Value) -> Result<PushTarget, String> {
    let mut settings = json!({"url": "https://example.com/hook"});
    settings.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    target(settings)
}

#[test]
fn errors_name_the_field() {
    let long = "x".repeat(17_000);
    let many: Vec<u32> = vec![400; 101];
    for (fields, error) in [
        (json!({"url": "ftp://example.com/"}), "url: is neither http nor https"),
        (json!({"url": "https://u:p@example.com/"}), "url: has user information"),
        (json!({"url": "https://@example.com/"}), "url: has user information"),
        (json!({"url": "https:///u:p@example.com/"}), "url: has user information"),
        (json!({"url": "https:/u:p@example.com//x"}), "url: has user information"),
        (json!({"url": "https:u@example.com//x"}), "url: has user information"),
        (json!({"url": "https://example.com/#a"}), "url: has a fragment"),
        (json!({"url": "https://example.com:0/"}), "url: has port 0"),
        (json!({"url": "https:example.com"}), "url: has no // behind its scheme"),
        (json!({"url": "https://example.com/a b"}), "url: has a space, a control character or a backslash"),
        (json!({"url": "http://127.0.0.1/"}), "url: leads to an address that networks does not permit"),
        (json!({"method": "GET"}), "method: must be POST, PUT or PATCH"),
        (json!({"headers": {"Host": "a"}}), "headers.Host: is set by duewheel"),
        (json!({"headers": {"content-length": "1"}}), "headers.content-length: is set by duewheel"),
        (
            json!({"headers": {"Transfer-Encoding": "chunked"}}),
            "headers.Transfer-Encoding: is set by duewheel",
        ),
        (json!({"headers": {"CONNECTION": "close"}}), "headers.CONNECTION: is set by duewheel"),
        (json!({"headers": {"Webhook-Id": "1"}}), "headers.Webhook-Id: is set by duewheel"),
        (json!({"headers": {"duewheel-anything": "1"}}), "headers.duewheel-anything: is set by duewheel"),
        (
            json!({"headers": {"x-a": "a\r\nhost: b"}}),
            "headers.x-a: has a character that is not visible ASCII",
        ),
        (json!({"headers": {"x-a\r\nb": "c"}}), "headers.x-a\\r\\nb: is no name of a header"),
        (json!({"headers": {"x-a": "1", "X-A": "2"}}), "headers.x-a: is there twice"),
        (json!({"headers": {"x-a": long}}), "headers: are more than 50, or than 16384 bytes"),
        (json!({"secrets": ["whsec_AAAA"]}), "secrets[0]: has 3 bytes; a whsec_ secret has 24 to 64"),
        (json!({"secrets": ["hunter2"]}), "secrets[0]: begins neither with whsec_ nor with whsk_"),
        (json!({"timeout_ms": 0}), "timeout_ms: must be 1 to 900000"),
        (json!({"timeout_ms": 900_001}), "timeout_ms: must be 1 to 900000"),
        (json!({"concurrency": 0}), "concurrency: must be 1 to 10000"),
        (json!({"rate": {"per_second": 0}}), "rate.per_second: must be 1 to 1000000"),
        (json!({"rate": {"per_second": 1, "burst": 0}}), "rate.burst: must be 1 to 1000000"),
        (json!({"retry": {}}), "retry: must have either delays, or min_ms and max_ms"),
        (json!({"retry": {"delays": []}}), "retry.delays: must be 1 to 100"),
        (
            json!({"retry": {"delays": ["5s", "soon"]}}),
            "retry.delays[1]: must be a time such as 30s, at most 30d",
        ),
        (json!({"retry": {"delays": ["31d"]}}), "retry.delays[0]: must be a time such as 30s, at most 30d"),
        (
            json!({"retry": {"min_ms": 2, "max_ms": 1}}),
            "retry.min_ms: must be at least 1, and at most max_ms",
        ),
        (json!({"max_attempts": 0}), "max_attempts: must be 1 to 4294967295"),
        (json!({"dead_on": [404, 200]}), "dead_on[1]: must be 300 to 599"),
        (json!({"dead_on": many}), "dead_on: has more than 100 codes"),
        (json!({"ca_pem": "none"}), "ca_pem: there is no certificate in it (PEM)"),
        (json!({"client_pem": "none"}), "client_pem: there is no certificate in it (PEM)"),
        (json!({"url": "http://example.com/", "client_pem": "x"}), "client_pem: needs a URL with https"),
        (
            json!({"networks": "private"}),
            "networks: \"private\" is neither public nor any nor a network such as 10.0.0.0/8",
        ),
        (json!({"networks": []}), "networks: there must be 1 to 100 networks"),
    ] {
        assert_eq!(with(fields.clone()).map(|_| ()), Err(error.to_owned()), "{fields}");
    }
    assert!(with(json!({"tiemout_ms": 1})).unwrap_err().contains("unknown field `tiemout_ms`"));
}

/// serde's own errors repeat what they did not expect.
#[test]
fn misplaced_secret_is_not_echoed() {
    for (fields, error) in [
        (json!({"secrets": "hunter2"}), "secrets: must be a list of texts"),
        (json!({"secrets": ["whsec_AAAA", 4711]}), "secrets: must be a list of texts"),
        (json!({"secrets": {"hunter2": "hunter2"}}), "secrets: must be a list of texts"),
        (json!({"headers": "Bearer hunter2"}), "headers: must be texts by their names"),
        (json!({"headers": {"authorization": 4711}}), "headers: must be texts by their names"),
        (json!({"client_pem": 4711}), "client_pem: must be a text"),
        (json!({"client_pem": ["hunter2"]}), "client_pem: must be a text"),
        (json!({"url": 4711}), "url: must be a text"),
    ] {
        let found = with(fields.clone()).map(|_| ()).unwrap_err();
        assert_eq!(found, error, "{fields}");
        // The same when it is read from a text.
        let mut whole = json!({"url": "https://example.com/hook"});
        whole.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let found = serde_json::from_str::<TargetSettings>(&whole.to_string()).unwrap_err().to_string();
        assert!(found.starts_with(error), "{found}");
        assert!(!found.contains("hunter2") && !found.contains("4711"), "{found}");
    }
    // Nothing in the place of optional ones is still nothing.
    let nothing = json!({"client_pem": null, "secrets": null, "headers": null, "dead_on": null});
    assert!(with(nothing).is_ok());
}

#[test]
fn a_whole_target() {
    let authority = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
    let pem = authority.cert.pem();
    let both = format!("{pem}{}", authority.signing_key.serialize_pem());
    let whole = json!({
        "method": "PUT", "headers": {"Authorization": "Bearer hunter2", "content-type": "application/json"},
        "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="],
        "timeout_ms": 5_000, "concurrency": 4, "rate": {"per_second": 100}, "retry": {"delays": ["1s", "1h30m"]},
        "max_attempts": 3, "dead_on": [404, 422], "ca_pem": pem, "client_pem": both,
        "networks": ["public", "10.0.0.0/8"], "url": "https://example.com:8443/hook?token=hunter2",
    });
    let settings: TargetSettings = serde_json::from_value(whole.clone()).unwrap();
    let target = target(whole).unwrap();
    for shown in [format!("{target:?}"), format!("{settings:?}"), target.shown_url()] {
        for secret in ["hunter2", "MfKQ", "LaSw", "nWGx", "PRIVATE"] {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
    }
    assert_eq!(target.secret_hints().collect::<Vec<_>>(), ["LaSw", "f2A="]);
    assert_eq!(target.shown_url(), "https://example.com:8443/hook?…");
}

#[test]
fn mismatched_client_key_is_refused() {
    let [one, other] = ["a", "b"].map(|name| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap());
    let mixed = format!("{}{}", one.cert.pem(), other.signing_key.serialize_pem());
    let error = with(json!({"client_pem": mixed})).unwrap_err();
    assert_eq!(error, "client_pem: its key is not that of its certificate");
    let error = with(json!({"client_pem": one.cert.pem()})).unwrap_err();
    assert_eq!(error, "client_pem: there is no private key in it (PEM, not encrypted)");
}

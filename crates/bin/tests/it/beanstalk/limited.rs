//! A listener that is limited to some queues: of the others nothing can be used, watched, seen or changed, and nothing
//! learned.

use duewheel_server::beanstalk::{BeanstalkApp, DEFAULT_MAX_BODY};

use super::Both;
use super::client::Client;
use crate::fixture::Server;

/// Two listeners of one server: one for all queues, one for those that begin with `shop/` and `sms`.
async fn start() -> (Both, Both) {
    let all = Both::start().await;
    let wheel = all.http.wheel.clone();
    let app = BeanstalkApp::new(&wheel, DEFAULT_MAX_BODY, 100, all.http.drain.clone());
    let app = app.limited_to(Some("shop/,sms".parse().expect("prefixes")));
    // What HTTP it has does not matter here.
    let limited = Both::with(Server::start().await, app).await;
    (all, limited)
}

fn list(reply: &str) -> Vec<&str> {
    reply.lines().filter_map(|line| line.strip_prefix("- ")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn restricted_listener_serves_its_queues() {
    let (_all, limited) = start().await;
    let mut client = limited.client("shop/mail");
    let id = client.put("put 5 0 60", "a");
    assert_eq!(client.ask(&format!("peek {id}")), format!("FOUND {id} 1\r\na"));
    assert_eq!(client.ask("peek-ready"), format!("FOUND {id} 1\r\na"));
    assert_eq!(client.field("stats-tube shop/mail", "current-jobs-ready").as_deref(), Some("1"));
    assert_eq!(client.field(&format!("stats-job {id}"), "state").as_deref(), Some("ready"));
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 1\r\na"));
    assert_eq!(client.ask(&format!("touch {id}")), "TOUCHED");
    assert_eq!(client.ask(&format!("bury {id} 5")), "BURIED");
    assert_eq!(client.ask(&format!("kick-job {id}")), "KICKED");
    assert_eq!(client.ask(&format!("reserve-job {id}")), format!("RESERVED {id} 1\r\na"));
    assert_eq!(client.ask(&format!("release {id} 5 100")), "RELEASED");
    assert_eq!(client.ask("kick 1"), "KICKED 1");
    assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    assert_eq!(client.ask(&format!("delete {id}")), "NOT_FOUND");
    assert_eq!(client.ask("pause-tube shop/mail 0"), "PAUSED");
    // Many commands in one packet, in order; the same id twice.
    let (one, two) = (client.put("put 5 0 60", "b"), client.put("put 5 0 60", "c"));
    client.send(format!(
        "peek {one}\r\npeek {one}\r\ndelete {one}\r\nput 5 0 60 1\r\nd\r\npeek {two}\r\ndelete {one}\r\n"
    ));
    assert_eq!(client.reply(), format!("FOUND {one} 1\r\nb"));
    assert_eq!(client.reply(), format!("FOUND {one} 1\r\nb"));
    assert_eq!(client.reply(), "DELETED");
    assert!(client.reply().starts_with("INSERTED "));
    assert_eq!(client.reply(), format!("FOUND {two} 1\r\nc"));
    assert_eq!(client.reply(), "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn restricted_listener_hides_other_queues() {
    let (all, limited) = start().await;
    let mut other = all.client("bank");
    let (ready, buried) = (other.put("put 5 0 60", "gold"), other.put("put 9 0 60", "silver"));
    let delayed = other.put("put 5 3600 60", "later");
    assert_eq!(other.ask(&format!("reserve-job {buried}")), format!("RESERVED {buried} 6\r\nsilver"));
    assert_eq!(other.ask(&format!("bury {buried} 9")), "BURIED");
    let before = other.ask("stats-tube bank");

    let mut client = Client::connect(&limited.address);
    // By name. The queue that a client begins with is only a name where it is out of reach.
    for name in ["bank", "shop", "default", "Shop/x"] {
        assert_eq!(client.ask(&format!("use {name}")), "FORBIDDEN", "{name}");
        assert_eq!(client.ask(&format!("stats-tube {name}")), "NOT_FOUND", "{name}");
        assert_eq!(client.ask(&format!("pause-tube {name} 60")), "NOT_FOUND", "{name}");
        let watched = if name == "default" { "WATCHING 1" } else { "FORBIDDEN" };
        assert_eq!(client.ask(&format!("watch {name}")), watched, "{name}");
    }
    // By what is used and watched at the beginning.
    assert_eq!(client.ask("list-tube-used"), "USING default");
    assert_eq!(client.ask_put("put 0 0 60", "x"), "FORBIDDEN");
    assert_eq!(client.ask_put("put-key k 0 0 60", "x"), "FORBIDDEN");
    for line in ["peek-ready", "peek-delayed", "peek-buried", "peek-key k", "delete-key k"] {
        assert_eq!(client.ask(line), "NOT_FOUND", "{line}");
    }
    assert_eq!(client.ask("kick 10"), "FORBIDDEN");
    assert_eq!(client.ask("reserve"), "FORBIDDEN", "it would wait for ever");
    assert_eq!(client.ask("reserve-with-timeout 0"), "FORBIDDEN");
    assert_eq!(client.ask("stats"), "FORBIDDEN", "the figures of all queues together");
    // By id: out of reach is as good as not there.
    for id in [&ready, &buried, &delayed] {
        for line in ["peek", "stats-job", "delete", "reserve-job", "kick-job", "touch"] {
            assert_eq!(client.ask(&format!("{line} {id}")), "NOT_FOUND", "{line} {id}");
        }
        assert_eq!(client.ask(&format!("release {id} 0 0")), "NOT_FOUND");
        assert_eq!(client.ask(&format!("bury {id} 0")), "NOT_FOUND");
    }
    // All at once, beside what is allowed.
    client.send(format!("use shop/a\r\nput 0 0 60 1\r\ny\r\ndelete {ready}\r\npeek {delayed}\r\nkick-job {buried}\r\nuse bank\r\n"));
    assert_eq!(client.reply(), "USING shop/a");
    assert!(client.reply().starts_with("INSERTED "));
    assert_eq!([client.reply(), client.reply(), client.reply()], ["NOT_FOUND"; 3]);
    assert_eq!(client.reply(), "FORBIDDEN");
    assert_eq!(client.ask("list-tube-used"), "USING shop/a", "as before the refusal");
    let tubes = client.ask("list-tubes");
    assert_eq!(list(&tubes), ["shop/a"]);
    assert_eq!(client.ask("watch sms-2"), "WATCHING 2");
    assert_eq!(client.ask("ignore default"), "WATCHING 1");
    assert_eq!(client.ask("ignore sms-2"), "NOT_IGNORED");
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
    drop(client);

    assert_eq!(other.ask("stats-tube bank"), before, "nothing of it has changed");
    assert_eq!(other.ask(&format!("peek {ready}")), format!("FOUND {ready} 4\r\ngold"));
    let tubes = other.ask("list-tubes");
    assert!(list(&tubes).contains(&"bank") && list(&tubes).contains(&"default"));
    let using = other.field("stats-tube default", "current-using");
    assert_eq!(using.as_deref(), Some("0"), "a client that was refused does not use it");
}

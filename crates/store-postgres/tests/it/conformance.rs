//! The suites that every store and every medium run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel_core::store::conformance::{self, Fixture, Hook};
use duewheel_core::store::{Coordinator, ErrorKind, Joined, Store, StoreError, Waker};
use duewheel_postgres_rig::{Postgres, Settings};
use duewheel_store_medium::conformance::{self as of_medium, Able, MediumFixture};
use duewheel_store_medium::{Acquired, Medium};
use duewheel_store_postgres::PostgresCoordinator;

use crate::place::{PATIENCE, SHARD, node_of, options};

/// Longer than a busy machine lets a node wait: the suites are not about the end of a lease.
const LEASE: Duration = Duration::from_secs(10);

struct Server {
    postgres: Postgres,
    node: Option<(PostgresCoordinator, Joined)>,
}

impl Server {
    fn query(&self, sql: &str) -> String {
        self.postgres.query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }
}

impl Fixture for Server {
    type Store = Box<dyn Store>;

    fn clear(&mut self) {
        self.node = None;
        self.query("DROP SCHEMA IF EXISTS duewheel CASCADE");
        let options = options(&self.postgres.url()).lease(LEASE).expect("a lease");
        self.node = Some(node_of(options, "a", 1));
    }

    fn open(&mut self, waker: Waker) -> Result<Box<dyn Store>, StoreError> {
        let (nodes, joined) = self.node.as_ref().expect("cleared first");
        nodes.open(&joined.node, SHARD, waker)
    }

    /// What was appended is on its way to the server, in the memory of its process: unlike what was written to a file, it
    /// ends with that. Here it arrives before the end; the loss of what has not is met when the power fails.
    fn kill(&mut self, mut store: Box<dyn Store>) {
        let waiting = |store: &dyn Store| {
            let figures = store.figures();
            figures.iter().find(|(name, _)| *name == "unsent_records").map_or(0, |(_, records)| *records)
        };
        while store.progress().is_ok() && waiting(&*store) > 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn lose_power(&mut self) -> Hook {
        self.postgres.kill().expect("it runs");
        self.postgres.start_again().expect("it starts");
        Hook::Done
    }

    fn damage(&mut self) -> Hook {
        let changed = self.query(
            "UPDATE duewheel.piece p SET body = set_byte(body, 60, get_byte(body, 60) # 255) FROM duewheel.file f \
             WHERE f.id = p.file AND f.name LIKE 'journal/%' AND p.at >= 4096 AND octet_length(p.body) > 60 RETURNING 1",
        );
        assert_ne!(changed, "", "something was damaged");
        Hook::Done
    }

    fn fail(&mut self) -> Hook {
        self.query("UPDATE duewheel.shard SET mark = mark + 1");
        Hook::Done
    }
}

impl MediumFixture for Server {
    fn clear(&mut self) {
        Fixture::clear(self);
    }

    fn acquire(&mut self) -> Result<(Arc<dyn Medium>, Acquired), StoreError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.query("UPDATE duewheel.lease SET until = 'epoch'");
            let (nodes, joined) = self.node.as_ref().expect("cleared first");
            match nodes.acquire(&joined.node, SHARD, Arc::new(|| {})) {
                // The owner before has renewed its lease in between.
                Err(error) if error.kind() == ErrorKind::Fenced && Instant::now() < deadline => {}
                acquired => return acquired,
            }
        }
    }

    fn lose_power(&mut self) -> Able {
        Fixture::lose_power(self);
        Able::Yes
    }
}

#[test]
fn the_medium_keeps_all_obligations() {
    let settings = Settings::default().with("fsync", "off").with("full_page_writes", "off");
    let postgres = Postgres::start(settings).expect("a server");
    of_medium::run(&mut Server { postgres, node: None });
}

#[test]
fn the_store_keeps_all_obligations() {
    // Its processes are killed, and not its machine; without syncs the suite takes a tenth of the time.
    let settings = Settings::default().with("fsync", "off").with("full_page_writes", "off");
    let postgres = Postgres::start(settings).expect("a server");
    conformance::run(&mut Server { postgres, node: None });
}

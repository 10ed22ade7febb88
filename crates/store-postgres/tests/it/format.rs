//! A cluster in another format: refused, and left as it is.

use duewheel_core::store::{Coordinator, ErrorKind};
use duewheel_store_medium::RestoreTarget;
use duewheel_store_postgres::PostgresCoordinator;

use crate::place::{candidate, node, options, server};

/// Checks that these formats are refused with these words.
fn are_refused(formats: &[i32], words: &[&str]) {
    let postgres = server();
    let a = node(&postgres.url(), "a", 2);
    a.0.leave(&a.1.node).expect("leave");
    // Tables of earlier builds may lack these.
    postgres.query("DROP TABLE duewheel.turn; ALTER TABLE duewheel.shard DROP COLUMN used").expect("dropped");
    for format in formats {
        postgres.query(&format!("UPDATE duewheel.cluster SET format = {format}")).expect("set");
        let all = || {
            let rows = "SELECT format('%s %s %s', (SELECT array_agg(c) FROM duewheel.cluster c), \
                (SELECT array_agg(s) FROM duewheel.shard s), (SELECT count(*) FROM duewheel.node))";
            postgres.query(rows).expect("rows")
        };
        let before = all();
        let fresh = PostgresCoordinator::new(options(&postgres.url())).expect("a coordinator");
        assert!(fresh.has_tables().expect("an answer"), "so none are made");
        let refusals = [
            fresh.join(&candidate("b", 2)).map(drop),
            fresh.owners().map(drop),
            fresh.secrets().map(drop),
            fresh.begin_rotation().map(drop),
            fresh.read_at_one_moment().map(drop),
            fresh.give_up_lost().map(drop),
            fresh.begin_restore(2),
        ];
        for done in refusals {
            let error = done.expect_err("it must be refused");
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{said}");
            let number = format!("format {format}");
            assert!(said.contains(&number) && words.iter().all(|word| said.contains(word)), "{said}");
        }
        assert_eq!(all(), before, "nothing is changed");
    }
}

#[test]
fn earlier_format_is_refused_unchanged() {
    are_refused(&[1, -1], &["before 0.1.0", "`duewheel export`", "`duewheel import`"]);
}

#[test]
fn later_format_is_refused_by_number() {
    are_refused(&[1002], &["this version knows 1001"]);
}

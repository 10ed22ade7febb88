use super::*;

#[test]
fn every_error_code_is_documented() {
    let page = include_str!("../../../../docs/errors.md");
    for code in ErrorCode::ALL {
        let title = format!("\n## `{}` ({})\n\n", code.as_str(), code.status().as_u16());
        let (_, text) =
            page.split_once(&title).unwrap_or_else(|| panic!("no section{title}in docs/errors.md"));
        let text = text.split("\n## ").next().unwrap_or_default().trim();
        assert!(text.len() > 60, "{} deserves more than {text:?}", code.as_str());
    }
    assert_eq!(page.matches("\n## `").count(), ErrorCode::ALL.len(), "a section without a code");
}

#[test]
fn store_failure_carries_its_outcome() {
    let closed = Problem::from(CallError::Lost("over"));
    assert_eq!(closed.code, ErrorCode::StorageUnavailable);
    assert_eq!(closed.extra, Extra::Outcome(Outcome::Unknown));
    assert_eq!(Problem::from(CallError::Overloaded).code, ErrorCode::Overloaded);
    // A bug does not pass: no client should retry, and an operator must see it.
    let bug = Problem::from(CallError::Bug("another answer"));
    assert_eq!(
        (bug.code, bug.code.status()),
        (ErrorCode::Internal, axum::http::StatusCode::INTERNAL_SERVER_ERROR)
    );
    assert_eq!(Problem::from(CallError::Draining).code, ErrorCode::Draining);
    let error = duewheel::core::store::StoreError::new(ErrorKind::Full, "full");
    let full = CallError::Store { error: error.clone(), outcome: Outcome::NotApplied };
    assert_eq!(Problem::from(full).code, ErrorCode::DiskFull);
    let unknown = CallError::Store { error, outcome: Outcome::Unknown };
    assert_eq!(Problem::from(unknown).code, ErrorCode::StorageUnavailable);
}

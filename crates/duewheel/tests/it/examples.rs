//! The examples do what they say.

#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/campaign.rs"]
mod campaign;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/jobs.rs"]
mod jobs;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/order_timeout.rs"]
mod order_timeout;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/retry_http.rs"]
mod retry_http;

#[tokio::test(flavor = "multi_thread")]
async fn only_unpaid_order_is_closed() {
    assert_eq!(order_timeout::run().await.unwrap(), [43]);
}

#[tokio::test(flavor = "multi_thread")]
async fn campaign_spreads_evenly_and_never_early() {
    let minutes = campaign::run().await.unwrap();
    assert_eq!((minutes[0], minutes.iter().sum::<usize>(), minutes.len()), (0, 1_000, 11), "{minutes:?}");
    // A hundred in each on average; the draw is the same in each run.
    assert!(minutes[1..].iter().all(|sent| (60..=140).contains(sent)), "{minutes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_request_retries_until_success() {
    assert_eq!(retry_http::run().await.unwrap(), 3);
}
